"""Files of a deployment, and the lock of the process that runs from its folder."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from fedstill.core.errors import BusyError, InputError
from fedstill.core.files import read_file
from fedstill.core.locks import lock_folder
from fedstill.core.settings import Settings
from fedstill.core.yaml_text import parse_yaml
from fedstill.runtime.experiment import sentence

Known = TypeVar("Known", bound=Settings)


def site_name(site: int | str) -> str:
    """What a site's folder is called, and the file of its data where that was cut for it."""
    return f"site-{site}"


def content(path: Path) -> bytes:
    """The bytes of a file of a deployment, or an `InputError`."""
    try:
        return read_file(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: copy the folder again, whole, from where it was made") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def read_settings(path: Path, kind: type[Known], advice: str) -> Known:
    """Read and validate a short YAML file; `advice` is the remedy for one without settings."""
    given = read_mapping(path, advice)
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise InputError(f"{path}: {sentence(error, kind.model_fields).removeprefix('the experiment: ')}") from None


class _EachOnce(yaml.SafeLoader):
    """Refuses a name that stands twice: YAML lets the last one count, which the reader of a policy may not notice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)  # what `<<` merges in stands there, too
        names = Counter(one.value for one, _ in node.value if isinstance(one, yaml.ScalarNode))
        for name, times in names.items():
            if times > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} stands there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_mapping(path: Path, advice: str) -> dict[str, Any]:
    """The content of a short YAML file, before its names and values are checked."""
    try:
        given = parse_yaml(content(path).decode(), _EachOnce)
    except ValueError as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(given, dict):
        raise InputError(f"{path} holds no settings: {advice}")
    return given


def private_content(path: Path) -> bytes:
    """The bytes of a private key, which only its owner may be able to read."""
    data = content(path)
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"the private key {path} is readable by others: restrict it with `chmod 600 {path}`")
    return data


@contextmanager
def only_one(folder: Path, what: str) -> Iterator[None]:
    """Held while a server or a site runs from a folder; the system frees it when that process dies, however it dies."""
    try:
        lock = lock_folder(folder)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
    if lock is None:
        raise BusyError(f"another {what} is running from {folder}: stop it first")
    try:
        yield
    finally:
        lock.release()


def in_use(folder: Path) -> bool:
    """Whether a server or a site runs from there."""
    try:
        with only_one(folder, "process"):
            return False
    except BusyError:
        return True
    except InputError:  # nothing can be written there, so nobody runs from it
        return False
