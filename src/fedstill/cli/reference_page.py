"""The text of the reference: every command, everything that can be chosen by name, and every setting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import Parameter, signature
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from fedstill.audit.conditions import TOPICS
from fedstill.cli.app import EXIT_CODES, app
from fedstill.cli.extensions import documented_settings
from fedstill.cli.reference import anchor, code, commands, described, link, table
from fedstill.cli.reference_records import record_sections_of_page
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings
from fedstill.data.bundle import datasets
from fedstill.data.file_sources import FromFiles
from fedstill.engines import engines
from fedstill.models import models
from fedstill.runtime.experiment import PARTS, Choice, Experiment, experiment_class, settings_of
from fedstill.runtime.recipes import recipe_layers, recipe_names
from fedstill.studies.results_table import metrics

ENVIRONMENT = {
    "FEDSTILL_DATA": "the folder in which data sets are looked for, where `--data-root` is not given",
    "FEDSTILL_CACHE": "the folder for clouds that were sampled from meshes, and rooms that were made",
    "FEDSTILL_LOG_LEVEL": "the level of log records, where `--log-level` is not given",
    "FEDSTILL_LOG_FILE": "the file for log records, where `--log-file` is not given",
    "NUMBA_CACHE_DIR": "the folder for compiled kernels, where they cannot lie beside the package",
    "OMP_NUM_THREADS": "threads of numerical libraries; 1 is best: runs use one thread, and cores are used by workers",
    "RAY_ADDRESS": "the Ray cluster of the engine `flower-ray`; else one is started on this machine",
}
_HEAD = """# Reference

Every command, everything that can be chosen by name, and every setting. This page is written from the code, with
`fedstill reference --out docs/reference.md --names src/fedstill/cli/names.json --records docs/records.schema.json`; a
test compares the two."""
_SETTINGS = """\
How settings are written: on the command line with `--set section.name=value`, or `--set name=value` where only one
section has that name; for a part also as `part:name=value,name=value`, e.g. `--partition dirichlet:alpha=0.1`; in a
recipe and in Python as sections, e.g. `training: {rate: 0.01}` and `training={"rate": 0.01}`."""
_TITLES = {
    "method": "Methods",
    "partition": "Partitions",
    "augmentation": "Augmentations",
    "attack": "Attacks",
    "mitigation": "Dropout mitigation",
    "objective": "Objectives",
}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def reference_page() -> str:
    """The whole text."""
    typed = list(commands(app))
    codes = table(("code", "when"), [(code(str(number)), when) for number, when in EXIT_CODES.items()])
    variables = table(("variable", "what it is"), [(code(name), what) for name, what in ENVIRONMENT.items()])
    sections: dict[str, str] = {
        "Commands": table(
            ("command", "what it does"), [(link(one.typed), one.help.partition("\n")[0]) for one in typed]
        ),
        **{f"# {one.typed}": described(one) for one in typed},
        "Exit codes": codes,
        "Findings of an audit": _findings(),
        "Environment variables": variables,
        "Settings of an experiment": f"{Experiment.__doc__}\n\n{_SETTINGS}\n\n{settings_table(experiment_class())}",
        **{name: f"{kind.__doc__}\n\n{settings_table(kind)}" for name, kind in _documented().items()},
        **dict(_shared()),
    }
    for section, registry in PARTS.items():
        sections |= dict(_parts(section, registry))
    sections |= {
        "Models": _models(),
        "Data sets": _datasets(),
        "Engines": _named(engines),
        "Recipes": _recipes(study=False),
        "Studies": _recipes(study=True),
        "Metrics of a study": table(
            ("metric", "what it is"),
            [(code(name), _with_unit(what, unit)) for name, (what, unit, _) in metrics().items()],
        ),
        **record_sections_of_page(),
    }
    contents = "\n".join(f"- {link(heading)}" for heading in sections if not heading.startswith("#"))
    body = "\n\n".join(f"##{_spaced(heading)}\n\n{text}" for heading, text in sections.items())
    return f"{_HEAD}\n\n## Contents\n\n{contents}\n\n{body}\n"


def _spaced(heading: str) -> str:
    """Below `## `, deeper headings are marked by further signs."""
    marks = len(heading) - len(heading.lstrip("#"))
    return "#" * marks + " " + heading.lstrip("# ")


def _findings() -> str:
    rows = [(code(name), what) for name, what in TOPICS.items()]
    return (
        "Names for `fedstill audit --fail-on` (exit code 3 if found), which also takes `serious`, `warning` and `note`:"
        " any finding of that severity or more. [How the audit decides](audit.md) defines each.\n\n"
        f"{table(('finding', 'what it says'), rows)}"
    )


def _with_unit(what: str, unit: str) -> str:
    return f"{what}, {unit}" if unit else what


def _documented() -> dict[str, type[Settings]]:
    """Settings of commands that slices bring, by heading."""
    return {f"Settings of {name}": documented_settings[name] for name in documented_settings}


def _shared() -> Iterator[tuple[str, str]]:
    """Settings classes that an experiment, or some part's settings, are made of."""
    kinds: list[type[Settings]] = []
    holders: list[type[Settings]] = [experiment_class(), *_documented().values()]
    holders += [settings_of(part[name]) for part in PARTS.values() for name in part]
    for holder in holders:
        kinds += [kind for kind in nested(holder) if kind not in kinds]
    for kind in sorted(kinds, key=lambda one: one.__name__):
        yield f"# {heading_of(kind)}", f"{_first_line(kind)}\n\n{settings_table(kind)}"


def _first_line(kind: Any) -> str:
    return str(kind.__doc__).strip().splitlines()[0]


def _parts(section: str, registry: Registry[Any]) -> Iterator[tuple[str, str]]:
    """What can be chosen in a section, and the settings of each part that has some."""
    kinds = {name: settings_of(registry[name]) for name in registry}
    heads = {name: f"{section.capitalize()} {name}" for name, kind in kinds.items() if kind.model_fields}
    rows = [(link(heads[name], code(name)) if name in heads else code(name), registry.summary(name)) for name in kinds]
    flag = f"Chosen as `{section}` in an experiment."
    yield section_title(section), f"{flag}\n\n{table(('name', 'what it is'), rows)}"
    for name, heading in heads.items():
        yield f"# {heading}", f"{registry.summary(name)}\n\n{settings_table(kinds[name])}"


def _named(registry: Registry[Any]) -> str:
    return table(("name", "what it is"), [(code(name), registry.summary(name)) for name in registry])


def _models() -> str:
    lines = "\n".join(f"- `{name}`: {sizes}" for name in models if (sizes := model_sizes(models[name])))
    return f"{_named(models)}\n\nSizes, for `fedstill.models.build_model(name, shape, classes, **sizes)`:\n\n{lines}"


def model_sizes(builder: Any) -> str:
    every = signature(builder).parameters.values()
    return ", ".join(f"{one.name} {one.default:g}" for one in every if one.kind is Parameter.KEYWORD_ONLY)


def _datasets() -> str:
    rows = []
    for name in datasets:
        loader = datasets[name]
        where = loader.get if isinstance(loader, FromFiles) else "built in"
        rows.append((code(name), datasets.summary(name), where))
    own = "Beside these `npz:FILE`, `folder:FOLDER` and names given with `fedstill data add`: see [data.md](data.md)."
    return f"{table(('name', 'what it is', 'where it comes from'), rows)}\n\n{own}"


def _recipes(study: bool) -> str:
    layers = recipe_layers()
    rows = [
        (
            code(name),
            about,
            ", ".join(map(code, layers[name]["presets"])),
            ", ".join(map(code, layers[name]["variants"])),
        )
        for name, about in recipe_names(study=study).items()
    ]
    return table(("name", "what it is", "presets", "variants"), rows)


def anchors(page: str) -> set[str]:
    """Where links within a page can lead."""
    return {anchor(line.lstrip("# ")) for line in page.splitlines() if line.startswith("#")}


SETTING_HEADS = ("setting", "type", "default", "what it is")


def settings_table(kind: type[Settings]) -> str:
    return table(SETTING_HEADS, setting_rows(kind))


def setting_rows(kind: type[Settings]) -> list[tuple[str, str, str, str]]:
    """A row for each setting: name, type with its bounds, default, description."""
    return [
        (code(name), _type(name, field), _default(field), field.description or "") for name, field in fields_of(kind)
    ]


def plain_text(cell: str) -> str:
    """A cell of the page without its markup.

    >>> plain_text("`half` or a part, see [Methods](#methods)")
    'half or a part, see Methods'
    """
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "")


def fields_of(kind: type[Settings]) -> list[tuple[str, FieldInfo]]:
    return list(kind.model_fields.items())


def nested(kind: type[Settings]) -> list[type[Settings]]:
    """The settings classes that its settings are made of, directly or further down, each once."""
    found: list[type[Settings]] = []

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and not get_args(annotation):
            if issubclass(annotation, Settings) and annotation is not Choice and annotation not in found:
                found.append(annotation)
                for _, field in fields_of(annotation):
                    visit(field.annotation)
            return
        for part in get_args(annotation):
            visit(part)

    for _, field in fields_of(kind):
        visit(field.annotation)
    return found


def heading_of(kind: type[Settings]) -> str:
    """How a settings class that is not a part's own is called in the reference."""
    return f"Settings {kind.__name__}"


def _type(name: str, field: FieldInfo) -> str:
    if _is_choice(field.annotation):
        return f"a part, see {link(section_title(name))}"
    return " ".join([spelt(field.annotation), *_bounds(field)])


def section_title(section: str) -> str:
    """The heading under which the parts are listed that an experiment's section chooses from."""
    return _TITLES.get(section, section.capitalize())


def _is_choice(annotation: Any) -> bool:
    return annotation is Choice or Choice in get_args(annotation)


def spelt(annotation: Any) -> str:
    """A type in words.

    >>> spelt(int | None), spelt(Literal["half", "full"]), spelt(dict[str, int]), spelt(tuple[float, ...])
    ('int or none', '`half` or `full`', 'dict of str to int', 'list of float')
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "none"
    if annotation is Ellipsis:
        return "..."
    if origin is Literal:
        return _either([code(str(part)) for part in parts])
    if origin in (Union, UnionType):
        return _either([spelt(part) for part in parts])
    if origin is Annotated:
        return spelt(parts[0])
    if origin is dict or getattr(origin, "__name__", "") == "Mapping":
        return f"dict of {spelt(parts[0])} to {spelt(parts[1])}"
    if origin is tuple and len(parts) == 2 and parts[1] is not Ellipsis:
        return f"pair of {spelt(parts[0])} and {spelt(parts[1])}"
    if origin in (list, tuple):
        return f"list of {spelt(parts[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return link(heading_of(annotation), annotation.__name__)
    return str(getattr(annotation, "__name__", annotation))


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _bounds(field: FieldInfo) -> list[str]:
    found = []
    for rule in field.metadata:
        found += [
            f"{sign} {_number(bound)}"
            for key, sign in _BOUNDS.items()
            if (bound := getattr(rule, key, None)) is not None
        ]
    return found


def _number(value: Any) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int) and value < 2**40
        else f"2^{value.bit_length() - 1}"
        if isinstance(value, int)
        else f"{value:g}"
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, Choice):
        return code(value.name)
    if isinstance(value, Settings):
        return "its defaults"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, list | tuple | dict) and not value:
        return "empty"
    return code(", ".join(map(str, value)) if isinstance(value, list | tuple | dict) else str(value))
