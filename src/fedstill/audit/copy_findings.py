"""Findings about figures that are too much alike: rows, columns, controls and seeds that are one and the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import comb, factorial, prod, sqrt
from statistics import median, stdev

from fedstill.audit.case import Case
from fedstill.audit.control_copies import agreement_told, copied_controls, orders_by_rank, orders_of_seeds
from fedstill.audit.evidence import Score, Seed
from fedstill.audit.phrases import named
from fedstill.audit.ties import (
    CLOSE,
    EXACTLY,
    MOST,
    NEARLY,
    TELLING,
    ScoreAgreement,
    TrainingNoise,
    agree,
    agreement,
    linear_agreement,
    noise_between_trainings,
    noise_of_siblings,
    shifted_agreement,
    tail,
    tie_chance,
    variance,
)
from fedstill.audit.verdicts import Finding
from fedstill.core.numbers import capital, count, listed, share

PERHAPS = 1e-2  # chance below which equal rows are named, as a doubt
LEAST_OF_CONTROLS = 12  # label-free students with their teachers' accuracies: good ones often agree
OFTEN = 0.8  # of other teachers' seeds agree no more often than what is held against a teacher's seeds
ENOUGH_EQUAL = 10  # agreements, of which half might be accidents
NOT_AT_A_CEILING = 0.05  # p (1 - p), from which trainings differ visibly
BY_CHANCE = 0.005  # below this, teachers that score the same in all seeds are one checkpoint

Cells = dict[Hashable, Score]
SeedCells = dict[tuple[str, str, bool], Score]  # by teacher, objective, and whether without labels


def copy_findings(case: Case) -> Iterator[Finding]:
    yield from copied_controls(case)
    yield from _copied_teachers(case)
    yield from _duplicates(case, "teacher", _teacher_cells(case))
    yield from _duplicates(case, "objective", _objective_cells(case))
    seeds = list(_identical_seeds(case))
    yield from seeds
    if not seeds:
        yield from _one_checkpoint(case)


def _copied_teachers(case: Case) -> Iterator[Finding]:
    """Students whose accuracies are their teachers', since the teacher was evaluated in their place.

    The better label-free students learn, the more they agree with their teacher; exactly, and everywhere, they do not.
    """
    book = case.book
    teachers: Cells = {(name, seed): one for name in book.teachers for seed, one in book.teacher_scores(name).items()}
    reading = [name for name in book.objectives if book.weight(name) != 0]
    for free, noise in ((False, noise_between_trainings(book)), (True, noise_of_siblings(book))):
        found: dict[str, ScoreAgreement] = {}
        for objective in reading:
            students = _of_objective(case, objective, free)
            how = agreement(students, teachers, noise, len(reading), NEARLY if free else EXACTLY)
            if how is not None and how.exact and (not free or how.agreeing >= LEAST_OF_CONTROLS):
                found[objective] = how
        if found:
            which = "without labels" if free else "with labels"
            yield Finding(
                "warning" if free else "serious",
                "copied-teacher",
                f"{'Label-free controls' if free else 'Students'} have the accuracies of their teachers",
                f"{named(list(found))}: {agreement_told(next(iter(found.values())))} of students {which} and teachers,"
                " seed by seed. A student that was trained would differ.",
                "Check which model was evaluated: it seems to be the teacher.",
            )


def _of_objective(case: Case, objective: str, free: bool) -> Cells:
    side = case.book.free_scores if free else case.book.labelled_scores
    pairs = [pair for pair in case.book.pairs if pair[1] == objective and not (free and case.book.own_control(pair))]
    return _informative(case, {(pair[0], seed): one for pair in pairs for seed, one in side(pair).items()})


def _teacher_cells(case: Case) -> dict[str, list[Cells]]:
    """By teacher: its own accuracies, those of its students, of these with labels, and all of them."""
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
        labelled = {key: one for key, one in taught.items() if not key[1]}  # type: ignore[index]
        sides = (own, taught, labelled, own | taught) if own and taught else (own or taught, labelled)
        found[name] = [_informative(case, cells) for cells in sides]
    return found


def _is_flat(case: Case, teacher: str) -> bool:
    """Where the chance level is not known, a teacher that scores the same in all seeds may answer one class."""
    values = {score.accuracy for score in case.book.teacher_scores(teacher).values()}
    return case.book.chance is None and len(values) == 1 and len(case.book.teacher_scores(teacher)) > 1


def _objective_cells(case: Case) -> dict[str, list[Cells]]:
    return {name: [_of_objective(case, name, free) for free in (False, True)] for name in case.book.objectives}


def _informative(case: Case, cells: Mapping[Hashable, Score]) -> Cells:
    """Without the accuracies that any model has which answers one class."""
    return {key: score for key, score in cells.items() if not case.book.equals_a_class([score])}


def _duplicates(case: Case, what: str, cells: Mapping[str, Sequence[Cells]]) -> Iterator[Finding]:
    # Students of one teacher and seed may vary together, whatever the objective.
    noise = noise_between_trainings(case.book) if what == "teacher" else noise_of_siblings(case.book)
    pairs = list(combinations(cells, 2))
    kinds = max((len(kinds) for kinds in cells.values()), default=1)
    found: dict[tuple[str, str], ScoreAgreement] = {}
    for first, second in pairs:
        for here, there in zip(cells[first], cells[second], strict=False):
            how = _one_result(here, there, noise, kinds * len(pairs), what == "teacher")
            if how is not None:
                found.setdefault((first, second), how)
    found = {pair: how for pair, how in found.items() if _is_unusual(cells, pair, how, kinds * len(pairs))}
    if found:
        surely = {pair: how for pair, how in found.items() if how.chance < EXACTLY}
        (first, second), how = next(iter((surely or found).items()))
        doubt = "" if surely else f" By chance this happens in about {share(how.chance, 1)} of such tables, at most."
        yield Finding(
            "serious" if surely else "warning",
            f"duplicate-{what}s",
            f"Some {what}s {'are' if surely else 'may be'} one and the same",
            f"{named([f'{one} and {other}' for one, other in found])}: {agreement_told(how)} of {first} and {second}."
            f" Results of two trainings would differ.{doubt}",
            f"Find out which of them was really run; a ranking or a mean over {what}s counts it twice.",
        )


def _is_unusual(
    cells: Mapping[str, Sequence[Cells]], pair: tuple[str, str], how: ScoreAgreement, comparisons: int
) -> bool:
    """Whether others agree so rarely that this is no accident, whatever is assumed of trainings."""
    if how.within:
        return _is_closer(cells, pair, how.within)
    compared, equal = 0, 0
    for first, second in combinations(cells, 2):
        here, there = max(cells[first], key=len), max(cells[second], key=len)
        shared = here.keys() & there.keys()
        same = sum(here[key].accuracy == there[key].accuracy for key in shared)
        if (first, second) != pair and same < MOST * len(shared):  # others may be copies, too
            compared, equal = compared + len(shared), equal + same
    return tail(how.agreeing, how.of, (equal + 1) / (compared + 2)) * comparisons < PERHAPS if compared else True


def _is_closer(cells: Mapping[str, Sequence[Cells]], pair: tuple[str, str], within: float) -> bool:
    """Whether others are much farther from differing by the same."""
    far = []
    for first, second in combinations(cells, 2):
        here, there = max(cells[first], key=len), max(cells[second], key=len)
        gaps = [here[key].accuracy - there[key].accuracy for key in here if key in there]
        if (first, second) != pair and len(gaps) > 1:
            far.append(stdev(gaps))
    return not far or within <= 2 * sqrt(CLOSE) * median(far)


def _one_result(
    here: Cells, there: Cells, noise: TrainingNoise, comparisons: int, reorder: bool
) -> ScoreAgreement | None:
    """Whether these are one: as they are, shifted or scaled, or exactly once seeds are exchanged."""
    how = agreement(here, there, noise, comparisons, PERHAPS) or linear_agreement(here, there, noise, comparisons)
    if how is not None or not reorder:
        return how
    orders = orders_of_seeds(here)[1:]
    numbered = [(order, len(orders)) for order in orders]
    numbered += [(order, factorial(len(order))) for order in orders_by_rank(here, there)]
    for order, number in numbered:
        found = agreement(here, _reordered(there, order), noise, comparisons * number)
        if found is not None and found.exact:
            return found
    return None


def _reordered(cells: Cells, order: Mapping[Seed, Seed]) -> Cells:
    """Results under the names of other seeds."""
    if not order:
        return cells
    return {
        (*key[:-1], order.get(key[-1], key[-1])) if isinstance(key, tuple) else order.get(str(key), key): score
        for key, score in cells.items()
    }


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
    parts = {"students with labels": False, "students without labels": True}
    groups = [*combinations(cells, 2), *([tuple(cells)] if len(cells) > 2 else [])]
    number = len(groups) * (len(parts) + len(teachers))
    noise = noise_between_trainings(case.book)

    def search(of: str = "", free: bool | None = None, teacher: str | None = None) -> dict[str, ScoreAgreement]:
        def belongs(key: tuple[str, str, bool]) -> bool:
            return (free is None or key[2] is free) and (teacher is None or key[0] == teacher)

        some = {seed: {key: one for key, one in scores.items() if belongs(key)} for seed, scores in cells.items()}
        comparisons = number if of else len(groups)
        agreements = {group: _one_run(some, group, noise, comparisons) for group in groups}
        return {
            f"{_seeds_named(group)}{of}": how
            for group, how in agreements.items()
            if how is not None and (teacher is None or _is_rare(cells, how, teacher, number))
        }

    found = search()
    if not found:
        for part, free in parts.items():
            found |= search(f" of {part}", free=free)
    if not found:
        for teacher in teachers:
            found |= search(f" of {teacher}", teacher=teacher)
    equal = [] if found else _equal_everywhere(case, cells)
    if equal:
        yield Finding(
            "warning",
            "identical-seeds",
            "All seeds have the same accuracies",
            f"In all {count(len(equal), 'result')} that could differ, all {len(cells)} seeds agree to the last digit,"
            f" e.g. {share(equal[0].accuracy)} of each.",
            "If these were separate trainings, give more digits; else count them as one: nothing is known of how seeds"
            " vary.",
        )
    if found:
        yield Finding(
            "serious",
            "identical-seeds",
            "Some seeds are one and the same run",
            f"{capital(named(list(found)))}. {agreement_told(next(iter(found.values())))} in the first of these; seeds"
            " that were trained apart would differ.",
            "Count them once: deviations and intervals over seeds are too small. Check that the seed reaches the"
            " training.",
        )


def _equal_everywhere(case: Case, cells: Mapping[Seed, SeedCells]) -> list[Score]:
    """One accuracy of each result whose seeds could differ, where none do; none of a few, which may well agree.

    This needs no test set of known size: even coarse figures of stable trainings agree in no more than half of cases.
    """
    first, *others = cells.values()
    able = {key: one for key, one in first.items() if one.accuracy * (1 - one.accuracy) > NOT_AT_A_CEILING}
    same = all(seeds.get(key, one).accuracy == one.accuracy for seeds in others for key, one in able.items())
    return list(able.values()) if same and len(able) * len(others) >= ENOUGH_EQUAL else []


def _is_rare(cells: Mapping[Seed, SeedCells], how: ScoreAgreement, teacher: str, comparisons: int) -> bool:
    """Whether seeds of other teachers agree so rarely that this is no accident, whatever is assumed of trainings."""
    rates = []
    for one, other in combinations(cells.values(), 2):
        by_teacher: dict[str, list[bool]] = {}
        for key in one.keys() & other.keys():
            by_teacher.setdefault(key[0], []).append(one[key].accuracy == other[key].accuracy)
        rates += [(sum(same) + 1) / (len(same) + 2) for name, same in by_teacher.items() if name != teacher]
    usual = sorted(rates)[int(OFTEN * len(rates))] if rates else 0.0
    return tail(how.agreeing, how.of, usual) * comparisons < EXACTLY


def _seeds_named(group: Sequence[Seed]) -> str:
    return f"seeds {listed(list(group))}"


def _one_run(
    cells: Mapping[Seed, SeedCells], group: Sequence[Seed], noise: TrainingNoise, comparisons: int
) -> ScoreAgreement | None:
    """Whether all of these seeds agree exactly with the first of them, or two differ by the same everywhere."""
    first, *others = group
    ours: Cells = {(seed, key): score for seed in others for key, score in cells[first].items()}
    theirs: Cells = {(seed, key): score for seed in others for key, score in cells[seed].items()}
    how = agreement(ours, theirs, noise, comparisons)
    if how is not None and how.exact:
        return how
    if len(others) > 1:
        return None
    how = shifted_agreement(ours, theirs, noise, comparisons) or linear_agreement(ours, theirs, noise, comparisons)
    if how is not None or len(cells) > 2:
        return how
    # Of two seeds the spread says nothing if they are copies; the test set does.
    return linear_agreement(ours, theirs, replace(noise, spread=0.0), comparisons, CLOSE / 4)


def _one_checkpoint(case: Case) -> Iterator[Finding]:
    """Teachers whose accuracy is the same in every seed, while their students differ."""
    book, noise = case.book, noise_between_trainings(case.book)
    fixed: dict[str, float] = {}
    for name in book.teachers:
        scores = list(book.teacher_scores(name).values())
        if len(scores) < 2 or _is_constant(case, name):
            continue
        first, *others = scores
        if variance(first, first, noise) >= TELLING and all(agree(first, one, noise, 0) for one in others):
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
