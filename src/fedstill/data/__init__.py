"""Data sets, their readers, and the ways of cutting them into clients' shards.

Importing the package registers the built-in data sets, so that whoever has the catalogue has all of them.
"""

from fedstill.data import digits, heads, known

__all__ = ["digits", "heads", "known"]
