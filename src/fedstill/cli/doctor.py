"""`fedstill doctor`: what is right and wrong with an installation, as lines to act on.

Nothing on disk is changed, but that numba makes its cache folder, empty, where there is none. The speed of kernels is
judged by a ratio that is measured on the spot, compiled against plain torch on the same cloud with one thread, so that
it means the same on every machine.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import typer

from fedstill._version import __version__
from fedstill.cli.options import Json, Out, Root
from fedstill.cli.screen import console, print_json
from fedstill.core.errors import InputError
from fedstill.core.files import size_on_disk
from fedstill.core.numbers import count, size
from fedstill.core.origins import GROUP
from fedstill.core.plugins import load_entry_points

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from packaging.requirements import Requirement

State = Literal["ok", "look", "problem"]
BROKEN = 1  # exit code: something must be mended
_STYLES = {"ok": "green", "look": "yellow", "problem": "bold red"}
_SHOWN = ("torch", "numpy", "numba")
_THREADS, _KERNEL_CACHE = "OMP_NUM_THREADS", "NUMBA_CACHE_DIR"
CLOUDS, POINTS, SAMPLES, TIMES = 8, 2048, 256, 3
# 13 to 22 on the machine on which this was written; 5 allows for others, which is a guess.
EXPECTED = 5.0
SCARCE, NONE_LEFT = 2**30, 64 * 2**20  # bytes: a study of small models, and one checkpoint of a large one
# By extra: its packages, and what it is for. A test holds this against the project's own list.
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "export": (("onnx", "onnxscript", "onnxruntime"), "files for devices (`fedstill export` to .onnx) and their speed"),
    "flower": (("flwr", "cryptography", "httpx", "uvicorn"), "a federation across machines (`fedstill deploy`)"),
    "ray": (("ray",), "studies on many machines (`--executor ray`), and with flower the engine flower-ray"),
    "privacy": (("dp-accounting",), "how much privacy a run has spent"),
    "secure": (("cryptography",), "secure aggregation in simulations; flower has it for deployments"),
    "pandas": (("pandas",), "data frames as data, and histories and comparisons of runs as such"),
    "datasets": (("datasets", "pyarrow"), "data sets of Hugging Face as data"),
    "dicom": (("pydicom",), "DICOM files as images"),
    "las": (("laspy", "lazrs"), "compressed laser scans (.laz)"),
    "tensorboard": (("tensorboard",), "runs as event files (`--track tensorboard`)"),
    "mlflow": (("mlflow-skinny", "sqlalchemy", "alembic"), "runs in an MLflow store (`--track mlflow`)"),
    "wandb": (("wandb",), "runs in Weights & Biases (`--track wandb`)"),
}


@dataclass(frozen=True)
class Check:
    """Something that was looked at: as it should be, worth a look, or broken; and then what to do about it."""

    topic: str
    state: State
    says: str
    advice: str = ""


def doctor(out: Out = Path("runs"), data_root: Root = None, json: Json = False) -> None:
    """Check this installation and suggest remedies."""
    findings = check_up(out, data_root)
    problems = sum(one.state == "problem" for one in findings)
    if json:
        print_json({"ok": not problems, "findings": [asdict(one) for one in findings]})
    else:
        for one in findings:
            _show(one)
        looks = sum(one.state == "look" for one in findings)
        verdict = count(problems, "problem") if problems else "nothing is broken"
        console.print(f"\n{verdict}{f', {looks} worth a look' if looks else ''}")
    if problems:
        raise typer.Exit(BROKEN)


def _show(one: Check) -> None:
    console.print(f"{one.state:8}", style=_STYLES[one.state], end="")
    console.print(f"{one.topic}: {one.says}", soft_wrap=True)
    if one.advice:
        console.print(f"{'':8}→ {one.advice}", soft_wrap=True)


def check_up(out: Path, data_root: Path | None = None) -> list[Check]:
    """Everything there is to say, topic by topic; `out` is the folder that holds the runs, or would."""
    return [
        *look_at_versions(),
        *look_at_plugins(),
        *look_at_threads(),
        *look_at_kernels(),
        *look_at_data(data_root),
        *look_at_disk(out),
        *look_at_extras(),
    ]


def look_at_versions() -> Iterator[Check]:
    from fedstill.runtime.experiment import BEHAVIOUR

    shown = ", ".join(f"{name} {found}" for name in _SHOWN if (found := installed(name)) is not None)
    yield Check(
        "versions",
        "ok",
        f"fedstill {__version__}, behaviour {BEHAVIOUR}, python {platform.python_version()}, {shown}",
    )
    for requirement in needed():
        found, advice = installed(requirement.name), f"pip install '{requirement}'"
        if found is None:
            yield Check("versions", "problem", f"{requirement.name} is missing", advice)
        elif not requirement.specifier.contains(found, prereleases=True):
            found_and_needed = f"{requirement.name} is {found}, and fedstill needs {requirement.specifier}"
            yield Check("versions", "problem", found_and_needed, advice)


def look_at_plugins() -> Iterator[Check]:
    """Installed packages that bring parts of their own: one that does not load stops every command."""
    try:
        load_entry_points()
    except InputError as error:
        yield Check("plugins", "problem", str(error), f"mend or uninstall the package that announces {GROUP}")


def installed(name: str) -> str | None:
    """The version of a package, or nothing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def needed() -> Iterator[Requirement]:
    """What fedstill cannot do without."""
    from packaging.requirements import Requirement

    try:
        listed = requires("fedstill") or []
    except PackageNotFoundError:  # run from a folder, without being installed
        return
    for requirement in map(Requirement, listed):
        if requirement.marker is None:  # packages of the extras have one
            yield requirement


def look_at_threads() -> Iterator[Check]:
    """Bits are promised for one thread, and runs use one; other settings may slow them down."""
    import torch

    from fedstill.core.hardware import usable_cores

    cores, named, used = usable_cores(), os.environ.get(_THREADS, "").strip(), torch.get_num_threads()
    advice = f"set {_THREADS}=1, and use more cores with --workers"
    if named and not (named.isdecimal() and int(named) > 0):
        yield Check("threads", "look", f"{_THREADS} is {named!r}, which is no number of threads", advice)
    elif named and int(named) > cores:
        yield Check(
            "threads",
            "look",
            f"{_THREADS} is {named} on {count(cores, 'usable core')}:"
            " threads that wait for each other are many times slower",
            advice,
        )
    elif used > cores:
        yield Check("threads", "look", f"torch uses {used} threads on {count(cores, 'usable core')}", advice)
    else:
        setting = f"{_THREADS}={named}" if named else f"{_THREADS} is not set"
        has = f"{count(cores, 'usable core')}, torch with {count(used, 'thread')}"
        yield Check("threads", "ok", f"{has}, {setting}; a run uses one")


def look_at_kernels() -> Iterator[Check]:
    try:
        from fedstill.models.kernels import compiled
    except Exception as error:  # numba fails in many ways, and each is a finding
        _log.info("the compiled kernels cannot be loaded", exc_info=True)
        unwritable = "locator" in str(error)
        advice = f"set {_KERNEL_CACHE} to a folder that can be written" if unwritable else "reinstall numba"
        yield Check("kernels", "problem", f"the kernels cannot be loaded: {error}", advice)
        return
    yield _kernel_cache(compiled.farthest_points, Path(compiled.__file__))
    yield _kernel_speed(compiled.farthest_points)


def _kernel_cache(kernel: Any, source: Path) -> Check:
    """Where numba keeps what it compiled. The folder named by NUMBA_CACHE_DIR it leaves aside if it cannot write it."""
    folder = Path(kernel.stats.cache_path)
    named = os.environ.get(_KERNEL_CACHE)
    if named and (trouble := obstacle(Path(named))) is not None:
        return Check(
            "kernels",
            "problem",
            f"{_KERNEL_CACHE} is {named}, which cannot be written ({trouble}); numba uses {folder} instead",
            f"set {_KERNEL_CACHE} to a folder that can be written, or unset it",
        )
    if (trouble := obstacle(folder)) is not None:
        return Check(
            "kernels",
            "problem",
            f"the numba cache {folder} cannot be written ({trouble}): every process compiles all kernels anew",
            f"set {_KERNEL_CACHE} to a folder that can be written",
        )
    age = source.stat().st_mtime
    kept = [file for file in folder.glob(f"{source.stem}.*.nbi") if file.stat().st_mtime >= age]
    state = "warm" if kept else "cold: the first run on clouds compiles for a while"
    return Check("kernels", "ok", f"numba cache in {folder}, {state}")


def _kernel_speed(kernel: Any) -> Check:
    """Farthest point sampling, compiled anew in memory, so that no cache is written."""
    import torch

    from fedstill.core.hardware import one_thread
    from fedstill.core.jit import compiled
    from fedstill.core.streams import Streams
    from fedstill.models.kernels import plain

    fresh: Any = compiled(kept=False)(kernel.py_func)
    cloud = torch.from_numpy(Streams(0).draw("check-up").random((CLOUDS, POINTS, 3), dtype="float32"))
    array = cloud.numpy()
    with one_thread():
        same = torch.equal(torch.from_numpy(fresh(array, SAMPLES)), plain.farthest_points(cloud, SAMPLES))
        times = [
            (_seconds(lambda: fresh(array, SAMPLES)), _seconds(lambda: plain.farthest_points(cloud, SAMPLES)))
            for _ in range(TIMES)  # in turns, so that a busy neighbour disturbs both
        ]
    if not same:
        return Check(
            "kernels",
            "problem",
            "compiled and plain kernels choose different points: results on clouds would be wrong",
            "reinstall numba and numpy in the versions that pip chooses",
        )
    ratio = min(slow for _, slow in times) / min(quick for quick, _ in times)
    text = f"farthest point sampling is {ratio:.1f} times as fast as in plain torch (at least {EXPECTED:g} expected)"
    if ratio < EXPECTED:
        busy = "look whether the machine is busy and ask again; else reinstall numba, and see whether NUMBA_DISABLE_JIT"
        return Check("kernels", "look", text, f"{busy} or NUMBA_OPT is set")
    return Check("kernels", "ok", f"{text}, with the same points")


def _seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def look_at_data(given: Path | None = None) -> Iterator[Check]:
    from fedstill.data.catalogue import available
    from fedstill.data.roots import VARIABLE, data_root, recorded

    root = data_root(given)
    source = "--data-root" if given is not None else VARIABLE if os.environ.get(VARIABLE) else "your data folder"
    if not root.is_dir():
        if source != "your data folder":
            advice = "create it, or name the folder you mean"
            yield Check("data", "problem", f"{source} names {root}, which is no folder", advice)
        else:
            yield Check("data", "ok", f"nothing of your own in {root} yet: `fedstill data add` changes that")
    try:
        entries = recorded(root)
        every = available(None if given is None or not root.is_dir() else given)
    except InputError as error:
        yield Check("data", "problem", str(error), "`fedstill data add` records data sets anew")
        return
    inside = [one.name for one in every if one.where == "built in"]
    found = [one.name for one in every if one.found and one.where != "built in"]
    yield Check("data", "ok", f"built in: {', '.join(inside)}")
    if root.is_dir():
        missing = sum(not one.found for one in every)
        yield Check(
            "data",
            "ok",
            f"in {root}, by {source}: {', '.join(found) or 'none'}; {missing} more are known: see `fedstill data list`",
        )
    for one in every:
        if one.name in entries and not one.found:
            yield Check(
                "data", "look", f"{one.name} is recorded, but {one.where}", f"`fedstill data add {one.name} PATH`"
            )


def look_at_disk(out: Path) -> Iterator[Check]:
    from fedstill.data.readers.cache import VARIABLE, cache_folder

    number = len(list(out.glob("*/config.json"))) if out.is_dir() else 0
    held = f"{count(number, 'run')}, " if number else ""
    free = "free some space (`fedstill clean` shows what runs take), or choose another folder with --out"
    yield _room("runs", out, held, "choose another folder with --out", free)
    cache = cache_folder()
    taken = size_on_disk([cache])
    elsewhere = f"choose another folder with {VARIABLE}"
    yield _room("cache of clouds", cache, f"{size(taken)}, " if taken else "", elsewhere, elsewhere)


def _room(what: str, folder: Path, held: str, elsewhere: str, more_room: str) -> Check:
    trouble = obstacle(folder)
    if trouble is not None:
        return Check("disk", "problem", f"{what} in {folder}: cannot be written ({trouble})", elsewhere)
    left = free_bytes(folder)
    text = f"{what} in {folder}: {held}{size(left)} free"
    if left < SCARCE:
        return Check("disk", "problem" if left < NONE_LEFT else "look", text, more_room)
    return Check("disk", "ok", text)


def look_at_extras() -> Iterator[Check]:
    here = []
    for extra, (packages, gives) in EXTRAS.items():
        missing = [name for name in packages if installed(name) is None]
        if missing:
            yield Check(
                "extras",
                "look",
                f"{extra} is not installed ({', '.join(missing)}): it gives {gives}",
                f"if you want that: pip install 'fedstill[{extra}]'",
            )
        else:
            here.append(f"{extra} ({', '.join(f'{name} {installed(name)}' for name in packages)})")
    if here:
        yield Check("extras", "ok", f"installed: {', '.join(here)}")


def standing(path: Path) -> Path:
    """The path itself, or the nearest above it that exists."""
    path = path.expanduser().absolute()
    return next(one for one in (path, *path.parents) if os.path.lexists(one))


def obstacle(folder: Path) -> str | None:
    """Why nothing could be written there; nothing where it could, also if the folder would have to be made."""
    place = standing(folder)
    if not place.is_dir():
        return f"{place} is no folder"
    try:
        with tempfile.TemporaryFile(dir=place):  # has no name, or loses it at once
            return None
    except OSError as error:
        return f"{place}: {error.strerror or error}"


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(standing(folder)).free
