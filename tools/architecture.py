"""Measure the architecture: `python tools/architecture.py` prints the figures of docs/architecture.md as JSON."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TESTS = ROOT / "src" / "fedstill", ROOT / "tests"
# Module names that several packages share on purpose, and why.
BY_DESIGN = {
    "__init__": "Python's name for a package's own module",
    "registration": "the table of what a slice provides, which `core/slices.py` finds by this name",
    "extensions": "what slices add to a package: one such module in each package that can be extended",
    "report_section": "a slice's part of a report's page",
    "study_figures": "a slice's figures of a run, for studies",
    "distill": "the command, in `cli/`, and the method that it runs",
    "run": "the command, in `cli/`, and the run that it starts",
    "runs": "the command, in `cli/`, and the page about runs",
    "study": "the command, in `cli/`, and the study that it starts",
    "partitions": "the public module, and the one in `data/` that it calls",
}
# The same for classes.
_RULE = "the method, and its server rule for programs without Fedstill's loop, in `aggregation`"
CLASSES_BY_DESIGN = dict.fromkeys(("FedAdagrad", "FedAdam", "FedAvgM", "FedYogi"), _RULE)

ROUND = """
import sys, tempfile
import fedstill
kwargs = dict(data="digits", model="mlp", clients=2, rounds=1, training={"epochs": 1})
fedstill.run("scaffold", out=tempfile.mkdtemp(), **kwargs)  # everything is imported and compiled now
seen = set()
def watch(frame, event, argument):
    if event == "call" and "fedstill" in frame.f_code.co_filename and "/src/" in frame.f_code.co_filename:
        seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))
from fedstill.runtime.run import Attempt
original = Attempt.round
def watched(self):
    sys.setprofile(watch)
    try:
        return original(self)
    finally:
        sys.setprofile(None)
Attempt.round = watched
fedstill.run("scaffold", seed=1, out=tempfile.mkdtemp(), **kwargs)
print(len({file for file, _ in seen}), len(seen))
"""

LOADED = """
import sys
import fedstill.runtime.run
print(sum(name.startswith("fedstill") for name in sys.modules))
"""


def main() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    modules = _used_twice(path.stem for path in files)
    names = _used_twice(node.name for node in classes if not node.name.startswith("_"))
    in_round = _printed(ROUND).split()
    print(
        json.dumps(
            {
                "files": len(files),
                "lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files),
                "files of one SCAFFOLD round": int(in_round[0]),
                "functions of one SCAFFOLD round": int(in_round[1]),
                "modules loaded by the runtime": int(_printed(LOADED)),
                "class names used twice": sorted(set(names) - set(CLASSES_BY_DESIGN)),
                "class names used twice by design": {
                    name: CLASSES_BY_DESIGN[name] for name in names if name in CLASSES_BY_DESIGN
                },
                "module names used twice": sorted(set(modules) - set(BY_DESIGN)),
                "module names used twice by design": {name: BY_DESIGN[name] for name in modules if name in BY_DESIGN},
                "deepest method below Method": _depth(classes),
                "test files that mirror a module": _mirrored(),
            },
            indent=1,
        )
    )


def _used_twice(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


def _printed(script: str) -> str:
    environment = {"PYTHONPATH": str(SOURCE.parent), "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def _depth(classes: list[ast.ClassDef]) -> int:
    """How many classes lie between `Method` and the concrete method furthest below it, that method included."""
    bases = {node.name: [base.id for base in node.bases if isinstance(base, ast.Name)] for node in classes}

    def depth(name: str) -> int:
        if name == "Method":
            return 0
        found = [depth(base) for base in bases.get(name, ()) if base != name]
        return max((1 + one for one in found if one >= 0), default=-1)

    return max(depth(node.name) for node in classes if any(_registers(one) for one in node.decorator_list))


def _registers(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "methods.register"


def _mirrored() -> str:
    """How many test files stand where a module of their name would be."""
    tests = [path for path in TESTS.rglob("test_*.py") if path.parent != TESTS]
    mirrored = [
        path
        for path in tests
        if (SOURCE / path.relative_to(TESTS).parent / f"{path.stem.removeprefix('test_')}.py").is_file()
    ]
    return f"{len(mirrored)} of {len(tests)}"


if __name__ == "__main__":
    main()
