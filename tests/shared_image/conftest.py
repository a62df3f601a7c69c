"""Fixtures that this package's tests share with those of other packages."""

from __future__ import annotations

from ..cli.conftest import call, succeed  # noqa: F401
from ..data.conftest import cache, write_box, write_cloud  # noqa: F401
from ..report.conftest import make_run  # noqa: F401
from ..studies.conftest import recipe, written  # noqa: F401
