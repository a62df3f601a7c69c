"""The reference: every command, part and setting as one Markdown page, written from the code.

It lives with the command line because it describes that too, and may therefore import everything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fedstill.cli.reference.names import completed_names
from fedstill.cli.reference.page import reference_page
from fedstill.cli.reference.records import schema_text
from fedstill.core.errors import InputError
from fedstill.core.files import writable_folder, write_atomically
from fedstill.core.plugins import use_plugins

__all__ = ["completed_names", "names_text", "reference_page", "schema_text", "write_reference"]


def write_reference(out: Path | None, names: Path | None, records: Path | None, plugins: Sequence[Path]) -> None:
    """Write the page, or print it, and the files that are named: names that shells complete, schema of records."""
    use_plugins(plugins)
    for path in (out, names, records):
        if path is not None and path.is_dir():
            raise InputError(f"{path} is a folder: name a file in it")
    for path, text in ((names, names_text), (records, schema_text)):
        if path is not None:
            writable_folder(path.parent)
            write_atomically(path, text().encode())
    if out is None:
        sys.stdout.write(reference_page())
        return
    writable_folder(out.parent)
    write_atomically(out, reference_page().encode())


def names_text() -> str:
    return json.dumps(completed_names(), indent=1, ensure_ascii=False) + "\n"
