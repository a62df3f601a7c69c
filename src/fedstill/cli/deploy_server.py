"""`fedstill deploy server` and `fedstill deploy site`: the two processes of a deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.deploy import (
    INSECURE,
    Folder,
    Insecure,
    Proxies,
    SiteData,
    SiteNumber,
    load_site_data,
    need_extra,
    stop_cleanly,
)
from fedstill.cli.flags import Flags, with_flags
from fedstill.cli.options import Device, DryRun, ExperimentName, Json, Out, Plugin, Quiet, Root, Track
from fedstill.cli.run import manifest_table, print_plan, print_run
from fedstill.cli.screen import errors
from fedstill.core.errors import InputError
from fedstill.core.numbers import count, size
from fedstill.core.plugins import use_plugins

if TYPE_CHECKING:  # help need not wait for torch
    from fedstill.core.protocols import Failure, Reply
    from fedstill.data.bundle import Bundle
    from fedstill.deploy.server_options import ServerOptions
    from fedstill.runtime.experiment import Experiment

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}")


@with_flags("data", "partition", "clients")
def deploy_server(
    folder: Folder,
    experiment: ExperimentName,
    flags: Flags,
    out: Out = Path("runs"),
    only: Annotated[str | None, typer.Option(help="Only these sites, e.g. 0,2; default: all.")] = None,
    host: Annotated[str, typer.Option(help="Network address to listen on.")] = "0.0.0.0",
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; default: the one given to `deploy init`.")
    ] = None,
    patience: Annotated[
        float,
        typer.Option(help="Seconds to wait for one reply before the site counts as failed, and for sites to enrol."),
    ] = 3600,
    wait: Annotated[
        float,
        typer.Option(
            help="Seconds to wait for a site that lost its connection, that is missing when a run is resumed, or that"
            " was refused."
        ),
    ] = 60,
    min_sites: Annotated[
        int | None, typer.Option(help="Number of sites that are enough to start with if others refuse; default: all.")
    ] = None,
    limit: Annotated[float, typer.Option(help="Largest reply that is accepted, in megabytes.")] = 1024,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new run with the data that the sites have now.")
    ] = False,
    data_root: Root = None,
    device: Device = "cpu",
    insecure: Insecure = False,
    track: Track = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run or resume an experiment as the server, without data."""
    from fedstill.deploy.server_options import ServerOptions, bytes_of
    from fedstill.runtime.tracked import check_track

    chosen = flags.assemble(experiment)
    sites, largest = _site_numbers(only), bytes_of(limit)
    terms = ServerOptions(host, port, insecure, sites, patience, wait, min_sites, largest, fresh, data_root, device)
    need_extra()
    if dry_run:
        check_track(track)
        _show_plan(folder, chosen, terms, json)
    else:
        _serve(folder, chosen, out, terms, quiet, json, track)


def deploy_site(
    folder: Folder,
    data: SiteData,
    site: SiteNumber = None,
    server: Annotated[
        str | None, typer.Option(help="HOST:PORT of the server; default: the one given to `deploy init`.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit after one experiment.")] = False,
    wait: Annotated[
        float | None,
        typer.Option(help="Seconds to try to reach the server before giving up; default: until it can be reached."),
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Option(help="Class that this site asks its peers for, in experiments with queries; repeatable."),
    ] = None,
    earlier: Annotated[
        bool,
        typer.Option("--earlier", help="Ask the models that peers offered in an earlier experiment, without a server."),
    ] = False,
    proxy: Proxies = None,
    insecure: Insecure = False,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    quiet: Quiet = False,
) -> None:
    """Take part with this site's data, as far as its policy file allows."""
    need_extra()
    from fedstill.core.hardware import check_device
    from fedstill.data.bundle import class_number
    from fedstill.deploy.deployment_folder import open_site
    from fedstill.deploy.rehearsal import die_with_parent
    from fedstill.deploy.server_options import check_seconds
    from fedstill.deploy.site import take_part

    stop_cleanly()
    die_with_parent()
    use_plugins(plugin or [])
    check_device(device)
    check_seconds("--wait", wait)
    if server is not None and not _ADDRESS.fullmatch(server):
        raise InputError(f"cannot read the server's address {server!r}: write HOST:PORT, as in fl.example.org:9092")
    place = open_site(folder, site)
    bundle = load_site_data(data, data_root)
    for name in query or ():
        class_number(name, bundle.classes)
    if earlier:
        _ask_earlier_offers(place.path, query or [], bundle, data_root, device, quiet)
        return
    if insecure:
        errors.print(INSECURE, style="bold red")
    watcher = _SiteLog(quiet)
    watcher.note(
        f"site {place.site} of {place.name}: {len(bundle.train):,} training and {len(bundle.test):,} test samples"
    )
    take_part(
        place,
        bundle,
        watcher,
        address=server,
        insecure=insecure,
        once=once,
        wait=wait,
        data_root=data_root,
        proxies=proxy or [],
        device=device,
        query=tuple(query) if query else None,
    )


def _ask_earlier_offers(
    site: Path, query: Sequence[str], bundle: Bundle, data_root: Path | None, device: str, quiet: bool
) -> None:
    """Query the models of the latest experiment in which peers offered some; they are in the site's folder."""
    from fedstill.cli.extensions import commands
    from fedstill.deploy.earlier_offers import latest_offers

    if not query:
        raise InputError("say what this site asks for, as in --query 7")
    offers = latest_offers(site)
    commands["query"](
        offers.peers,
        class_=list(query),
        data=bundle.name,
        model=offers.model,
        own=offers.own,
        out=site / "queries",
        data_root=data_root,
        device=device,
        quiet=quiet,
    )


def _site_numbers(text: str | None) -> tuple[int, ...]:
    """`0,2` as numbers."""
    try:
        return tuple(sorted({int(number) for number in text.split(",")})) if text else ()
    except ValueError:
        raise InputError(f"cannot read the sites {text!r}: write their numbers, as in --only 0,2") from None


def _show_plan(folder: Path, experiment: Experiment, terms: ServerOptions, as_json: bool) -> None:
    """The experiment as sites would be sent it; no site is contacted."""
    from fedstill.deploy.deployment_folder import open_server
    from fedstill.deploy.site_registry import for_sites

    place = open_server(folder)
    sites = len(terms.sites) or place.sites
    print_plan(for_sites(experiment, sites, place.name), f"for {count(sites, 'site')} of {place.name}", as_json)


def _serve(
    folder: Path,
    experiment: Experiment,
    out: Path,
    terms: ServerOptions,
    quiet: bool,
    as_json: bool,
    track: Sequence[str] | None,
) -> None:
    from fedstill.cli.progress import RunDisplay
    from fedstill.core.hardware import check_device
    from fedstill.deploy import server as deployed
    from fedstill.deploy.deployment_folder import open_server
    from fedstill.deploy.rehearsal import die_with_parent
    from fedstill.runtime.result import Run

    stop_cleanly()
    die_with_parent()
    check_device(terms.device)
    if terms.insecure:
        errors.print(INSECURE, style="bold red")
    display = RunDisplay(quiet or as_json)
    try:
        done = deployed.serve(open_server(folder), experiment, out, _ServerLog(quiet), terms, [display], track)
    finally:
        display.close()
    print_run(Run(done.path), as_json)


class _ServerLog:
    """Prints what happens at the server, each thing once."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.missing = quiet, tuple[int, ...]()

    def note(self, text: str) -> None:
        if not self.quiet:
            errors.print(text, soft_wrap=True)

    def waiting(self, for_sites: Sequence[int]) -> None:
        if tuple(for_sites) != self.missing:
            self.missing = tuple(for_sites)
            self.note(f"waiting for site {', '.join(map(str, for_sites))}")


class _SiteLog:
    """A site's log: what will leave, each request and its outcome, where the model is."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def note(self, text: str) -> None:
        errors.print(text, soft_wrap=True)

    def manifest(self, manifest: Mapping[str, Any], experiment: str) -> None:
        if not self.quiet:
            errors.print(
                f"\nExperiment {experiment}: {manifest['method']}, {manifest['model']}. What will leave this site,"
                " from a rehearsal on its own data:",
            )
            manifest_table(manifest, errors)

    def answered(self, exchange: str, round: int, rounds: int, outcome: Reply | Failure) -> None:
        from fedstill.core.protocols import Failure

        if isinstance(outcome, Failure):
            self.note(f"round {round + 1} of {rounds}, {exchange}: {outcome.reason}, {outcome.detail}")
        elif not self.quiet:
            self.note(f"round {round + 1} of {rounds}, {exchange}: sent {size(outcome.message.nbytes)}")

    def received(self, folder: Path) -> None:
        self.note(f"the experiment is over; its models are in {folder}: see `fedstill export {folder} model.onnx`")
