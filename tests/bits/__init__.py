"""What results are, bit by bit: small experiments, digests of what they give, a record of these, and its check.

`python -m tests.bits.record` writes the record, `tests/bits/test_bits.py` compares today's code with it.
"""
