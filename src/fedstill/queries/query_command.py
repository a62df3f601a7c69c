"""`fedstill query`: a client of a run queries the others for a class, or the owner of data queries offered models."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.extensions import commands
from fedstill.cli.options import (
    Device,
    DryRun,
    Json,
    Out,
    Plugin,
    Quiet,
    Root,
    Seed,
    Set,
    Track,
    html_path,
    in_runs,
    named,
    one_of,
    run_folders,
)
from fedstill.cli.run import print_plan
from fedstill.cli.screen import console, errors, print_json, sparkline, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import share, size
from fedstill.core.plugins import use_plugins
from fedstill.runtime.tracked import check_track, tracking_of

if TYPE_CHECKING:  # avoids importing torch for `--help`
    from fedstill.queries.probe import Flags, Shares
    from fedstill.queries.transfer import Asked, CheckedQuery
    from fedstill.queries.transfer_loss import QueryObserver
    from fedstill.runtime.result import Run

_PEERS = 12  # rows of the table of peers; the figure shows all
_SMALL = 5e-5  # probabilities below this are shown as powers of ten
_CLIENTS = 30  # rows of the table of probed models


@commands.register("query")
def query(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run's folder, or a folder of peers' checkpoints (.safetensors).",
            metavar="RUN_OR_FOLDER",
            autocompletion=run_folders,
            callback=in_runs,
        ),
    ],
    client: Annotated[int | None, typer.Option(help="Number of the client that queries.")] = None,
    class_: Annotated[
        list[str] | None, typer.Option("--class", help="Class to query, by number or name; repeatable.")
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Only probe which classes each model knows; train nothing.")
    ] = False,
    method: Annotated[
        str,
        typer.Option(help="qkt, qkt-light or naive-kd.", autocompletion=one_of("qkt", "qkt-light", "naive-kd")),
    ] = "qkt",
    data: Annotated[
        str | None,
        typer.Option(
            help="Your own data, to query a folder of checkpoints: npz:FILE, folder:FOLDER, or a name.",
            autocompletion=named("datasets"),
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of the checkpoints: a name or module:function; default: the one for this kind of data.",
            autocompletion=named("models"),
        ),
    ] = None,
    own: Annotated[
        Path | None, typer.Option(help="Your own checkpoint; without it your model is first trained alone.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Last layer of a model of your own; default: its last linear layer.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also learn by naive distillation, for the figures of the page.")
    ] = False,
    seed: Seed = None,
    set_: Set = None,
    out: Out = Path("runs"),
    html: Annotated[
        Path | None,
        typer.Option(help="Page with figures (.html); default: in the new run's folder.", callback=html_path),
    ] = None,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    track: Track = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Query other clients' models for classes that a client lacks.

    The clients are those of a finished run, or the models are checkpoints in a folder.
    """
    use_plugins(plugin or [])
    check_track(track)
    if html is not None and not dry_run:
        from fedstill.report.writer import checked_page

        checked_page(html)
    if _are_offers(run, data, model, own, head, seed):
        from fedstill.queries.offer_command import query_offers

        if client is not None:
            raise InputError("offered models are asked by the owner of the data: leave --client out")
        options = {"model": model, "own": own, "head": head, "method": method, "compare": compare}
        options |= {"data_root": data_root, "device": device}
        settings = _settings(set_ or []) | ({} if seed is None else {"seed": seed})
        query_offers(run, class_ or [], str(data), settings, options, out, html, probe, dry_run, quiet, json, track)
        return
    if probe:
        _show_probe(run, set_ or [], data_root, device, json)
        return
    if client is None or not class_:
        raise InputError("say who asks and for what, e.g. --client 3 --class 7; or --probe to see what all models know")
    from fedstill.queries.transfer import make_question

    question = make_question(run, client, class_, _settings(set_ or []), method, data_root, device, compare)
    if dry_run:
        print_plan(question.experiment, "no peer has been asked", json)
    else:
        _answer_and_show(question, out, html, quiet, json, track)


def _are_offers(run: Path, data: str | None, *others: Any) -> bool:
    """Whether offered models are queried; options that are for them alone are refused of a run."""
    from fedstill.queries.query_function import are_offers

    offered = are_offers(run, data)
    if not offered and (data is not None or any(one is not None for one in others)):
        what = "--data, --model, --own, --head and --seed are for a folder of checkpoints"
        raise InputError(
            f"{what}, and {run} is a run: leave them out" if run.exists() else f"{what}, which needs --data"
        )
    return offered


def _answer_and_show(
    question: CheckedQuery, out: Path, html: Path | None, quiet: bool, as_json: bool, track: Sequence[str] | None
) -> None:
    from fedstill.queries.transfer import answer

    show_answer(lambda observers: answer(question, observers), out, html, quiet, as_json, track)


def show_answer(
    act: Callable[[Sequence[QueryObserver]], Asked],
    out: Path,
    html: Path | None,
    quiet: bool,
    as_json: bool,
    track: Sequence[str] | None = None,
) -> None:
    """Train, keep the new model and show what changed."""
    from fedstill.queries.query_page import write_asked_page
    from fedstill.queries.query_tracking import track_query

    tracking = tracking_of(track, out, lambda text: errors.print(f"warning: {text}", soft_wrap=True))
    display = _Display(quiet or as_json)
    try:
        asked = act([display])
    finally:
        display.close()
    kept = page = None
    if asked.learnt:
        kept = asked.keep(out)
        page = write_asked_page(asked, html or kept.path / "query.html", shlex.join(["fedstill", *sys.argv[1:]]))
    track_query(tracking, asked, kept)
    if as_json:
        print_json(_as_dict(asked, kept) | {"page": None if page is None else str(page)})
        return
    _show_peers(asked)
    for sentence in asked.no_teacher():
        console.print(f"\n{sentence}")
    if kept is None:
        if asked.answered:
            limit = asked.settings["max_forgetting"]
            console.print(f"\nno λ and no epoch keeps forgetting within {limit:g} points on held-out samples")
        console.print(f"{'the asker' if asked.offered else f'client {asked.client}'} keeps the model it has")
        return
    _show_change(asked)
    console.print(f"\n{kept.path}\n{page}", soft_wrap=True)


class _Display:
    """One terminal line while a client learns: epochs so far, and its accuracy."""

    def __init__(self, quiet: bool) -> None:
        self.status = None if quiet or not errors.is_terminal else errors.status("asking")
        if self.status is not None:
            self.status.start()

    def epoch(self, phase: str, epochs: int, accuracy: float) -> None:
        if self.status is not None:
            self.status.update(f"{phase}: epoch {epochs}, average accuracy {share(accuracy)}")

    def close(self) -> None:
        """Restore the terminal, also after an interruption."""
        if self.status is not None:
            self.status.stop()


def _show_probe(path: Path, set_: Sequence[str], data_root: Path | None, device: str, as_json: bool) -> None:
    """The probe estimates of all clients' models, beside their true class distributions."""
    from fedstill.queries.probe import RECOGNISED
    from fedstill.queries.transfer import look
    from fedstill.runtime.result import Run

    found = look(Run(path), _settings(set_), data_root, device)
    known = found.known
    if as_json:
        print_json(
            {
                **found.figures(),
                "error": found.error,
                "rule": found.rule.name,
                found.rule.setting: found.rule.value,
                "known": known.tolist(),
                "probed": found.guessed.tolist(),
                "log_probabilities": found.logs.tolist(),
                "held": found.true.tolist(),
            }
        )
        return
    clients = found.clients
    rows = [
        (
            str(number),
            listed_shares(found.names, found.guessed[number], known[number]),
            listed_shares(found.names, found.true[number], found.true[number] > 0),
        )
        for number in clients[:_CLIENTS]
    ]
    table("", ("client", "knows by the probe", "has samples of"), rows)
    if len(clients) > _CLIENTS:
        console.print(f"and {len(clients) - _CLIENTS} more clients")
    console.print(
        f"\nrule {found.rule.name} ({found.rule.setting} {found.rule.value:g}): of the classes that models know by it"
        f" {share(found.precision, 1)} are in their clients' samples, and of those in the samples"
        f" {share(found.recall, 1)} are found; of the classes that models recognise (recall of at least"
        f" {share(RECOGNISED, 0)}) {share(found.recall_recognised, 1)} are found",
    )


def listed_shares(classes: Sequence[str], shares: Shares, known: Flags) -> str:
    """The known classes with their fractions, the largest first."""
    order = sorted(range(len(classes)), key=lambda number: -float(shares[number]))
    return ", ".join(f"{classes[number]} {share(float(shares[number]), 0)}" for number in order if known[number])


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    """The settings of the transfer method; in experiments they are under `method`."""
    from fedstill.runtime.assemble import assignments

    return {key.removeprefix("method."): value for key, value in assignments(texts, "query_weight=2")}


def _show_peers(asked: Asked) -> None:
    """Which peers know the queried classes: their models' outputs on noise, and their clients' true fractions."""
    wanted, probe = list(asked.fate.query), asked.probe
    known, order = probe.known, sorted(probe.clients, key=lambda number: -float(probe.logs[number, wanted].max()))
    rows = [
        (
            asked.name(number),
            *(_said(asked, number, one) for one in wanted),
            ", ".join(asked.classes[one] for one in wanted if known[number, one]),
            "it asks" if number == asked.client else "teaches" if number in asked.teachers else "",
        )
        for number in order[:_PEERS]
    ]
    names = [asked.classes[number] for number in wanted]
    beside = "recall it reports" if asked.offered else "its data"
    who = "model" if asked.offered else "client"
    heads = (who, *(f"{name}: said of noise ({beside})" for name in names), "knows", "")
    table("", heads, rows, right=range(1, len(names) + 1))
    if len(order) > _PEERS:
        console.print(f"and {len(order) - _PEERS} more clients, whose models are less sure of it")


def _said(asked: Asked, client: int, number: int) -> str:
    """The mean probability of a class on noise, small ones as a power of ten; and what is known of it beside."""
    probe = asked.probe
    said = float(probe.guessed[client, number])
    shown = share(said) if said >= _SMALL else f"1e{probe.logs[client, number] / log(10):.0f}"
    return f"{shown}{_beside(asked, client, number)}"


def _beside(asked: Asked, client: int, number: int) -> str:
    """The fraction of a class in a client's data; of an offered model, the recall that its owner reports."""
    if not asked.offered:
        return f" ({share(float(asked.probe.true[client, number]))})"
    return "" if client == asked.client else f" ({share(asked.reported(client, number))})"


def _show_change(asked: Asked) -> None:
    """Recall before and after, by class and in total."""
    fate = asked.fate
    rows = [
        (
            asked.classes[number],
            "asked for" if number in fate.query else "local" if bool(fate.local[number]) else "",
            share(float(fate.before[number])),
            share(float(fate.after[number])),
            f"{100 * float(fate.after[number] - fate.before[number]):+.1f}",
        )
        for number in range(len(asked.classes))
    ]
    console.print()
    table("", ("class", "", "before", "after", "change"), rows, right=(2, 3, 4))
    metrics = fate.metrics()
    console.print(
        f"\naverage accuracy {share(metrics['before'])} → {share(metrics['accuracy'])},"
        f" gain {100 * metrics['gain']:+.1f}, forgetting {100 * metrics['forgetting']:+.1f} points;"
        f" traffic ↑{size(asked.traffic['up'])} ↓{size(asked.traffic['down'])}",
    )
    if asked.choice is not None:
        console.print(
            f"kept within {asked.settings['max_forgetting']:g} points of forgetting: query_weight"
            f" {asked.choice['query_weight']:g}, {asked.choice['epochs']:g} epochs of the last phase,"
            f" {asked.choice['forgetting']:.1f} points forgotten on held-out samples",
        )
    if asked.warning:
        console.print(f"warning: {asked.warning}")
    if asked.unmeasured:
        names = " and ".join(asked.classes[number] for number in asked.unmeasured)
        console.print(f"the test data has no samples of {names}: what was gained of it is not known, and counts as 0")
    curve = [accuracy for _, _, accuracy in asked.epochs]
    console.print(f"by epoch {sparkline(curve)}")


def _as_dict(asked: Asked, kept: Run | None) -> dict[str, Any]:
    return {
        "run": None if kept is None else str(kept.path),
        "client": asked.client,
        "classes": [asked.classes[number] for number in asked.fate.query],
        "teachers": list(asked.teachers),
        "rule": asked.probe.rule.name,
        asked.probe.rule.setting: asked.probe.rule.value,
        "probed": asked.probe.guessed.tolist(),
        "log_probabilities": asked.probe.logs.tolist(),
        "known": asked.probe.known.tolist(),
        "held": None if asked.offered else asked.probe.true.tolist(),
        "offered": [one.to_dict() for one in asked.offered],
        "unmeasured": [asked.classes[number] for number in asked.unmeasured],
        "no_teacher": _unmatched(asked),
        "before": asked.fate.before.tolist(),
        "after": asked.fate.after.tolist(),
        "metrics": asked.fate.metrics(),
        "choice": asked.choice,
        "collapsed": [asked.classes[number] for number in asked.fate.collapsed],
        "warning": asked.warning,
        "curve": [asdict(point) for point in asked.curve],
        "bytes": asked.traffic,
    }


def _unmatched(asked: Asked) -> list[dict[str, Any]]:
    """The queried classes without a teacher, with the nearest peers and the settings that would admit them."""
    rule = asked.probe.rule
    return [
        {
            "class": asked.classes[number],
            "nearest": [{"peer": one.peer, "score": one.score, rule.setting: one.bound} for one in nearest],
        }
        for number, nearest in asked.unmatched.items()
    ]
