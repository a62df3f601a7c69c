"""Speed of Fedstill as ratios measured in one run: `python -m benchmarks` from the project's folder.

Absolute times depend more on the machine than on the code. Each figure is therefore the ratio of two computations that
ran alternately. A missed target is reported and is not a failure. Results that differ where they must agree are.
"""
