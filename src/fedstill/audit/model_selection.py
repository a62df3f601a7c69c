"""How a table says that its models were selected, in people's own words."""

from __future__ import annotations

import re

MOST = ("best", "oracle", "max", "peak", "highest", "optimal")  # how words for the best of several models begin
UNCHOSEN = ("last", "final", "fixed", "none", "end")


def chosen_on_test(selection: str) -> bool:
    """Whether the reported model was chosen by its test accuracy: `best`, `test`, `best epoch on test`.

    >>> [chosen_on_test(text) for text in ("best", "best (test)", "the best evaluated round", "early stopping on test")]
    [True, True, True, True]
    >>> [chosen_on_test(text) for text in ("last", "best on validation", "last round, on test", "fixed epochs", "")]
    [False, False, False, False, False]
    """
    words = re.findall(r"[a-z]+", selection.lower())
    if any(word in ("dev", "holdout") or ("val" in word and "eval" not in word) for word in words):
        return False
    most = any(word == "top" or word.startswith(MOST) for word in words)
    on_test = any(word.startswith("test") for word in words)
    return most or (on_test and not any(word in UNCHOSEN for word in words))
