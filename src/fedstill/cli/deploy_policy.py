"""`fedstill deploy policy check`, `deploy log` and `deploy reset`: what a site's operator and its auditor ask."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstill.cli.deploy import Folder, Proxies, SiteData, SiteNumber, load_site_data, need_extra
from fedstill.cli.flags import Flags, with_flags
from fedstill.cli.options import ExperimentName, Json, Root
from fedstill.cli.screen import console, print_json, printable, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import capital, count, size

_LINES = 40  # of the log, unless all are wanted


@with_flags("data", "partition", "clients")
def policy_check(
    folder: Folder,
    experiment: ExperimentName,
    flags: Flags,
    data: SiteData,
    site: SiteNumber = None,
    proxy: Proxies = None,
    data_root: Root = None,
    json: Json = False,
) -> None:
    """Check whether a site's policy allows an experiment.

    Every tensor that would leave the site is listed. The exit code is 1 if the policy refuses any.
    """
    need_extra()
    from fedstill.deploy.deployment_folder import open_site
    from fedstill.deploy.policy_check import checked_policy

    place = open_site(folder, site)
    bundle = load_site_data(data, data_root)
    found = checked_policy(place, flags.assemble(experiment), bundle, data_root, proxy or [])
    if json:
        print_json(found.to_dict())
        raise typer.Exit(0 if found.takes_part else 1)
    rows = [
        (str(line["name"]), str(line["kind"]), str(line["to"]), size(line["bytes"]), decision, str(line["why"]))
        for line, decision in zip(found.manifest["leaves"], found.decisions, strict=True)
    ]
    table("", ("name", "kind", "to", "size", "policy", "what it is"), rows, right=(3,))
    terms, used = found.terms, found.used
    console.print(
        f"\n{count(terms.rounds, 'round')}; earlier runs used {count(used.rounds, 'round')} and"
        f" {used.answers} replies. At least {count(terms.samples, 'sample')} behind a reply,"
        f" {terms.class_samples} of a class. The largest request has {size(max(found.manifest['requests'].values()))}.",
        soft_wrap=True,
    )
    if used.noise:
        spent = "no epsilon" if found.spent is None else f"epsilon {found.spent:.3g}"
        whom = " for one record" if found.by_record else ""
        told = (
            f"Against the server, earlier runs have spent {spent}{whom};"
            f" {found.without_noise} of their replies had no noise."
        )
        console.print(told, soft_wrap=True)
    if terms.secure:
        console.print(f"The server sees nothing but sums over {terms.sites} sites or more.", soft_wrap=True)
    if terms.colluding is not None and found.epsilon is not None:
        console.print(
            f"Noise in these sums: epsilon {found.epsilon:.3g} against the server after all rounds, if the other sites"
            f" add theirs; {terms.colluding} of them may tell the server.",
            soft_wrap=True,
        )
    elif found.by_record and found.epsilon is not None:
        console.print(
            f"Noise in each step of training here: epsilon {found.epsilon:.3g} for one record, against everybody, after"
            " all rounds.",
            soft_wrap=True,
        )
    elif terms.secure:
        console.print("No noise is added to them.", soft_wrap=True)
    elif found.epsilon is None:
        console.print("No noise is added at this site: the server sees its replies as they are.", soft_wrap=True)
    else:
        console.print(f"Noise at this site: epsilon {found.epsilon:.3g} against the server after all rounds.")
    if (old := place.earlier_policy()) is not None:
        console.print(old, soft_wrap=True)
    for reason in found.reasons:
        console.print(f"refused: {reason}", soft_wrap=True)
    if found.takes_part:
        console.print(f"This site would take part. To allow nothing else, write `experiment: '{found.digest}'`.")
    raise typer.Exit(0 if found.takes_part else 1)


def deploy_log(
    folder: Annotated[Path, typer.Argument(help="Folder of a site, of the server, or of both.", metavar="DIR")],
    site: SiteNumber = None,
    every: Annotated[bool, typer.Option("--all", help="Print all lines, not only the last 40.")] = False,
    noted: Annotated[
        str | None, typer.Option(help="Digest that this command printed last before: it must still be in the chain.")
    ] = None,
    json: Json = False,
) -> None:
    """Print what left a site, or what the server exchanged.

    It also checks that no line of the log was changed or removed.
    """
    from fedstill.deploy.egress_log import read_log

    lines = read_log(_log_folder(folder, site), noted)
    last = lines[-1].digest if lines else ""
    if json:
        print_json({"lines": [dict(line.facts) for line in lines], "intact": True, "last": last})
        return
    shown = lines if every else lines[-_LINES:]
    headings = ("time (UTC)", "what", "round", "exchange", "to or from", "size", "contents")
    table("", headings, [_row(one.facts) for one in shown])
    kinds = Counter(str(line.facts.get("what")) for line in lines)
    each = ", ".join(f"{number} {what}" for what, number in kinds.items())
    console.print(
        f"\n{count(len(lines), 'line')} ({each}); the chain is whole, and its last digest is {last}",
        soft_wrap=True,
    )


def deploy_reset(
    folder: Folder,
    run: Annotated[
        str,
        typer.Option(help="The run's identity, 16 letters and digits, as in the log."),
    ],
    site: SiteNumber = None,
    json: Json = False,
) -> None:
    """Let a restored server ask again for rounds of a run.

    A site answers each round once. A server that was restored from an older backup needs some answers again.
    """
    need_extra()
    from fedstill.deploy.answer_log import AnswerLog
    from fedstill.deploy.deployment_folder import open_site
    from fedstill.deploy.egress_log import EgressLog
    from fedstill.deploy.private_files import only_one
    from fedstill.deploy.secure_keys import forget_secrets

    place, run = open_site(folder, site), run.rpartition("-")[2]  # the end of the name of the run's folder
    with only_one(place.path, "site"):
        answers = AnswerLog(place.path / "answers")
        number = answers.given(run)
        # In this order, whenever this process is killed: nothing is set aside without a line in the log, and no round
        # can be asked for again that would have the masks of the first time.
        EgressLog(place.path).add(what="reset", run=run, sentence=f"its operator sets {number} answers aside")
        forget_secrets(place.path, run)
        answers.reset(run)
    if json:
        print_json({"run": run, "answers": number})
        return
    console.print(
        f"{count(number, 'answer')} of run {run} set aside: a server can ask for these rounds again, and both its first"
        " answers and the new ones count in this site's budget",
        soft_wrap=True,
    )


def _log_folder(folder: Path, site: int | None) -> Path:
    """The folder that holds the log: a site's, or the server's."""
    from fedstill.deploy.egress_log import LOG_FILE

    if (folder / LOG_FILE).exists() and site is None:
        return folder
    if (folder / "server" / LOG_FILE).exists() and site is None:
        return folder / "server"
    place = folder if site is None else folder / f"site-{site}"
    if not place.is_dir():
        raise InputError(f"there is no folder {place}: name the folder of a site")
    return place


def _row(facts: dict[str, Any] | Any) -> tuple[str, ...]:
    tensors = facts.get("tensors") or []
    kinds = Counter(str(one.get("kind", "tensors")) for one in tensors)
    what = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    if not what:
        what = capital(str(facts.get("sentence") or ", ".join(facts.get("facts", {}))))
    receiver = ", ".join(facts.get("to", ())) or (f"from {facts['sender']}" if "sender" in facts else "")
    amount = size(facts["bytes"]) if "bytes" in facts else ""
    time = str(facts.get("at", ""))[5:19].replace("T", " ")
    named = (str(facts.get(name, "")) for name in ("what", "round", "exchange"))
    return tuple(printable(cell) for cell in (time, *named, receiver, amount, what))
