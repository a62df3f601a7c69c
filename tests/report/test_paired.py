"""McNemar's exact test on predictions for the same samples."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from fedstill.report.paired import paired_sentence


@pytest.mark.parametrize(("first", "second"), [(2, 0), (9, 1), (3, 4), (5, 5), (0, 12)])
def test_p_is_that_of_the_binomial_test(first: int, second: int) -> None:
    p = binomtest(first, first + second, 0.5).pvalue
    truth = [1] * (first + second + 10)
    a = [1] * first + [0] * second + [1] * 5 + [0] * 5
    b = [0] * first + [1] * second + [1] * 5 + [0] * 5
    said = paired_sentence(("a", "b"), (a, b), truth)
    assert f"p = {p:.2g})" in said
    assert ("cannot tell them apart" in said) == (p >= 0.05)
    assert f"a alone is right in {first} and b alone in {second}" in said
    assert ("neither leads" in said) == (first == second)
    assert ("a leads" in said) == (first > second)


def test_models_that_are_right_in_the_same_samples() -> None:
    assert (
        paired_sentence(("a", "b"), ([1, 0, 2], [1, 0, 0]), [1, 0, 1])
        == "a and b are right in the same of three test samples."
    )
