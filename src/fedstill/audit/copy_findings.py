"""Findings about figures that are too much alike: rows, columns, controls and seeds that are one and the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from math import comb, prod

from fedstill.audit.case import Case
from fedstill.audit.evidence import Score, Seed
from fedstill.audit.phrases import named
from fedstill.audit.ties import (
    TELLING,
    ScoreAgreement,
    TrainingNoise,
    agree,
    agreement,
    noise_between_trainings,
    samples_or_least,
    tie_chance,
    variance,
)
from fedstill.audit.verdicts import Finding
from fedstill.core.numbers import capital, count, listed, share

BY_CHANCE = 0.01  # below this, teachers that score the same in all seeds are one checkpoint

Cells = dict[Hashable, Score]
SeedCells = dict[tuple[str, str, bool], Score]  # by teacher, objective, and whether without labels


def copy_findings(case: Case) -> Iterator[Finding]:
    yield from _copied_controls(case)
    yield from _duplicates(case, "teacher", _teacher_cells(case))
    yield from _duplicates(case, "objective", _objective_cells(case))
    seeds = list(_identical_seeds(case))
    yield from seeds
    if not seeds:
        yield from _one_checkpoint(case)


def _copied_controls(case: Case) -> Iterator[Finding]:
    """Controls that are the labelled students, of all objectives together or of single ones."""
    labelled, free = _students(case, free=False), _students(case, free=True)
    groups = {"": labelled} if len(case.book.objectives) > 1 else {}
    for name in case.book.objectives:
        groups[name] = {key: score for key, score in labelled.items() if key[1] == name}
    samples = samples_or_least(case.book)
    found = {
        name: how
        for name, cells in groups.items()
        if (how := agreement(cells, free, TrainingNoise(samples), len(groups)))
    }
    if not found:
        return
    name, how = next(iter(found.items()))
    which = f" of {named([one for one in found if one])}" if "" not in found else ""
    example = next(key for key in groups[name] if key in free and agree(labelled[key], free[key], samples, how.slack))
    yield Finding(
        "serious",
        "copied-control",
        "The label-free controls are copies of the labelled students",
        f"{_told(how)} of students with and without labels{which}; e.g. {example[0]} with {example[1]}, seed"
        f" {example[2]}: {share(labelled[example].accuracy)} and {share(free[example].accuracy)}. Two trainings would"
        " differ.",
        "Nothing can be concluded from these controls: distil without labels again, and report what comes out.",
    )


def _students(case: Case, free: bool) -> dict[tuple[str, str, Seed], Score]:
    """Students that may be compared with a control of their own; one that gives labels no weight is the same."""
    book = case.book
    side = book.free_scores if free else book.labelled_scores
    return {
        (*pair, seed): score
        for pair in book.pairs
        if book.free.get(pair) and book.weight(pair[1]) != 0
        for seed, score in side(pair).items()
        if not book.equals_a_class([score])
    }


def _teacher_cells(case: Case) -> dict[str, list[Cells]]:
    """By teacher: its own accuracies, and these with those of its students."""
    book = case.book
    found: dict[str, list[Cells]] = {}
    for name in dict.fromkeys([*book.teachers, *(teacher for teacher, _ in book.pairs)]):
        own: Cells = {seed: score for seed, score in book.teacher_scores(name).items() if not _is_flat(case, name)}
        taught: Cells = {
            (objective, free, seed): score
            for teacher, objective in book.pairs
            if teacher == name
            for free, side in ((False, book.labelled_scores), (True, book.free_scores))
            for seed, score in side((teacher, objective)).items()
            if not (free and book.own_control((teacher, objective)))
        }
        found[name] = [_informative(case, cells) for cells in ((own, own | taught) if own else (taught,))]
    return found


def _is_flat(case: Case, teacher: str) -> bool:
    """Where the chance level is not known, a teacher that scores the same in all seeds may answer one class."""
    values = {score.accuracy for score in case.book.teacher_scores(teacher).values()}
    return case.book.chance is None and len(values) == 1 and len(case.book.teacher_scores(teacher)) > 1


def _objective_cells(case: Case) -> dict[str, list[Cells]]:
    book = case.book
    found: dict[str, list[Cells]] = {}
    for name in book.objectives:
        pairs = [pair for pair in book.pairs if pair[1] == name]
        labelled: Cells = {(pair[0], seed): one for pair in pairs for seed, one in book.labelled_scores(pair).items()}
        free: Cells = {
            (pair[0], seed): one
            for pair in pairs
            if not book.own_control(pair)
            for seed, one in book.free_scores(pair).items()
        }
        found[name] = [_informative(case, cells) for cells in (labelled, free)]
    return found


def _informative(case: Case, cells: Mapping[Hashable, Score]) -> Cells:
    """Without the accuracies that any model has which answers one class."""
    return {key: score for key, score in cells.items() if not case.book.equals_a_class([score])}


def _duplicates(case: Case, what: str, cells: Mapping[str, Sequence[Cells]]) -> Iterator[Finding]:
    # Students of one teacher and seed may vary together, whatever the objective.
    noise = noise_between_trainings(case.book) if what == "teacher" else TrainingNoise(samples_or_least(case.book))
    pairs = list(combinations(cells, 2))
    found: dict[tuple[str, str], ScoreAgreement] = {}
    for first, second in pairs:
        for here, there in zip(cells[first], cells[second], strict=False):
            how = agreement(here, there, noise, 2 * len(pairs))
            if how is not None:
                found.setdefault((first, second), how)
    if found:
        (first, second), how = next(iter(found.items()))
        yield Finding(
            "serious",
            f"duplicate-{what}s",
            f"Some {what}s are one and the same",
            f"{named([f'{one} and {other}' for one, other in found])}: {_told(how)} of {first} and {second}."
            " Results of two trainings would differ.",
            f"Find out which of them was really run; a ranking or a mean over {what}s counts it twice.",
        )


def _told(how: ScoreAgreement) -> str:
    """How many accuracies agree, and how closely."""
    closely = "exactly" if how.exact else f"to within {count(how.slack, 'test sample')} and rounding"
    return f"{how.agreeing:,} of {how.of:,} accuracies agree {closely}"


def _seed_cells(case: Case) -> dict[Seed, SeedCells]:
    """What was measured with each seed: students, or teachers where there are no students."""
    book = case.book
    found: dict[Seed, SeedCells] = {}
    for pair in book.pairs:
        for free, side in ((False, book.labelled_scores), (True, book.free_scores)):
            if not (free and book.own_control(pair)):
                for seed, score in side(pair).items():
                    found.setdefault(seed, {})[*pair, free] = score
    if not found:
        for name in book.teachers:
            for seed, score in book.teacher_scores(name).items():
                found.setdefault(seed, {})[name, "", False] = score
    return {
        seed: {key: score for key, score in cells.items() if not book.equals_a_class([score])}
        for seed, cells in found.items()
    }


def _identical_seeds(case: Case) -> Iterator[Finding]:
    """Seeds that are one run, in all results or in those of single teachers."""
    cells = _seed_cells(case)
    if len(cells) < 2:
        return
    teachers = list(dict.fromkeys(key[0] for scores in cells.values() for key in scores))
    groups = [*combinations(cells, 2), *([tuple(cells)] if len(cells) > 2 else [])]
    number = len(groups) * (1 + len(teachers))
    noise = noise_between_trainings(case.book)
    found = {_seeds_named(group): how for group in groups if (how := _one_run(cells, group, noise, number))}
    if not found:
        for teacher in teachers:
            mine = {seed: _of_teacher(scores, teacher) for seed, scores in cells.items()}
            for group in groups:
                if how := _one_run(mine, group, noise, number):
                    found[f"{_seeds_named(group)} of {teacher}"] = how
    if found:
        yield Finding(
            "serious",
            "identical-seeds",
            "Some seeds are one and the same run",
            f"{capital(named(list(found)))}. {_told(next(iter(found.values())))} in the first of these; seeds that were"
            " trained apart would differ.",
            "Count them once: deviations and intervals over seeds are too small. Check that the seed reaches the"
            " training.",
        )


def _seeds_named(group: Sequence[Seed]) -> str:
    return f"seeds {listed(list(group))}"


def _one_run(
    cells: Mapping[Seed, SeedCells], group: Sequence[Seed], noise: TrainingNoise, comparisons: int
) -> ScoreAgreement | None:
    """Whether all of these seeds agree exactly with the first of them."""
    first, *others = group
    ours: Cells = {(seed, key): score for seed in others for key, score in cells[first].items()}
    theirs: Cells = {(seed, key): score for seed in others for key, score in cells[seed].items()}
    how = agreement(ours, theirs, noise, comparisons)
    return how if how is not None and how.exact else None


def _of_teacher(cells: SeedCells, teacher: str) -> SeedCells:
    return {key: score for key, score in cells.items() if key[0] == teacher}


def _one_checkpoint(case: Case) -> Iterator[Finding]:
    """Teachers whose accuracy is the same in every seed, while their students differ."""
    book, noise = case.book, TrainingNoise(samples_or_least(case.book))
    fixed: dict[str, float] = {}
    for name in book.teachers:
        scores = list(book.teacher_scores(name).values())
        if len(scores) < 2 or _is_constant(case, name):
            continue
        first, *others = scores
        if variance(first, first, noise) >= TELLING and all(agree(first, one, noise.samples, 0) for one in others):
            fixed[name] = prod([tie_chance(first, one, noise, 0) for one in others])
    students = [book.labelled_scores(pair).values() for pair in book.pairs]
    differ = any(len({score.accuracy for score in cell}) > 1 for cell in students)
    if fixed and differ and prod(fixed.values()) * comb(len(book.teachers), len(fixed)) < BY_CHANCE:
        first_name = next(iter(fixed))
        accuracy = share(next(iter(book.teacher_scores(first_name).values())).accuracy)
        seeds = listed(list(book.teacher_scores(first_name)))
        yield Finding(
            "warning",
            "one-checkpoint",
            "All seeds share one teacher checkpoint",
            f"{named(list(fixed))}: the teacher's accuracy is the same in every seed ({first_name}: {accuracy}"
            f" in seeds {seeds}), while students differ.",
            "Say that seeds repeat the student only, or train the teacher once for each seed: intervals over these"
            " seeds do not contain the variation between teachers.",
        )


def _is_constant(case: Case, teacher: str) -> bool:
    return any(one.teacher == teacher and one.word == "constant" for one in case.teachers)
