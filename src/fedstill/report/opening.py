"""The report's first paragraph: what the results say, in sentences that are made from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedstill.core.numbers import capital, count, listed, points, share, size
from fedstill.report import descriptions
from fedstill.report.compare import Pair, lonely_pairs, pooled_pairs, skewed_pairs
from fedstill.report.facts import Facts, measured
from fedstill.runtime.identity import stale_parts
from fedstill.runtime.round_ranking import LOWER_IS_BETTER
from fedstill.tasks.task_choice import ACCURACY

_SAME = 0.0005  # shares that print alike, at one decimal of a percentage, are called equal
_FELL = 0.01  # a last round this far below the best one is worth a sentence

_FEW = 8  # runs that each get sentences of their own
_NAMED = 3  # runs that are named together in one sentence
_UNLIKE = 0.05  # amounts of training that differ by less than this share count as equal


def heading(runs: Sequence[Facts]) -> str:
    data = listed(_unique(run.experiment.data for run in runs))
    return f"{capital(count(len(runs), 'way'))} to learn {data}"


def summary(runs: Sequence[Facts]) -> str:
    """One paragraph: what was run, who got how far, what skew and solitude cost, what was sent, what went wrong."""
    parts = [_ground(runs), *_ranking(runs), *_costs(runs), *_traffic(runs), *_trouble(runs)]
    return " ".join(parts)


def caution(runs: Sequence[Facts]) -> str:
    """What a careful reader should hold against these numbers."""
    sentences = [f"{text}." for text in _of_single_runs(runs)] if not run_cautions(runs) else []
    if len({run.experiment.seed for run in runs}) == 1:
        each = "It was" if len(runs) == 1 else "Each was"
        sentences.append(
            f"{each} run once, with seed {runs[0].experiment.seed}: small differences may be due to chance."
        )
    sentences.append(
        "“Last” is the model after the last round. “Best” is the round that did best on the test set, which therefore"
        " chose it: read it as an upper bound, not as a result."
    )
    if any("selected" in run.result.accuracy for run in runs):
        sentences.append("“Selected” was chosen on a validation share of the training data, and is an honest result.")
    if any(run.pooled for run in runs):
        sentences.append("Pooled training sends no models; moving all the data to one place is not counted as traffic.")
    return " ".join(sentences)


def run_cautions(runs: Sequence[Facts]) -> list[str]:
    """What is to be held against single runs, where that is more than a paragraph can tell."""
    several = _of_single_runs(runs)
    return several if len(several) > _NAMED else []


def _of_single_runs(runs: Sequence[Facts]) -> list[str]:
    stale = [f"{run.title} is stale: {'; '.join(why)}" for run in runs if (why := stale_parts(run.config))]
    warned = [f"{run.title}: {text}" for run in runs for text in run.cautions]
    return [*stale, *warned, *(f"{run.title}: {text}" for run in runs for text in run.skipped)]


def _ground(runs: Sequence[Facts]) -> str:
    first = runs[0]
    data = _unique(f"{run.experiment.data} ({count(len(run.config['classes']), 'class')})" for run in runs)
    models = _unique(str(run.experiment.model) for run in runs)
    clients = sorted({run.experiment.clients for run in runs if not run.pooled})
    span = f"{clients[0]:,} to " if len(clients) > 1 else ""
    among = f", among {span}{count(clients[-1], 'client')}" if clients else ""
    model = f"the model {models[0]}" if len(models) == 1 else f"the models {listed(models)}"
    if len(runs) == 1:
        return f"{capital(first.quoted)} trained {model} on {listed(data)}{among}, with {first.experiment.method.name}."
    methods = listed(_unique(run.experiment.method.name for run in runs))
    return f"{capital(count(len(runs), 'way'))} of training {model} on {listed(data)} were compared{among}: {methods}."


def _ranking(runs: Sequence[Facts]) -> Iterator[str]:
    scored = [(accuracy, run) for run in runs if (accuracy := run.accuracy()) is not None]
    if len(scored) == 1:
        accuracy, run = scored[0]
        yield f"{run.quoted} ended with {_right(runs, accuracy)}."
    elif scored:
        top, low = max(accuracy for accuracy, _ in scored), min(accuracy for accuracy, _ in scored)
        if runs[0].shown in LOWER_IS_BETTER:
            top, low = low, top
        first = _some([run.quoted for accuracy, run in scored if abs(top - accuracy) < _SAME])
        if abs(top - low) < _SAME:
            yield f"All ended level, with {_right(runs, top)}."
        else:
            last = _some([run.quoted for accuracy, run in scored if abs(accuracy - low) < _SAME])
            yield (
                f"{capital(first)} got furthest, with {_right(runs, top)} after the last round;"
                f" {last} {'came last' if runs[0].shown in LOWER_IS_BETTER else 'ended lowest'}, with {share(low, 1)}."
            )
    for accuracy, run in scored if len(runs) <= _FEW else ():
        best = run.accuracy("best")
        if best is not None and best - accuracy > _FELL:
            yield f"{run.quoted} had been {points(best - accuracy)} better in round {run.round_of('best')}."
    if silent := [run.quoted for run in runs if run.accuracy() is None]:
        yield f"Of {_some(silent)} no {measured(runs)} is known."


def _right(runs: Sequence[Facts], accuracy: float) -> str:
    if any(run.detects or run.shown != ACCURACY for run in runs):
        return f"{'an' if measured(runs)[0] in 'aAF' else 'a'} {measured(runs)} of {share(accuracy, 1)}"
    return f"{share(accuracy, 1)} of the test samples right"


def _costs(runs: Sequence[Facts]) -> Iterator[str]:
    for change, (pooled, federated) in _telling(pooled_pairs(runs)):
        yield f"Against all data in one place, {federated.quoted} {_compared(change)}{_effort(pooled, federated)}."
    skewed_ones = _telling(skewed_pairs(runs))
    for change, (_, skewed) in skewed_ones:
        shards = descriptions.part(skewed.experiment.partition)
        name = _method_or_title(skewed, [one for _, (_, one) in skewed_ones])
        yield f"Unequal shards ({shards}) {_effect(change)} {name}{_by(change)}."
    lonely_ones = _telling(lonely_pairs(runs))
    for change, (together, alone) in lonely_ones:
        name = _method_or_title(together, [one for _, (one, _) in lonely_ones])
        yield (
            f"Training alone instead of with {name} {_effect(change)} the clients"
            f"{_by(change)} on average{_own_mix(alone)}."
        )


def _method_or_title(run: Facts, among: Sequence[Facts]) -> str:
    """Its method, unless a sentence about another run begins with the same one."""
    methods = [one.experiment.method.name for one in among]
    return run.quoted if methods.count(run.experiment.method.name) > 1 else run.experiment.method.name


def _telling(pairs: Iterator[Pair]) -> list[tuple[float, Pair]]:
    """Pairs with what accuracy changes by; of more than two, those in which that is best and worst."""
    known = [(change, pair) for pair in pairs if (change := _change(*pair)) is not None]
    by_change = sorted(known, key=lambda one: one[0], reverse=True)
    return known if len(known) <= 2 else [by_change[0], by_change[-1]]


def _effort(before: Facts, after: Facts) -> str:
    """Unequal amounts of training explain a difference as well as anything else: say so where they are."""
    if not before.work or abs(after.work / before.work - 1) < _UNLIKE:
        return ""
    return f", with {after.work / before.work:.1f} times as much training"


def _own_mix(run: Facts) -> str:
    """A model that is poor on everything may be good at what its client sees: say so, or solitude looks absurd."""
    if run.result.personal is None:
        return ""
    right = "" if run.detects else " right"
    return f", though on a mix of classes like their own they get {share(run.result.personal.own_mean, 1)}{right}"


def _traffic(runs: Sequence[Facts]) -> Iterator[str]:
    sent: dict[str, list[str]] = {}
    for run in runs:
        if not run.pooled:
            sent.setdefault(size(run.result.bytes.up), []).append(run.quoted)
    if len(sent) > _NAMED:
        amounts = [run.result.bytes.up for run in runs if not run.pooled]
        yield f"Over all rounds, the clients together sent {size(min(amounts))} to {size(max(amounts))}."
    elif sent:
        told = [f"{amount} in {_some(titles)}" for amount, titles in sent.items()]
        alike = len(sent) == 1 and len(next(iter(sent.values()))) > 2
        yield f"Over all rounds, the clients together sent {f'{next(iter(sent))} in each' if alike else listed(told)}."


def _some(titles: Sequence[str]) -> str:
    """Runs by their titles while these are few; a reader finds the others in the table."""
    return listed(titles) if len(titles) <= _NAMED else count(len(titles), "way")


def _trouble(runs: Sequence[Facts]) -> Iterator[str]:
    if len(runs) > _FEW and (failures := sum(run.result.failures for run in runs)):
        yield f"{failures:,} of {sum(run.sampled for run in runs):,} replies were missing or refused."
    broken = [run.quoted for run in runs if run.broken]
    if len(broken) > _NAMED:
        yield f"The models of {_some(broken)} were not finite after some rounds: what they scored there means nothing."
    for run in runs:
        failures, skipped = run.result.failures, run.result.skipped
        if len(runs) <= _FEW and (failures or skipped):
            rounds = f" and {count(skipped, 'round')} skipped for want of replies" if skipped else ""
            were = "was" if failures == 1 else "were"
            yield f"In {run.quoted}, {failures:,} of {run.sampled:,} replies {were} missing or refused{rounds}."
        if run.broken and len(broken) <= _NAMED:
            which = f"round {run.broken[0]}" if len(run.broken) == 1 else f"{count(len(run.broken), 'round')}"
            yield f"The model of {run.quoted} was not finite after {which}: what it scored there means nothing."


def _change(before: Facts, after: Facts) -> float | None:
    first, second = before.accuracy(), after.accuracy()
    return None if first is None or second is None else second - first


def _compared(change: float) -> str:
    if abs(change) < _SAME:
        return "is level"
    return f"is {points(change)} {'better' if change > 0 else 'worse'}"


def _effect(change: float) -> str:
    if abs(change) < _SAME:
        return "made no difference to"
    return "gained" if change > 0 else "cost"


def _by(change: float) -> str:
    return "" if abs(change) < _SAME else f" {points(change)}"


def _unique(names: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(names))
