"""How fast Fedstill is, as ratios measured in one run: `python -m benchmarks` from the project's folder.

Absolute times say more about the machine than about the code, so every figure is a ratio of two things that ran
alternately. A missed goal is shown and is not a failure; results that differ where they must agree are one.
"""
