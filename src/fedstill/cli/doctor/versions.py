"""Versions, and whether what must be there is there."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from fedstill._version import __version__
from fedstill.cli.doctor.finding import Finding
from fedstill.core.errors import InputError
from fedstill.core.plugins import GROUP, load_entry_points
from fedstill.runtime.experiment import BEHAVIOUR

TOPIC = "versions"
_SHOWN = ("torch", "numpy", "numba")


def look_at_versions() -> Iterator[Finding]:
    shown = ", ".join(f"{name} {found}" for name in _SHOWN if (found := installed(name)) is not None)
    yield Finding(
        TOPIC,
        "ok",
        f"fedstill {__version__}, behaviour {BEHAVIOUR}, python {platform.python_version()}, {shown}",
    )
    for requirement in needed():
        found, advice = installed(requirement.name), f"pip install '{requirement}'"
        if found is None:
            yield Finding(TOPIC, "problem", f"{requirement.name} is missing", advice)
        elif not requirement.specifier.contains(found, prereleases=True):
            said = f"{requirement.name} is {found}, and fedstill needs {requirement.specifier}"
            yield Finding(TOPIC, "problem", said, advice)


def look_at_plugins() -> Iterator[Finding]:
    """Installed packages that bring parts of their own: one that does not load stops every command."""
    try:
        load_entry_points()
    except InputError as error:
        yield Finding("plugins", "problem", str(error), f"mend or uninstall the package that announces {GROUP}")


def installed(name: str) -> str | None:
    """The version of a package, or nothing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def needed() -> Iterator[Requirement]:
    """What fedstill cannot do without."""
    try:
        listed = requires("fedstill") or []
    except PackageNotFoundError:  # run from a folder, without being installed
        return
    for requirement in map(Requirement, listed):
        if requirement.marker is None:  # packages of the extras have one
            yield requirement
