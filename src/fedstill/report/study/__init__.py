"""The page of a study and its audit: every figure and table is made from an `Audit` and the evidence in it."""
