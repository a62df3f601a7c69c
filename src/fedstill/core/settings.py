"""The base of every settings object: frozen, typed, and strict about names it does not know."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable settings of one part; an unknown or mistyped field is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
