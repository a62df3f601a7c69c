"""The page as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, signature
from typing import Any

from fedstill.cli.extensions import documented_settings
from fedstill.cli.reference.commands import commands, described
from fedstill.cli.reference.markdown import anchor, code, link, table
from fedstill.cli.reference.records import record_sections_of_page
from fedstill.cli.reference.settings import heading_of, nested, section_title, settings_table
from fedstill.core.registry import Registry
from fedstill.core.settings import Settings
from fedstill.data.bundle import datasets
from fedstill.data.files import FromFiles
from fedstill.engines import engines
from fedstill.models import models
from fedstill.runtime.experiment import PARTS, Experiment, experiment_class, settings_of
from fedstill.runtime.recipes import recipe_layers, recipe_names
from fedstill.studies.table import metrics

ENVIRONMENT = {
    "FEDSTILL_DATA": "the folder in which data sets are looked for, where `--data-root` is not given",
    "FEDSTILL_CACHE": "the folder for clouds that were sampled from meshes, and rooms that were made",
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


def reference_page() -> str:
    """The whole text. The command line is imported here, because it imports this to write it."""
    from fedstill.cli.app import EXIT_CODES, app

    typed = list(commands(app))
    codes = table(("code", "when"), [(code(str(number)), when) for number, when in EXIT_CODES.items()])
    variables = table(("variable", "what it is"), [(code(name), what) for name, what in ENVIRONMENT.items()])
    sections: dict[str, str] = {
        "Commands": table(("command", "what it does"), [(link(one.typed), one.help) for one in typed]),
        **{f"# {one.typed}": described(one) for one in typed},
        "Exit codes": codes,
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
    sizes = "\n".join(f"- `{name}`: {told}" for name in models if (told := _sizes(models[name])))
    return f"{_named(models)}\n\nSizes, for `fedstill.models.build_model(name, shape, classes, **sizes)`:\n\n{sizes}"


def _sizes(builder: Any) -> str:
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
