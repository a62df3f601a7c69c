"""Fixtures that this package's tests share with those of other packages."""

from __future__ import annotations

from ..cli.conftest import call, succeed  # noqa: F401
from ..data.conftest import cache, few_rooms, rooms, turned_rooms, write_box, write_cloud  # noqa: F401
from ..distillation.conftest import identity, make_adapters, make_output, squares  # noqa: F401
from ..report.conftest import make_run  # noqa: F401
from ..studies.conftest import recipe, written  # noqa: F401
