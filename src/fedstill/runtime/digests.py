"""Digests of what a finished run has written, so that damage and careless edits are noticed and named.

An edit of both a number and its digest is not noticed: this guards against accidents, not against forgery.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedstill.core.errors import InputError
from fedstill.core.files import digest_of, file_digest, read_json, write_json

NAME = "digests.json"
CONFIG, RESULT, JOURNAL, PREDICTIONS = "config.json", "result.json", "journal.jsonl", "predictions.json"
_BY_FIELD = (CONFIG, RESULT)  # files whose every field has a digest
_NOT_RESULTS = ("timing.json", NAME)


class EditedError(InputError):
    """A file of a run is not what the run wrote."""

    def __init__(self, path: Path, field: str = "") -> None:
        self.path, self.field = path, field
        what = f": {field} is not what the run wrote" if field else " since the run wrote it"
        super().__init__(
            f"{path} was edited{what}: `fedstill verify` tells more; delete the folder to run the experiment again"
        )


def leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in nested JSON with its path.

    >>> list(leaves({"accuracy": {"last": 0.5}, "rounds": [1, 2]}))
    [('accuracy.last', 0.5), ('rounds.0', 1), ('rounds.1', 2)]
    """
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(content, list) and content:
        for number, value in enumerate(content):
            yield from leaves(value, f"{path}.{number}" if path else str(number))
    else:
        yield path, content


def field_digests(content: Any) -> dict[str, str]:
    """By path, a short digest of the value there."""
    return {path: blake2b(json.dumps(value).encode(), digest_size=4).hexdigest() for path, value in leaves(content)}


def changed_fields(content: Any, expected: Mapping[str, str]) -> list[str]:
    """The paths at which something else stands than a digest says, or something too much, or nothing."""
    found = field_digests(content)
    return [path for path in {**expected, **found} if found.get(path) != expected.get(path)]


def save(folder: Path, result: Mapping[str, Any]) -> None:
    """Write the digests of a run that is about to write this result, which is its last file."""
    files = {
        path.name: str(file_digest(path))
        for path in sorted(folder.iterdir())
        if path.suffix in (".json", ".jsonl", ".safetensors") and path.name not in (*_BY_FIELD, *_NOT_RESULTS)
    }
    fields = {CONFIG: field_digests(read_json(folder / CONFIG)), RESULT: field_digests(result)}
    write_json(folder / NAME, {"files": files, "fields": fields})


class Digests:
    """The digests in a run's folder; of a run of an earlier version, or one that is not finished, none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        held = read_json(folder / NAME) or {}
        fields = held.get("fields")
        self.files = _digests(held.get("files"))
        self.fields = {name: _digests(one) for name, one in fields.items()} if isinstance(fields, dict) else {}

    def __bool__(self) -> bool:
        return bool(self.fields)

    def check_content(self, name: str, content: Any) -> None:
        """Refuse a file by its fields."""
        if name in self.fields and (changed := changed_fields(content, self.fields[name])):
            raise EditedError(self.folder / name, changed[0])

    def check_bytes(self, name: str, data: bytes) -> None:
        """Refuse a file as a whole."""
        if name in self.files and digest_of(data) != self.files[name]:
            raise EditedError(self.folder / name)


def _digests(held: Any) -> dict[str, str]:
    """Digests by name; what is damaged is none."""
    return {name: one for name, one in held.items() if isinstance(one, str)} if isinstance(held, dict) else {}
