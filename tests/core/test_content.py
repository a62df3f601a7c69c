"""The digest of a part follows everything that the part consists of, and nothing else."""

from __future__ import annotations

import functools
import linecache
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedstill.core.content import content_of
from fedstill.methods.fedavg import FedAvg

START = """
import functools, json, logging, math, os, threading
from dataclasses import dataclass, field
from pathlib import Path
import numpy as np
import torch
from torch import nn
from pydantic import Field, field_validator
from fedstill.core.settings import Settings
from fedstill.methods.fedavg import FedAvg
"""


def digest_of(text: str, name: str = "part", file: str = "<cell>") -> str:
    """Of a part that this text defines, as a notebook's cell would."""
    return content(text, name, file).digest


def content(text: str, name: str = "part", file: str = "<cell>") -> Any:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(START + text, file, "exec"), space)
    return content_of(space[name])


CASES = {
    "code": ("def part(x): return x + 1", "def part(x): return x + 2"),
    "operator": ("def part(x): return x + 1", "def part(x): return x * 1"),
    "attribute": ("def part(x): return x.sum()", "def part(x): return x.mean()"),
    "default": ("def part(x, y=1): return x", "def part(x, y=2): return x"),
    "keyword default": ("def part(x, *, y=1): return x", "def part(x, *, y=2): return x"),
    "global": ("A = 1\ndef part(): return A", "A = 2\ndef part(): return A"),
    "global list": ("A = [1, [2]]\ndef part(): return A", "A = [1, [3]]\ndef part(): return A"),
    "global of a function it calls": (
        "A = 1\ndef f(): return A\ndef part(): return f()",
        "A = 2\ndef f(): return A\ndef part(): return f()",
    ),
    "global in a nested function": (
        "A = 1\ndef part():\n def g(): return A\n return g",
        "A = 2\ndef part():\n def g(): return A\n return g",
    ),
    "global in a comprehension": (
        "A = 1\ndef part(x): return [A for _ in x]",
        "A = 2\ndef part(x): return [A for _ in x]",
    ),
    "closure": (
        "def made(k):\n def f(): return k\n return f\npart = made(1)",
        "def made(k):\n def f(): return k\n return f\npart = made(2)",
    ),
    "partial": (
        "def f(a): return a\npart = functools.partial(f, 1)",
        "def f(a): return a\npart = functools.partial(f, 2)",
    ),
    "cached": (
        "@functools.lru_cache\ndef part(): return 1",
        "@functools.lru_cache\ndef part(): return 2",
    ),
    "decorated": (
        "def twice(f):\n @functools.wraps(f)\n def g(): return 2 * f()\n return g\n@twice\ndef part(): return 1",
        "def twice(f):\n @functools.wraps(f)\n def g(): return 3 * f()\n return g\n@twice\ndef part(): return 1",
    ),
    "method": ("class part:\n def f(self): return 1", "class part:\n def f(self): return 2"),
    "static method": (
        "class part:\n @staticmethod\n def f(): return 1",
        "class part:\n @staticmethod\n def f(): return 2",
    ),
    "property": ("class part:\n @property\n def f(self): return 1", "class part:\n @property\n def f(self): return 2"),
    "class attribute": ("class part:\n a = 1", "class part:\n a = 2"),
    "base class": ("class B:\n a = 1\nclass part(B): pass", "class B:\n a = 2\nclass part(B): pass"),
    "base class's method, of ours below": (
        "class B(FedAvg):\n def f(self): return 1\nclass part(B): pass",
        "class B(FedAvg):\n def f(self): return 2\nclass part(B): pass",
    ),
    "data class": ("@dataclass\nclass part:\n a: int = 1", "@dataclass\nclass part:\n a: int = 2"),
    "default factory": (
        "@dataclass\nclass part:\n a: list = field(default_factory=lambda: [1])",
        "@dataclass\nclass part:\n a: list = field(default_factory=lambda: [2])",
    ),
    "setting's default": (
        "class part(Settings):\n mu: float = Field(0.1, ge=0)",
        "class part(Settings):\n mu: float = Field(0.2, ge=0)",
    ),
    "setting's limit": (
        "class part(Settings):\n mu: float = Field(0.1, ge=0)",
        "class part(Settings):\n mu: float = Field(0.1, gt=0)",
    ),
    "setting's validator": (
        "class part(Settings):\n mu: float = 0.1\n @field_validator('mu')\n @classmethod\n def c(cls, v): return v",
        "class part(Settings):\n mu: float = 0.1\n @field_validator('mu')\n @classmethod\n def c(cls, v): return v * 2",
    ),
    "array": ("A = np.ones(3)\ndef part(): return A", "A = np.zeros(3)\ndef part(): return A"),
    "tensor": ("A = torch.ones(3)\ndef part(): return A", "A = torch.zeros(3)\ndef part(): return A"),
    "tensor type": ("A = torch.ones(2)\ndef part(): return A", "A = torch.ones(2).double()\ndef part(): return A"),
    "model": (
        "torch.manual_seed(0)\nA = nn.Linear(2, 2)\ndef part(x): return A(x)",
        "torch.manual_seed(1)\nA = nn.Linear(2, 2)\ndef part(x): return A(x)",
    ),
    "function of a package": ("def part(x): return np.mean(x)", "def part(x): return np.median(x)"),
    "not a number": ("A = float('nan')\ndef part(): return A", "A = -0.0\ndef part(): return A"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_edit_changes_the_digest(case: str) -> None:
    before, after = CASES[case]
    assert digest_of(before) == digest_of(before)
    assert digest_of(before) != digest_of(after)
    assert not content(before).unknown


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def part(x): return x + 1", "\n\n# Better.\ndef part(x):\n    return x + 1  # one more"),
        ("def part(): return 1", "UNUSED = 3\ndef other(): return 2\ndef part(): return 1"),
        ("A = {1, 2, 3}\ndef part(): return A", "A = {3, 2, 1}\ndef part(): return A"),
        (
            "class part:\n def f(self): return 1\n def g(self): return 2",
            "class part:\n def g(self): return 2\n def f(self): return 1",
        ),
    ],
)
def test_what_cannot_change_numbers_does_not(one: str, other: str) -> None:
    assert digest_of(one) == digest_of(other, file="/another/place.py")


UNKNOWN = {
    "def part(): return open('x').read()": "`open`",
    "def part(): return Path('x').read_text()": "`read_text`",
    "def part(): return os.environ['X']": "`environ`",
    "def part(): return eval('1')": "`eval`",
    "def part(): return globals()['x']": "`globals`",
    "def part(f): return json.load(f)": "json.load",
    "def part(f): return torch.load(f)": "torch.load",
    "A = threading.Lock()\ndef part(): return A": "lock",
    "A = open('/dev/null')\ndef part(): return A": "TextIOWrapper",
    "A = (x for x in [1])\ndef part(): return A": "generator",
    "def part(): import nowhere_at_all": "nowhere_at_all",
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_cannot_be_established_is_said(text: str) -> None:
    assert any(UNKNOWN[text] in why for why in content(text).unknown)


@pytest.mark.parametrize(
    "text",
    [
        "class part(nn.Module):\n def forward(self, x): return self.eval().input(x)",
        "LOG = logging.getLogger('x')\ndef part(): LOG.info('x')",
        "def part(n): return part(n - 1) if n else 0",
        "A = []\nA.append(A)\ndef part(): return A",
        "class part(FedAvg): pass",
        "def part(x): return math.sqrt(x) + np.linalg.norm(x) + torch.nn.functional.relu(x).sum()",
    ],
)
def test_what_is_harmless_is_established(text: str) -> None:
    assert content(text).unknown == ()
    assert digest_of(text) == digest_of(text)


def test_what_does_not_let_itself_be_looked_at_is_unknown() -> None:
    text = "class Odd:\n def __getattr__(self, name): raise RuntimeError\nA = Odd()\ndef part(): return A"
    assert content(text).unknown == ("cannot be looked at (RuntimeError)",)
    deep = "A = []\nfor _ in range(100_000): A = [A]\ndef part(): return A"
    assert content(deep).unknown == ("cannot be looked at (RecursionError)",)


def test_a_module_of_ones_own_counts_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    seen = set()
    for number, text in enumerate(["S = 1\n", "S = 2\n", "S = 1\nT = 1\n"]):
        (tmp_path / f"own_{number}.py").write_text(text)
        seen.add(digest_of(f"import own_{number} as own\ndef part(): return own.S"))
        late = digest_of(f"def part():\n import own_{number} as own\n return own.S")
        assert late not in seen
    assert len(seen) == 3


def test_parts_of_packages_count_by_name_and_version() -> None:
    assert content_of(np.mean) == content_of(np.mean)
    assert content_of(np.mean) != content_of(np.median)
    assert content_of(FedAvg).unknown == ()
    assert content_of(nn.Linear) != content_of(nn.Conv1d)


def test_objects_of_every_kind() -> None:
    values: list[Any] = [1, True, 1.0, "1", b"1", None, (1,), [1], {1}, {1: 1}, range(1), slice(1), ...]
    values += [np.float32(1), torch.ones(1), np.ones(1), torch.float32]
    digests = [content_of(value).digest for value in values]
    assert len(set(digests)) == len(values)
    assert content_of(threading.Lock()).unknown
    assert not content_of(logging.getLogger("x"), functools.partial(max, 1), linecache.cache).unknown


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_equal_values_have_equal_digests(value: Any) -> None:
    copy: Callable[[Any], Any] = lambda one: [copy(each) for each in one] if isinstance(one, list) else one  # noqa: E731
    assert content_of(copy(value)) == content_of(value)
    assert content_of([value]) != content_of(value)


def test_a_function_that_is_made_to_look_like_one_of_the_package_is_the_users_own() -> None:
    """`functools.wraps` copies the name of a function's module, and must not hide that it was changed by hand."""
    from fedstill.core.origins import is_outside

    def patched(step: float) -> Callable[..., Any]:
        @functools.wraps(FedAvg.aggregate)
        def aggregate(*arguments: Any) -> Any:
            return step, FedAvg.aggregate(*arguments)

        return aggregate

    assert patched(1.0).__module__ == FedAvg.__module__
    assert is_outside(patched(1.0))
    assert not is_outside(FedAvg.aggregate)
    assert content_of(patched(1.0)).digest != content_of(patched(2.0)).digest
