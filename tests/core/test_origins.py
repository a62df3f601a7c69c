"""Where modules come from: the installed distributions, by the packages that they bring."""

from __future__ import annotations

from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

from fedstill.core import origins


def test_every_installed_package_has_the_distributions_that_python_finds() -> None:
    theirs = packages_distributions()
    assert {"torch", "numpy", "pytest"} <= theirs.keys()
    ours = {top: origins._names(top) for top in origins._distributions()}
    assert ours == {top: sorted(set(names)) for top, names in theirs.items()}
    assert origins.versions("torch") == (f"torch {distribution('torch').version}",)
    assert origins.versions("no_such_package") == ()


@pytest.mark.parametrize("record", ['"one, two/__init__.py",,\nplain.py,,\n', None], ids=["quoted", "none"])
def test_records_that_need_reading_and_distributions_without_one(
    record: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    if record is not None:
        (info / "RECORD").write_text(record)
    for file in ("one, two/__init__.py", "plain.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    origins._distributions.cache_clear()
    try:
        ours = {top for top, found in origins._distributions().items() if "odd" in {one.name for one in found}}
    finally:
        origins._distributions.cache_clear()
    assert ours == {top for top, names in packages_distributions().items() if "odd" in names}
    assert ("plain" in ours) == (record is not None)
