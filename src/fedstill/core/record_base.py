"""What all records have in common."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

Number = int | float  # of which JSON keeps the kind
Metrics = dict[str, Number]


class RecordError(ValueError):
    """Content that is not such a record."""


class Record(BaseModel):
    """Immutable and strict: an unknown or missing field is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    earlier_names: ClassVar[Mapping[str, str]] = {}  # attributes by the keys that records had as mappings

    def to_json(self) -> str:
        """One line of JSON, without optional parts that are absent."""
        return self.model_dump_json(exclude_none=True)

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes, as a mapping."""
        return self.model_dump(mode="json", exclude_none=True)

    def __getitem__(self, key: str) -> Any:
        """Deprecated: records were mappings before 0.2."""
        name = self.earlier_names.get(key, key)
        warnings.warn(f"records have attributes: write .{name} instead of [{key!r}]", DeprecationWarning, stacklevel=2)
        try:
            return attrgetter(name)(self)
        except AttributeError:
            raise KeyError(key) from None
