"""YAML from anywhere, read in bounded time and memory."""

from __future__ import annotations

from typing import Any

import yaml

DEEPEST = 200  # levels of lists and mappings
LARGEST = 1_000_000  # values, each alias counted as what it stands for
_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str, loader: type[Any] = yaml.SafeLoader) -> Any:
    """What YAML means; text that is damaged, nested too deeply or a bomb of aliases is a `ValueError` of one line.

    >>> parse_yaml("{a: [1]}")
    {'a': [1]}
    >>> parse_yaml("[" * 100_000)
    Traceback (most recent call last):
        ...
    ValueError: it is nested too deeply
    """
    _refuse_deep(text)
    try:
        # Many times faster by the parser in C; the other one has the words for what is wrong.
        return _read(text, _FAST) if loader is yaml.SafeLoader else _read(text, loader)
    except yaml.YAMLError:
        try:
            return _read(text, loader)
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from None


def _read(text: str, kind: type[Any]) -> Any:
    loader = kind(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}) > LARGEST:
            raise ValueError("its aliases repeat too much")
        return loader.construct_document(node)
    except (AttributeError, KeyError, IndexError, TypeError) as error:  # as of `!!bool x` or `!!timestamp x`
        raise ValueError("a value is not what its tag says") from error
    finally:
        loader.dispose()


def _expanded(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a node stands for; infinitely many where it holds itself."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = float("inf")  # until it is counted
        parts = node.value if isinstance(node, yaml.SequenceNode) else [one for pair in node.value for one in pair]
        known[id(node)] = 1 + sum(_expanded(one, known) for one in parts)
    return known[id(node)]


def _refuse_deep(text: str) -> None:
    """Refuse what would end the process in the parser in C, and take the one in Python quadratic time."""
    brackets, widest = text.count("[") + text.count("{"), max(map(len, text.splitlines()), default=0)
    if max(brackets, widest) <= DEEPEST:  # each level takes a bracket or a column
        return
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_FAST):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError("it is nested too deeply")
    except yaml.YAMLError:
        return  # the parser says what is wrong
