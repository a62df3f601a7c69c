"""YAML from anywhere."""

from __future__ import annotations

from time import process_time

import pytest
import yaml

from fedstill.core.yaml_text import LARGEST, parse_yaml


@pytest.mark.parametrize(
    "text", ["", "a", "[1, {b: [true, 1.5e3, ~]}]", "a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}", "- 2026-11-19"]
)
def test_it_means_what_yaml_means(text: str) -> None:
    assert parse_yaml(text) == yaml.safe_load(text)


def aliases(levels: int) -> str:
    """A list of 2 ** levels times two values, in as many lines."""
    return "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, levels + 1))])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 50_000, "it is nested too deeply"),
        ("- " * 50_000, "it is nested too deeply"),
        ("a: &a [*a]", "its aliases repeat too much"),
        (aliases(40), "its aliases repeat too much"),
        ("a: " + "1" * 5000, "Exceeds the limit"),
        ("a: 2026-99-99", "month must be in 1..12"),
        ("a: !!bool x", "a value is not what its tag says"),
        ("a: !!timestamp x", "a value is not what its tag says"),
        ("a: !!int ''", "a value is not what its tag says"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: b: c", "mapping values are not allowed here"),
        ("a: \x00", "special characters are not allowed"),
    ],
)
@pytest.mark.parametrize("loader", [yaml.SafeLoader, type("Own", (yaml.SafeLoader,), {})])
def test_what_is_refused_is_refused_at_once(text: str, why: str, loader: type) -> None:
    begun = process_time()
    with pytest.raises(ValueError, match=why) as refused:
        parse_yaml(text, loader)
    assert "\n" not in str(refused.value)
    assert process_time() - begun < 1


def test_aliases_count_as_what_they_stand_for() -> None:
    """Of the last line, 2 ** 16 * 3 - 1 values; of all lines, twice that and less than the limit."""
    assert LARGEST > 2**16 * 3 * 2
    assert len(parse_yaml(aliases(16))) == 17
    with pytest.raises(ValueError, match="its aliases repeat"):
        parse_yaml(aliases(19))
