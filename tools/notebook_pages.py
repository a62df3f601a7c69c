"""A hook of MkDocs: the notebooks in `examples/` become pages of the site, with the outputs that they keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
FOLDER = "notebooks"
PRINTED = " {.text .printed}"  # a block that the style sheet shows as output, below its code


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Called by MkDocs with the pages that it has found."""
    from mkdocs.structure.files import File

    for path in sorted(EXAMPLES.glob("*.ipynb")):
        files.append(File.generated(config, f"{FOLDER}/{path.stem}.md", content=page_of(path)))
    return files


def page_of(path: Path) -> str:
    """A notebook as Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _parts(cell)]
    where = f"*This page is the notebook `examples/{path.name}`; each block shows what it printed.*"
    return "\n\n".join([parts[0], where, *parts[1:]]) + "\n"


def _parts(cell: dict[str, Any]) -> list[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [text]
    printed = "".join(_printed(output) for output in cell["outputs"]).rstrip()
    return [_fenced("python", text), *([_fenced(PRINTED, printed)] if printed else [])]


def _printed(output: dict[str, Any]) -> str:
    """As text, with the end of its last line."""
    text = "".join(output.get("text") or output.get("data", {}).get("text/plain") or [])
    return text if text.endswith("\n") or not text else f"{text}\n"


def _fenced(kind: str, text: str) -> str:
    """A block of code.

    >>> print(_fenced("text", "3"))
    ```text
    3
    ```
    """
    return f"```{kind}\n{text}\n```"
