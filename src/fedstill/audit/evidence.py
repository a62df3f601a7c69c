"""What an audit looks at: accuracies by teacher, objective and seed, wherever they come from.

A study's folder, its results file, a single run, and a table made elsewhere are all read into this.
Accuracies are shares (0 to 1); words and points are for those who show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Seed = str


@dataclass(frozen=True)
class Score:
    """One model on the test set; `correct` says of each test sample whether it got it right, where that is known."""

    accuracy: float
    correct: tuple[bool, ...] = ()
    unit: float = field(default=0.0, compare=False)  # of the last digit that is printed; 0: known to all digits
    run: Path | None = field(default=None, compare=False)  # the folder of its run, where that is here


@dataclass(frozen=True)
class RoundFacts:
    """What the journal says of one evaluated round of a teacher's training."""

    round: int
    accuracy: float | None
    finite: bool
    constant: float | None  # share of the most predicted class
    negative_variances: float


@dataclass(frozen=True)
class Teacher:
    """One run that teaches. What is not known of it is None or empty."""

    name: str
    seed: Seed
    score: Score | None  # of the model that taught; None: it gives outputs that are not finite
    which: str = "last"  # of its models
    constant: float | None = None  # share of the class that it predicts most
    accuracies: Mapping[str, float] = field(default_factory=dict)  # of its last, best and selected model
    recalibrated: float | None = None  # accuracy once BatchNorm's statistics are measured anew on the proxy data
    rounds: tuple[RoundFacts, ...] = ()
    ceilings: Mapping[str, float] = field(default_factory=dict)  # masking ceiling by objective, where it has one
    traffic: float | None = None  # MiB from the clients, all rounds
    egress: frozenset[str] = frozenset()  # kinds of what left the clients
    buffers: str | None = None  # how BatchNorm's statistics were merged
    model: str | None = None  # its architecture; None: not known, or several
    guessing: float | None = None  # what its predicted classes would score if they had nothing to do with the samples


@dataclass(frozen=True)
class Student:
    """One student of a teacher; `free` tells whether it was trained without labels."""

    teacher: str
    objective: str
    seed: Seed
    free: bool
    score: Score | None
    missing: str = ""  # why there is no score: "not assessable", or what went wrong
    hard_label_weight: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)  # mean size of each loss term
    curve: tuple[float, ...] = ()  # test accuracy by epoch
    accuracies: Mapping[str, float] = field(default_factory=dict)
    alone: Score | None = None  # the labels-only student that goes with this one, where there are several
    model: str | None = None  # its architecture


@dataclass(frozen=True)
class Evidence:
    """Everything that an audit is made from."""

    name: str
    about: str
    teachers: tuple[Teacher, ...]
    students: tuple[Student, ...]
    alone: Mapping[Seed, Score] = field(default_factory=dict)  # labels-only students: no teacher at all
    class_counts: tuple[int, ...] = ()  # of the test set
    commands: tuple[str, ...] = ()  # that made it
    settings: Mapping[str, str] = field(default_factory=dict)  # what a reader should know: data, models, epochs ...
    test_size: int = 0  # test samples, where only their number is known; 0: see class_counts
    chosen_on_test: tuple[str, ...] = ()  # results that were selected by their test accuracy, as a table says
    edited: tuple[str, ...] = ()  # figures that are not those of the runs that they are said to come from
    precision: float = 0.0  # half a unit of the last digit that accuracies are known to; 0: to all digits
