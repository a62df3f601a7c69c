"""Secure aggregation: fixed-point sums, and the protocol that hides what is added up in them."""
