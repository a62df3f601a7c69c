"""The part of `fedstill query` about models that peers have offered as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.cli.run import print_plan
from fedstill.cli.screen import errors, print_json, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import share
from fedstill.queries.offers import OfferQuery, question_to_offers
from fedstill.queries.query_command import listed_shares, show_answer
from fedstill.queries.transfer import Asked


def query_offers(
    folder: Path,
    classes: Sequence[str],
    data: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    out: Path,
    html: Path | None,
    probe: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    track: Sequence[str] | None = None,
) -> None:
    """Query a folder of checkpoints with data of one's own."""
    if not (classes or probe):
        raise InputError("say what you ask for, e.g. --class 7; or --probe to see what the models know")
    offers = question_to_offers(folder, classes, data, settings, **options)
    if probe:
        _show_probe(offers, as_json)
    elif dry_run:
        print_plan(offers.question.experiment, "no model has been asked", as_json)
    else:
        _answer(offers, out, html, quiet, as_json, track)


def _answer(
    offers: OfferQuery, out: Path, html: Path | None, quiet: bool, as_json: bool, track: Sequence[str] | None
) -> None:
    examined = offers.examine()
    if not examined.answered:
        raise InputError(f"{'; '.join(examined.no_teacher())}: ask for another class, or of other models")
    if not (offers.has_own or quiet or as_json):
        errors.print("no model of your own was given (--own): it is first trained alone")
    show_answer(lambda observers: offers.answer(out, observers), out, html, quiet, as_json, track)


def _show_probe(offers: OfferQuery, as_json: bool) -> None:
    """What the offered models seem to know, and the recall that their owners report."""
    seen = offers.examine()
    probe, peers = seen.probe, range(1, len(seen.names))
    known = probe.known
    if as_json:
        found = {
            "rule": probe.rule.name,
            probe.rule.setting: probe.rule.value,
            "probed": {seen.name(number): probe.guessed[number].tolist() for number in peers},
            "known": {seen.name(number): known[number].tolist() for number in peers},
        }
        print_json({**found, "offered": [one.to_dict() for one in seen.offered]})
        return
    rows = [
        (
            seen.name(number),
            listed_shares(seen.classes, probe.guessed[number], known[number]),
            ", ".join(f"{seen.classes[one]} {share(recall, 0)}" for one, recall in _recall(seen, number)),
        )
        for number in peers
    ]
    table("", ("model", "seems to know", "recall it reports"), rows)


def _recall(asked: Asked, client: int) -> list[tuple[int, float]]:
    return sorted(asked.offered[client - 1].recall.items())
