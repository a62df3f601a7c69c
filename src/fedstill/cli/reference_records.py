"""The schema of records: as JSON Schema, and as tables for the page."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import models_json_schema

from fedstill.cli.reference import code, table
from fedstill.core.records import (
    RESULTS_FORMAT,
    RUN_FORMAT,
    Record,
    StudyRecord,
    printed_run_class,
    round_record_class,
    run_result_class,
)

_ABOUT = f"""\
What runs and studies leave behind as JSON: format {RUN_FORMAT} of a run's folder (`format` in its `config.json`) and
format {RESULTS_FORMAT} of a results file. In Python they are objects with these fields as attributes, e.g.
`run.journal[0].failures`. Optional parts are absent where there is nothing to record. The same as JSON Schema:
[records.schema.json](records.schema.json)."""


def documented_records() -> dict[str, type[Record]]:
    """The records that files and `--json` are made of, by title."""
    return {
        "Record of a round": round_record_class(),
        "Result of a run": run_result_class(),
        "Run as printed": printed_run_class(),
        "Results file of a study": StudyRecord,
    }


def schema_text() -> str:
    """One JSON Schema whose definitions are all records."""
    kinds = list(documented_records().values())
    _, schema = models_json_schema([(kind, "serialization") for kind in kinds], title="Fedstill records")
    facts = {"run_format": RUN_FORMAT, "results_format": RESULTS_FORMAT}
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **facts, **schema}, indent=1) + "\n"


def record_sections_of_page() -> dict[str, str]:
    """Headings and texts: the outer records, then those that they are made of."""
    definitions: dict[str, Any] = json.loads(schema_text())["$defs"]
    outer = {kind.__name__: title for title, kind in documented_records().items()}
    inner = {name: f"Part {name}" for name in definitions if name not in outer}
    sections = {"Records": _ABOUT}
    for name, title in {**outer, **inner}.items():
        if "properties" in definitions[name]:
            sections[f"# {title}"] = _described(definitions[name])
    return sections


def _described(schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (code(name), "always" if name in required else "optional", str(field.get("description", "")))
        for name, field in schema["properties"].items()
    ]
    about = str(schema.get("description", "")).strip().splitlines()[0]
    return f"{about}\n\n{table(('field', 'present', 'what it is'), rows)}"
