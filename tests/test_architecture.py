"""The rules of the architecture, read off the source itself."""

from __future__ import annotations

import ast
import re
import runpy
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import fedstill

from .warm import Warm

ROOT = Path(__file__).parents[1]
SOURCE = Path(fedstill.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = [path.relative_to(SOURCE).as_posix() for path in FILES]

# Imports point one way: a package may use itself, `core`, and the packages of the layers below its own.
LAYERS = [
    {"core"},
    {"data", "models", "tracking"},
    {"tasks"},
    {"methods", "participation", "engines"},
    {"distillation"},
    {"runtime"},
    {"studies"},
    {"audit", "export"},
    {"report"},
    {"deploy", "live"},
    {"cli"},
    {"detection", "devices", "queries", "shared_image"},
]
# Research slices may use everything below, but not each other; nothing else imports them.
SLICES = LAYERS[-1]
# These know the core and nothing else.
CORE_ONLY = {"participation", "engines"}
# Facts without behaviour, for everyone.
FREE = {"_version"}
# Modules at the top for programs without our loop: they may use every package, and only the public API names them.
PUBLIC = {"aggregation", "boxes", "flower", "kernels", "losses", "partitions"}
# The public API, which names everything lazily.
FACE = "__init__"
# `python -m fedstill`: nothing but the way to the command line.
DOOR = "__main__"

# What packages are called where they are installed, if not as they are imported.
INSTALLED_AS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
# Imported by name only, where they are needed, or by others: torch's exporter needs onnxscript, a user has the frames,
# and datasets reads with pyarrow, whose releases differ in the numpy that they work with.
UNSEEN = {
    "datasets",
    "dp-accounting",
    "laspy",
    "lazrs",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pandas",
    "pyarrow",
    "pydicom",
}
UNSEEN |= {"tensorboard", "mlflow-skinny", "sqlalchemy", "alembic", "wandb"}


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All of a file's syntax tree; what these tests look for is looked up once for all of them."""
    return list(ast.walk(ast.parse(text_of(path), str(path))))


def package_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_by(path: Path) -> Iterator[str]:
    """The packages of fedstill that a file imports, wherever in the file it does so."""
    package = ["fedstill", *path.relative_to(SOURCE).parent.parts]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            modules = [module] if "." in module else [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            if parts[0] == "fedstill":
                yield parts[1] if len(parts) > 1 else FACE


def allowed_for(package: str) -> set[str]:
    if package in CORE_ONLY:
        return {package, "core"} | FREE
    if package == DOOR:
        return {"cli"}
    below: set[str] = set()
    for layer in LAYERS:
        if package in layer:
            return below | {package} | FREE
        below |= layer
    assert package in FREE | PUBLIC | {FACE}, f"{package} is in no layer: add it to LAYERS where the design puts it"
    return below | FREE | (PUBLIC if package == FACE else set())


def dotted(node: ast.expr) -> str:
    """`np.random.rand` for that attribute chain; what stands before the last call or subscript is cut off."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@cache
def mentions(path: Path) -> list[tuple[str, int]]:
    """Every name and attribute chain in the code (not in strings or comments), with its line."""
    return [(dotted(node), node.lineno) for node in nodes(path) if isinstance(node, ast.Attribute | ast.Name)]


def imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offences(pattern: str, but: set[str] | None = None) -> list[str]:
    """Where code mentions or imports what fully matches a pattern, outside the files excused."""
    rule = re.compile(pattern)
    return [
        f"{name}:{line}: {what}"
        for path, name in zip(FILES, NAMES, strict=True)
        if name not in (but or set())
        for what, line in [*mentions(path), *((module, 0) for module in imports(path))]
        if rule.fullmatch(what)
    ]


@cache
def calls(path: Path) -> list[ast.Call]:
    return [node for node in nodes(path) if isinstance(node, ast.Call)]


def test_there_is_something_to_look_at() -> None:
    assert {"core/fit.py", "core/streams.py", "engines/workers.py", "methods/fedavg.py", "cli/app.py"} <= set(NAMES)


def test_imports_point_one_way() -> None:
    astray = {
        name: set(imported_by(path)) - allowed_for(package_of(path)) for path, name in zip(FILES, NAMES, strict=True)
    }
    assert {name: sorted(packages) for name, packages in astray.items() if packages} == {}


def test_the_import_rule_itself() -> None:
    assert allowed_for("core") == {"core", "_version"}
    assert allowed_for("engines") == {"engines", "core", "_version"}
    assert "engines" not in allowed_for("methods") | allowed_for("participation")
    assert "participation" not in allowed_for("methods")
    assert "models" not in allowed_for("data")
    assert {"methods", "participation", "engines", "tasks"} <= allowed_for("runtime")
    assert not SLICES & (allowed_for("cli") | allowed_for("report") | allowed_for("runtime"))
    assert {"cli", "report", "runtime"} <= allowed_for("queries")
    assert SLICES & allowed_for("queries") == {"queries"}
    assert not PUBLIC & (allowed_for("cli") | allowed_for("queries") | allowed_for("losses"))
    assert {"core", "methods", "detection"} <= allowed_for("aggregation")
    assert "methods" in set(imported_by(SOURCE / "runtime" / "experiment.py"))
    assert "core" in set(imported_by(SOURCE / "engines" / "workers.py"))


def test_the_document_has_these_packages_and_this_direction() -> None:
    document = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = document.partition("## Packages\n")[2].partition("\n## ")[0]
    packages = re.findall(r"^(\w+)/  ", section.split("```")[1], re.MULTILINE)
    assert sorted(packages) == sorted(set().union(*LAYERS))
    assert sorted(packages) == sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file())
    assert sorted(re.findall(r"^(\w+)\.py  ", section.split("```")[1], re.MULTILINE)) == sorted(PUBLIC)
    assert sorted(PUBLIC) == sorted(path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("_"))
    assert set(fedstill._MODULES) == PUBLIC
    line = re.search(r"`(core ←[^`]*)`", section)
    assert line is not None
    assert [set(re.findall(r"\w+", layer)) for layer in line[1].split("←")] == LAYERS


@pytest.mark.parametrize("missing", [*sorted(SLICES), "none"])
def test_everything_else_works_without_a_slice(missing: str, tmp_path: Path, foreign: Warm) -> None:
    """In a process of its own, in which the slice cannot be imported."""
    done = foreign.python(f"missing = {missing!r}\n{WITHOUT}", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "page.html").is_file()


WITHOUT = """
import contextlib, io, sys
assert "fedstill" not in sys.modules
sys.modules[f"fedstill.{missing}"] = None
from fedstill.cli import main
from fedstill.core.slices import slices
assert len(slices()) == (4 if missing == "none" else 3), slices()

def typed(*words):
    sys.argv, out = ["fedstill", *words], io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            main()
    except SystemExit as end:
        assert not end.code, words
    return out.getvalue()

commands = {"detection": "detect", "devices": "fleet", "queries": "query", "shared_image": "patches"}
for slice, command in commands.items():
    assert (f"  {command} " in typed("--help")) == (slice != missing), command
methods = {"detection": "fed3d", "devices": "fedgkt", "queries": "qkt", "shared_image": "feddf"}
for slice, method in methods.items():
    assert (method in typed("list", "methods").split()) == (slice != missing), method
tiny = ("--model", "mlp", "--clients", "2", "--rounds", "1", "--set", "epochs=1", "--quiet")
typed("run", "fedavg", *tiny)
typed("show", next(iter(__import__("pathlib").Path("runs").iterdir())).name)
typed("report", "runs", "--out", "page.html")
"""


def used_twice(names: Iterable[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def test_a_name_means_one_thing() -> None:
    """Two modules or two public classes of one name would have to be told apart by every reader."""
    tools = runpy.run_path(str(ROOT / "tools" / "architecture.py"))
    by_design = tools["BY_DESIGN"]
    classes = [node.name for path in FILES for node in nodes(path) if isinstance(node, ast.ClassDef)]
    classes_by_design = set(tools["CLASSES_BY_DESIGN"])
    assert used_twice(name for name in classes if not name.startswith("_")) == classes_by_design
    assert used_twice(path.stem for path in FILES) == set(by_design), "each name on the list has to be needed there"


def test_core_knows_nothing_of_ray() -> None:
    found = [name for path, name in zip(FILES, NAMES, strict=True) if re.search(r"\bray\b", text_of(path), re.I)]
    assert [name for name in found if name.startswith("core/")] == []


def declared() -> tuple[set[str], set[str]]:
    """The packages that the project says it needs, and those of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for_users = {name: own for name, own in project["optional-dependencies"].items() if name not in ("dev", "docs")}
    extras = [one for own in for_users.values() for one in own]
    needed, optional = (
        {re.split(r"[^\w.-]", one)[0].lower() for one in lines} for lines in (project["dependencies"], extras)
    )
    return needed, optional


def foreign(path: Path) -> set[str]:
    """The packages from elsewhere that a file imports, by the names under which they are installed."""
    modules = {module.split(".")[0] for module in imports(path)} - sys.stdlib_module_names - {"fedstill"}
    return {INSTALLED_AS.get(name, name) for name in modules}


def test_whatever_is_imported_is_declared() -> None:
    needed, optional = declared()
    found = {one for path in FILES for one in foreign(path)}
    assert sorted(found - needed - optional) == []
    assert sorted((needed | optional) - found - UNSEEN) == [], "declared, and imported by nobody"


def test_what_an_extra_brings_is_imported_by_those_who_need_it_alone() -> None:
    needed, optional = declared()
    users = {name for path, name in zip(FILES, NAMES, strict=True) if foreign(path) & (optional - needed)}
    # Simulations of secure aggregation need its cryptography too.
    users.discard("methods/secure/primitives.py")
    assert {name for name in users if not name.startswith(("deploy/", "engines/flower/", "flower.py"))} == set()


def test_no_method_is_more_than_two_levels_below_the_abstract_one() -> None:
    """Shared behaviour is composed; wrappers count as methods too."""
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    }

    def depth(name: str) -> int | None:
        if name == "Method":
            return 0
        above = [found for base in bases.get(name, ()) if base != name and (found := depth(base)) is not None]
        return 1 + max(above) if above else None

    levels = {name: level for name in bases if (level := depth(name)) is not None}
    assert len(levels) > 30
    assert {name: level for name, level in levels.items() if level > 2} == {}


def test_there_is_one_training_loop() -> None:
    steps = [
        f"{name}:{call.lineno}"
        for path, name in zip(FILES, NAMES, strict=True)
        for call in calls(path)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
    ]
    assert len(steps) == 1
    assert steps[0].startswith("core/fit.py:")
    assert sum(text_of(path).count(".backward(") for path in FILES) == 1


def test_gradients_are_taken_in_the_core_only() -> None:
    outside = [name for name in NAMES if not name.startswith("core/")]
    found = [
        hit for hit in offences(r"(.*\.)?autograd\.(grad|backward)|torch\.func\..*") if hit.split(":")[0] in outside
    ]
    assert found == []


def test_seeds_are_set_nowhere_but_in_streams() -> None:
    pattern = r"(torch\.)?(.*\.)?(manual_seed|manual_seed_all|seed_all|initial_seed)|torch\.(seed|set_rng_state)"
    assert offences(pattern, but={"core/streams.py"}) == []


def test_numpys_randomness_comes_from_streams_alone() -> None:
    """Types may be named anywhere; whatever draws or makes a generator may not."""
    pattern = r"(np|numpy)\.random\.(?!Generator$|BitGenerator$|Philox$)\w+"
    # The first reads the state of generators; the second seeds them for code of the user's own, and puts them back.
    assert offences(pattern, but={"core/content.py", "core/global_generators.py"}) == []
    path = FILES[NAMES.index("core/global_generators.py")]
    assert {dotted(call.func) for call in calls(path) if re.match(r"(np\.)?random\.", dotted(call.func))} == {
        *(f"np.random.{name}" for name in ("get_state", "set_state", "seed")),
        *(f"random.{name}" for name in ("getstate", "setstate", "seed")),
    }
    makers = {
        name
        for path, name in zip(FILES, NAMES, strict=True)
        for call in calls(path)
        if re.fullmatch(r"(np|numpy)\.random\.(Philox|Generator)", dotted(call.func))
    }
    assert makers == {"core/streams.py"}


def test_pythons_own_randomness_is_not_used() -> None:
    pattern = r"random(\..*)?|secrets(\..*)?|uuid\.uuid4|os\.urandom"
    # Privacy's noise on a real site must not be repeatable by anybody, nor the salt of what is sent there; and two
    # processes must not meet in one temporary folder. A site's process has a token that nobody can guess, and sites
    # whose connections broke at once must not all come back at once.
    # Nobody may guess the token of a live page.
    # An identity that no other run has must not be repeatable either, and content.py reads the state of generators.
    drawing = {"core/noise.py", "engines/flower/encoding.py", "engines/scratch.py", "core/own_parts.py"}
    drawing |= {"deploy/site.py", "engines/flower/correspondence.py", "live/page_access.py"}
    # What global_generators.py may call is said above.
    assert offences(pattern, but={*drawing, "core/content.py", "core/global_generators.py"}) == []


def test_torchs_global_generator_is_handled_in_the_core_only() -> None:
    found = offences(r"(torch\.)?(random\.)?(default_generator|get_rng_state|fork_rng)(\..*)?")
    assert [hit for hit in found if not hit.startswith("core/")] == []
    assert {hit.split(":")[0] for hit in found} == {"core/streams.py", "core/fit.py"}


def test_nothing_draws_from_torchs_global_generator() -> None:
    """Layers do, when they are made and in Dropout, inside a scope; code that draws by itself uses a stream."""
    drawing = re.compile(r"torch\.(rand|randn|randint|randperm|normal|bernoulli|multinomial|poisson)(_like)?")
    found = [
        f"{name}:{call.lineno}"
        for path, name in zip(FILES, NAMES, strict=True)
        for call in calls(path)
        if drawing.fullmatch(dotted(call.func)) and "generator" not in {keyword.arg for keyword in call.keywords}
    ]
    assert found == []
    assert offences(r"(.*\.)?DataLoader|(.*\.)?random_split") == []


def test_pickles_are_read_in_three_places_only() -> None:
    """Two of them between a process and the workers that it started."""
    reading = r"(pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve)\.(load|loads|Unpickler|open)|torch\.load"
    found = {hit.split(":")[0] for hit in offences(reading)}
    assert found == {"engines/workers.py", "core/own_parts.py", "data/readers/unpickle.py"}
    assert offences(r"pickle\.loads?", but={"engines/workers.py", "core/own_parts.py"}) == []


def test_nothing_is_loaded_that_could_run_code() -> None:
    unsafe = {("weights_only", False), ("allow_pickle", True), ("trust_remote_code", True), ("shell", True)}
    found = [
        f"{name}:{call.lineno}: {keyword.arg}"
        for path, name in zip(FILES, NAMES, strict=True)
        for call in calls(path)
        for keyword in call.keywords
        if isinstance(keyword.value, ast.Constant) and (keyword.arg, keyword.value.value) in unsafe
    ]
    assert found == []
    assert offences(r"yaml\.(load|load_all|unsafe_load|full_load|Loader|UnsafeLoader|FullLoader)|eval|os\.system") == []


def test_a_file_can_be_held_in_the_head() -> None:
    lengths = {name: len(text_of(path).splitlines()) for path, name in zip(FILES, NAMES, strict=True)}
    assert {name: lines for name, lines in lengths.items() if lines >= 400} == {}


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    machine = re.compile(r"""(?<![\w.}])/(root|home|work|Users|mnt)(/|\b)""")
    found = [
        f"{name}: {line}"
        for path, name in zip(FILES, NAMES, strict=True)
        for line in text_of(path).splitlines()
        if machine.search(line)
    ]
    assert found == []


def test_no_loose_ends() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [name for path, name in zip(FILES, NAMES, strict=True) if marks.search(text_of(path))] == []
