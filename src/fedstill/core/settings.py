"""The base of every settings object: frozen, typed, and strict about names it does not know."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable settings of one part; an unknown or mistyped field is an error that names it."""

    # Settings that came later count for a run's identity only where they are not as usual: runs from before are found.
    later: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
