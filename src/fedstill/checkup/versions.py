"""Versions, and whether what must be there is there."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from fedstill._version import __version__
from fedstill.checkup.finding import Finding
from fedstill.config import BEHAVIOUR
from fedstill.core.errors import InputError
from fedstill.core.plugins import GROUP, load_entry_points

TOPIC = "versions"
_SHOWN = ("torch", "numpy", "numba")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\s*==\s*([^;,\s]+))?")
_INSTALL = "pip install --force-reinstall fedstill"


def look_at_versions() -> Iterator[Finding]:
    shown = ", ".join(f"{name} {found}" for name in _SHOWN if (found := installed(name)) is not None)
    yield Finding(
        TOPIC,
        "ok",
        f"fedstill {__version__}, behaviour {BEHAVIOUR}, python {platform.python_version()}, {shown}",
    )
    for name, pinned in needed():
        found = installed(name)
        if found is None:
            yield Finding(TOPIC, "problem", f"{name} is missing", _INSTALL)
        elif pinned is not None and found.partition("+")[0] != pinned:
            yield Finding(
                TOPIC,
                "look",
                f"{name} is {found}, and this release was tested with {pinned}: other bits are to be expected",
                f"pip install {name}=={pinned}",
            )


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


def needed() -> Iterator[tuple[str, str | None]]:
    """What fedstill cannot do without, each with the version it is pinned to, if it is."""
    try:
        listed = requires("fedstill") or []
    except PackageNotFoundError:  # run from a folder, without being installed
        return
    for line in listed:
        if "extra ==" not in line and (match := _REQUIREMENT.match(line)) is not None:
            yield match[1], match[2]
