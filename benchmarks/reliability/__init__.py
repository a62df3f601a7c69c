"""Crash tests, malformed replies and invalid commands.

They do not measure speed and run on demand only:
`python -m benchmarks --only crashes --only malformed_replies --only invalid_commands`.
"""
