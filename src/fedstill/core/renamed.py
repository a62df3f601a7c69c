"""Names of earlier releases: those of settings are accepted, those of code are refused by what they are called now."""

from __future__ import annotations

from collections.abc import Mapping

from fedstill.core.errors import InputError

# Settings, e.g. the sections of an experiment.
FORMER_SETTINGS = {"cure": "mitigation"}

# Parts of Exchange and Method, for plugins that define them under their names before 0.2.
RENAMED = {
    "merge": "aggregate",
    "least": "min_replies",
    "update": "update_prefix",
    "once": "first_contact_prefix",
    "bulky": "spill_to_disk",
    "also": "extra_models",
    "facts": "metrics",
    "counts": "selectable",
}

# The same for kinds of dropout.
RENAMED_IN_DROPOUT = {"fates": "dropout_events", "fate": "dropout_event", "able": "can_replace"}


def check_renamed(kind: type, renamed: Mapping[str, str]) -> None:
    """Refuse a class that defines something under a name that is no longer called."""
    for old, new in renamed.items():
        if old in vars(kind):
            raise InputError(f"{kind.__name__}.{old} has another name now: rename it to {new}")
