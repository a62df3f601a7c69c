"""What holds when things go wrong: processes that are killed, replies that lie, commands that make no sense.

Not about speed, and run only when asked for: `python -m benchmarks --only kills --only replies --only commands`.
"""
