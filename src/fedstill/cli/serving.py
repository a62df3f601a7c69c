"""`fedstill deploy server`, `site` and `status`: what they show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.cli.deploying import need_extra, stop_cleanly
from fedstill.cli.experiments import run_printed, show_result
from fedstill.cli.plans import manifest_table, print_plan
from fedstill.cli.progress import Display
from fedstill.cli.screen import console, errors, print_json, table
from fedstill.core.devices import check_device
from fedstill.core.errors import InputError
from fedstill.core.numbers import count, size
from fedstill.core.plugins import use_plugins
from fedstill.core.protocols import Failure, Reply
from fedstill.data.catalogue import load
from fedstill.deploy.server_options import ServerOptions
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.result import Run

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}")
INSECURE = "INSECURE: nothing is encrypted, anybody on the way can read and change it. Never do this with real data."


def site_numbers(text: str | None) -> tuple[int, ...]:
    """`0,2` as numbers."""
    try:
        return tuple(sorted({int(number) for number in text.split(",")})) if text else ()
    except ValueError:
        raise InputError(f"cannot read the sites {text!r}: write their numbers, as in --only 0,2") from None


def server(folder: Path, experiment: Experiment, out: Path, terms: ServerOptions, quiet: bool, as_json: bool) -> None:
    need_extra()
    from fedstill.deploy import server as deployed
    from fedstill.deploy.deployment_folder import open_server
    from fedstill.deploy.rehearsal import die_with_parent

    stop_cleanly()
    die_with_parent()
    check_device(terms.device)
    if terms.insecure:
        errors.print(INSECURE, style="bold red")
    display = Display(quiet or as_json)
    try:
        done = deployed.serve(open_server(folder), experiment, out, _AtServer(quiet), terms, [display])
    finally:
        display.close()
    run = Run(done.path)
    if as_json:
        print_json(run_printed(run))
    else:
        show_result(run)


def show_plan(folder: Path, experiment: Experiment, terms: ServerOptions, as_json: bool) -> None:
    """The experiment as sites would be sent it; nobody is called."""
    need_extra()
    from fedstill.deploy.deployment_folder import open_server
    from fedstill.deploy.site_registry import for_sites

    place = open_server(folder)
    sites = len(terms.sites) or place.sites
    print_plan(for_sites(experiment, sites, place.name), f"for {count(sites, 'site')} of {place.name}", as_json)


class _AtServer:
    """Says what happens, each thing once."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.missing = quiet, tuple[int, ...]()

    def note(self, text: str) -> None:
        if not self.quiet:
            errors.print(text, soft_wrap=True)

    def waiting(self, for_sites: Sequence[int]) -> None:
        if tuple(for_sites) != self.missing:
            self.missing = tuple(for_sites)
            self.note(f"waiting for site {', '.join(map(str, for_sites))}")


def site(
    folder: Path,
    number: int | None,
    data: str,
    address: str | None,
    once: bool,
    insecure: bool,
    proxies: Sequence[str],
    data_root: Path | None,
    device: str,
    plugins: Sequence[Path],
    quiet: bool,
) -> None:
    need_extra()
    from fedstill.deploy.deployment_folder import open_site
    from fedstill.deploy.rehearsal import die_with_parent
    from fedstill.deploy.site import take_part

    stop_cleanly()
    die_with_parent()
    use_plugins(plugins)
    check_device(device)
    if address is not None and not _ADDRESS.fullmatch(address):
        raise InputError(f"cannot read the server's address {address!r}: write HOST:PORT, as in fl.example.org:9092")
    place = open_site(folder, number)
    bundle = load(f"npz:{data}" if data.endswith(".npz") and ":" not in data else data, data_root, part=True)
    if insecure:
        errors.print(INSECURE, style="bold red")
    watcher = _AtSite(quiet)
    watcher.note(
        f"site {place.site} of {place.name}: {len(bundle.train):,} training and {len(bundle.test):,} test samples"
    )
    take_part(
        place,
        bundle,
        watcher,
        address=address,
        insecure=insecure,
        once=once,
        data_root=data_root,
        proxies=proxies,
        device=device,
    )


class _AtSite:
    """A site's log: what will leave, what was asked and answered, where the model is."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def note(self, text: str) -> None:
        errors.print(text, soft_wrap=True)

    def manifest(self, manifest: Mapping[str, Any], experiment: str) -> None:
        if not self.quiet:
            errors.print(
                f"\nExperiment {experiment}: {manifest['method']}, {manifest['model']}. What will leave this site in"
                " each round, from a rehearsal on its own data:",
            )
            manifest_table(manifest, errors)

    def answered(self, exchange: str, round: int, rounds: int, outcome: Reply | Failure) -> None:
        if isinstance(outcome, Failure):
            self.note(f"round {round + 1} of {rounds}, {exchange}: {outcome.reason}, {outcome.detail}")
        elif not self.quiet:
            self.note(f"round {round + 1} of {rounds}, {exchange}: sent {size(outcome.message.nbytes)}")

    def received(self, folder: Path) -> None:
        self.note(f"the experiment is over; its models are in {folder}: see `fedstill export {folder} model.onnx`")


def status(folder: Path, as_json: bool) -> None:
    need_extra()
    from fedstill.deploy.certificates import day, expiry
    from fedstill.deploy.deployment_folder import open_server
    from fedstill.deploy.server_status import read_status

    place = open_server(folder)
    known = read_status(place.path)
    until = expiry(place.certificate)
    if as_json:
        print_json(
            {"name": place.name, "address": place.address, "port": place.port, "expires": until.isoformat()}
            | (known or {"alive": False})
        )
        return
    console.print(f"{place.name}: {place.address} port {place.port}, certificate until {day(until)}")
    if known is None:
        console.print("no server has run here yet: start one with `fedstill deploy server`")
        return
    alive = known["state"] if known["alive"] else f"not running (last heard {known['at']}, then {known['state']})"
    console.print(f"server: {alive}")
    if known["run"]:
        console.print(f"run: {known['run']}, round {known['round']} of {known['rounds']}")
    rows = [
        (name, "connected" if here and known["alive"] else "away", known["failures"].get(name, ""))
        for name, here in known["sites"].items()
    ]
    table("", ("site", "is", "last lost"), rows)
