"""What someone's own checks may fail on."""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.audit.verdicts import SEVERITIES, Audit
from fedstill.core.errors import InputError, did_you_mean

TOPICS = {  # by name of a finding, what it says
    "edited": "figures are not those of the runs",
    "stale": "parts have another behaviour version today",
    "impossible-accuracy": "accuracies that no number of test samples gives (GRIM test)",
    "copied-control": "label-free controls are copies of the labelled students",
    "copied-teacher": "students' accuracies are those of their teachers",
    "duplicate-teachers": "two teachers are one",
    "duplicate-objectives": "two objectives are one",
    "identical-seeds": "two seeds are one run",
    "one-checkpoint": "all seeds share one teacher",
    "masked": "labels hide what a teacher is worth",
    "flat-students": "students hardly depend on their teachers",
    "recovery": "students far above teachers that do not explain them",
    "labels-alone": "students without a gain over labels alone",
    "harmful-teacher": "students worse than with labels alone",
    "leaderboard": "students of teachers at chance lead the ranking",
    "label-leak": "label-free students above their teachers",
    "stuck-student": "students at chance despite their labels",
    "constant-student": "students that predict one class",
    "outvoted-labels": "teachers so confident that labels cannot mask them",
    "no-control": "no label-free control",
    "not-assessable": "objectives without a label-free form",
    "missing": "results or seeds that are not there",
    "unstable": "single seeds far from the others",
    "non-finite-teacher": "outputs of a teacher are not finite",
    "constant-teacher": "a teacher predicts one class",
    "below-chance-teacher": "a teacher is worse than guessing",
    "chance-teacher": "a teacher is no better than the most frequent class",
    "stale-teacher": "a teacher's BatchNorm statistics do not fit its weights",
    "non-finite-rounds": "rounds with models that are not finite",
    "constant-rounds": "rounds in which one class is predicted",
    "chosen-on-test-data": "models were selected on the test data",
    "egress-inputs": "inputs left the clients",
    "egress-labels": "labels left the clients",
    "egress-features": "features left the clients",
    "narrow-teachers": "teachers hardly differ",
    "leverage": "a correlation rests on one teacher",
    "noise-teachers": "the best teacher cannot be told from the second",
    "noise-objectives": "the best objective cannot be told from the second",
    "one-seed-teachers": "the ranking of teachers rests on one seed",
    "one-seed-objectives": "the ranking of objectives rests on one seed",
    "idle-term": "a loss term is too small to matter",
    "no-class-counts": "the chance level is not known",
}


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
