"""`fedstill query`: a client of a run queries the others for a class."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.extensions import commands
from fedstill.cli.options import Device, DryRun, Json, Out, Plugin, Quiet, Root, RunFolder, Set, html_path, one_of
from fedstill.cli.run import print_plan
from fedstill.cli.screen import console, errors, print_json, sparkline, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import share, size
from fedstill.core.plugins import use_plugins

if TYPE_CHECKING:  # avoids importing torch for `--help`
    from fedstill.queries.probe import Shares
    from fedstill.queries.transfer import Asked, CheckedQuery
    from fedstill.runtime.result import Run

_PEERS = 12  # rows of the table of peers; the figure shows all
_CLIENTS = 30  # rows of the table of probed models


@commands.register("query")
def query(
    run: RunFolder,
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
    set_: Set = None,
    out: Out = Path("runs"),
    html: Annotated[
        Path | None,
        typer.Option(help="Page with figures (.html); default: in the new run's folder.", callback=html_path),
    ] = None,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Let a client of a finished run query the others for a class."""
    use_plugins(plugin or [])
    if probe:
        _show_probe(run, set_ or [], data_root, device, json)
        return
    if client is None or not class_:
        raise InputError("say who asks and for what, e.g. --client 3 --class 7; or --probe to see what all models know")
    if html is not None and not dry_run:
        from fedstill.report.writer import checked_page

        checked_page(html)
    from fedstill.queries.transfer import make_question

    question = make_question(run, client, class_, _settings(set_ or []), method, data_root, device)
    if dry_run:
        print_plan(question.experiment, "no peer has been asked", json)
    else:
        _answer_and_show(question, out, html, quiet, json)


def _answer_and_show(question: CheckedQuery, out: Path, html: Path | None, quiet: bool, as_json: bool) -> None:
    from fedstill.queries.query_page import write_asked_page
    from fedstill.queries.transfer import answer

    display = _Display(quiet or as_json)
    try:
        asked = answer(question, [display])
    finally:
        display.close()
    kept = page = None
    if asked.answered:
        kept = asked.keep(out)
        page = write_asked_page(asked, html or kept.path / "query.html", shlex.join(["fedstill", *sys.argv[1:]]))
    if as_json:
        print_json(_as_dict(asked, kept) | {"page": None if page is None else str(page)})
        return
    _show_peers(asked)
    if kept is None:
        console.print(f"\n{_no_teacher(asked)}: client {asked.client} keeps the model it has")
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
    from fedstill.queries.probe import Probed
    from fedstill.queries.transfer import look
    from fedstill.runtime.result import Run

    seen = look(Run(path), _settings(set_), data_root, device)
    clients = tuple(range(len(seen.probed)))
    found = Probed(clients, seen.classes, seen.held.double().numpy(), seen.probed.double().numpy(), seen.threshold)
    if as_json:
        print_json(
            {
                "precision": found.precision,
                "recall": found.recall,
                "error": found.error,
                "threshold": found.threshold,
                "probed": found.guessed.tolist(),
                "held": found.true.tolist(),
            }
        )
        return
    rows = [
        (
            str(number),
            _listed(seen.classes, found.guessed[number], found.threshold),
            _listed(seen.classes, found.true[number], 0.0),
        )
        for number in clients[:_CLIENTS]
    ]
    table("", ("client", "seems to know", "has samples of"), rows)
    if len(clients) > _CLIENTS:
        console.print(f"and {len(clients) - _CLIENTS} more clients")
    console.print(
        f"\nof classes that models seem to know (at least {share(found.threshold, 0)} of what they say of noise)"
        f" {share(found.precision, 1)} are there; of those that are there {share(found.recall, 1)} are found",
    )


def _listed(classes: Sequence[str], shares: Shares, threshold: float) -> str:
    """Classes with a positive fraction not below the threshold, the largest first."""
    order = sorted(range(len(classes)), key=lambda number: -float(shares[number]))
    return ", ".join(
        f"{classes[number]} {share(float(shares[number]), 0)}"
        for number in order
        if shares[number] > 0 and shares[number] >= threshold
    )


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    """The settings of the transfer method; in experiments they are under `method`."""
    from fedstill.runtime.assemble import assignments

    return {key.removeprefix("method."): value for key, value in assignments(texts, "query_weight=2")}


def _show_peers(asked: Asked) -> None:
    """Which peers know the queried classes: their models' outputs on noise, and their clients' true fractions."""
    wanted = list(asked.fate.query)
    order = sorted(range(len(asked.probed)), key=lambda number: -float(asked.probed[number, wanted].max()))
    rows = [
        (
            str(number),
            *(f"{share(float(asked.probed[number, one]))} ({share(float(asked.held[number, one]))})" for one in wanted),
            "it asks" if number == asked.client else "teaches" if number in asked.teachers else "",
        )
        for number in order[:_PEERS]
    ]
    names = [asked.classes[number] for number in wanted]
    heads = ("client", *(f"{name}: said of noise (its data)" for name in names), "")
    table("", heads, rows, right=range(1, len(names) + 1))
    if len(order) > _PEERS:
        console.print(f"and {len(order) - _PEERS} more clients, who know less")


def _no_teacher(asked: Asked) -> str:
    """Why there is no teacher: which peer came nearest to the probe threshold."""
    wanted = list(asked.fate.query)
    names = " or ".join(f'"{asked.classes[number]}"' for number in wanted)
    said = {number: float(row.max()) for number, row in enumerate(asked.probed[:, wanted]) if number != asked.client}
    if not said:
        return f"there is no peer to ask for {names}"
    nearest = max(said, key=lambda number: said[number])
    return (
        f"no peer passed the probe threshold for {names}; the nearest is peer {nearest} at {share(said[nearest], 1)}"
        f" (threshold {share(float(asked.settings['threshold']), 1)})"
    )


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
    curve = [accuracy for _, _, accuracy in asked.epochs]
    console.print(f"by epoch {sparkline(curve)}")


def _as_dict(asked: Asked, kept: Run | None) -> dict[str, Any]:
    return {
        "run": None if kept is None else str(kept.path),
        "client": asked.client,
        "classes": [asked.classes[number] for number in asked.fate.query],
        "teachers": list(asked.teachers),
        "probed": asked.probed.tolist(),
        "held": asked.held.tolist(),
        "before": asked.fate.before.tolist(),
        "after": asked.fate.after.tolist(),
        "metrics": asked.fate.metrics(),
        "bytes": asked.traffic,
    }
