"""What a check-up finds: one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "look", "problem"]


@dataclass(frozen=True)
class Finding:
    """Something that was looked at: as it should be, worth a look, or broken; and then what to do about it."""

    topic: str
    state: State
    says: str
    advice: str = ""
