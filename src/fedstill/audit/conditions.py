"""What someone's own checks may fail on."""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.audit.verdicts import SEVERITIES, Audit
from fedstill.core.errors import InputError, did_you_mean

TOPICS = (
    "edited",
    "stale",
    "impossible-accuracy",
    "copied-control",
    "duplicate-teachers",
    "duplicate-objectives",
    "identical-seeds",
    "one-checkpoint",
    "masked",
    "recovery",
    "labels-alone",
    "harmful-teacher",
    "leaderboard",
    "label-leak",
    "stuck-student",
    "constant-student",
    "outvoted-labels",
    "no-control",
    "not-assessable",
    "missing",
    "unstable",
    "non-finite-teacher",
    "constant-teacher",
    "below-chance-teacher",
    "chance-teacher",
    "stale-teacher",
    "non-finite-rounds",
    "constant-rounds",
    "chosen-on-test-data",
    "egress-inputs",
    "egress-labels",
    "egress-features",
    "narrow-teachers",
    "leverage",
    "noise-teachers",
    "noise-objectives",
    "one-seed-teachers",
    "one-seed-objectives",
    "idle-term",
    "no-class-counts",
)


def checked_conditions(names: Sequence[str]) -> tuple[str, ...]:
    """Severities and topics by name; anything else is refused before any work."""
    for name in names:
        if name not in (*TOPICS, *SEVERITIES):
            raise InputError(f"cannot fail on {name!r}: {did_you_mean(name, (*TOPICS, *SEVERITIES))}")
    return tuple(dict.fromkeys(names))


def met(audit: Audit, conditions: Sequence[str]) -> list[str]:
    """The conditions that this audit meets; a severity is met by findings of that weight or more."""
    topics = {finding.topic for finding in audit.findings}
    weights = [SEVERITIES.index(finding.severity) for finding in audit.findings]
    return [
        name
        for name in conditions
        if name in topics or (name in SEVERITIES and any(weight <= SEVERITIES.index(name) for weight in weights))
    ]
