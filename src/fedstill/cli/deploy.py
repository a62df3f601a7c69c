"""`fedstill deploy ...`: the folders of a deployment, its status, and a rehearsal of it on this machine."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.flags import Flags, with_flags
from fedstill.cli.options import ExperimentName, Json, Quiet, Root, named
from fedstill.cli.run import run_to_dict, show_result
from fedstill.cli.screen import console, errors, print_json, table
from fedstill.core.errors import InputError, RunError
from fedstill.core.numbers import count, size

if TYPE_CHECKING:  # help need not wait for torch
    from fedstill.data.bundle import Bundle
    from fedstill.runtime.result import Run

INSECURE = "INSECURE: nothing is encrypted, anybody on the way can read and change it. Never do this with real data."
Folder = Annotated[
    Path, typer.Argument(help="Folder made by `deploy init`, or the part of it on this machine.", metavar="DIR")
]
SiteData = Annotated[
    str,
    typer.Option(
        help="This site's data: npz:FILE, folder:FOLDER, or the name of a data set.", autocompletion=named("datasets")
    ),
]
SiteNumber = Annotated[
    int | None, typer.Option(help="Number of the site, if DIR is the folder of the whole deployment.")
]
Proxies = Annotated[
    list[str] | None, typer.Option("--proxy", help="Name of shared samples that experiments may use here; repeatable.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="WITHOUT ENCRYPTION: for tests on one machine only.")]
Days = Annotated[int, typer.Option(help="Days for which the server's certificate is valid.")]


def deploy_init(
    folder: Annotated[Path, typer.Argument(help="Folder to create for the whole deployment.", metavar="DIR")],
    sites: Annotated[int, typer.Option(help="Number of sites.")],
    address: Annotated[
        str, typer.Option(help="Host name or IP address at which sites reach the server.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port on which the server listens.")] = 9092,
    days: Days = 365,
    json: Json = False,
) -> None:
    """Create certificates and keys for a server and its sites."""
    need_extra()
    from fedstill.deploy.certificates import day, expiry
    from fedstill.deploy.deployment_folder import make_deployment, open_server

    make_deployment(folder, sites, address, port, days)
    made = open_server(folder)
    made.check()
    until = expiry(made.certificate)
    if json:
        facts = {"name": made.name, "address": made.address, "port": made.port, "sites": made.sites}
        print_json({"folder": str(folder), **facts, "expires": until.isoformat()})
        return
    console.print(
        f"{folder}: a server at {made.address}, port {made.port}, and {count(sites, 'site')};"
        f" its certificate is valid until {day(until)}\n"
        f"instructions for the server and each site: {folder / 'README.md'}\n"
        f"keep {folder / 'authority'} offline, and give each site its own folder only",
        soft_wrap=True,
    )


def deploy_renew(
    folder: Folder,
    address: Annotated[
        str | None, typer.Option(help="Host name or IP address of the server, if it has changed.")
    ] = None,
    days: Days = 365,
    json: Json = False,
) -> None:
    """Create a new certificate for the server; sites need no new files."""
    need_extra()
    from fedstill.deploy.certificates import day, expiry
    from fedstill.deploy.deployment_folder import open_server
    from fedstill.deploy.renewal import renew_certificate

    renew_certificate(folder, address, days)
    made = open_server(folder)
    until = expiry(made.certificate)
    if json:
        print_json({"folder": str(folder), "address": made.address, "expires": until.isoformat()})
        return
    console.print(
        f"{made.certificate} is valid until {day(until)}: copy the files in {made.path} to the server's folder",
        soft_wrap=True,
    )
    if address is not None:
        console.print(f"each site: write `address: {made.address}` into its site.yaml", soft_wrap=True)


@with_flags("clients")
def deploy_split(
    experiment: ExperimentName,
    flags: Flags,
    out: Annotated[Path, typer.Argument(help="Folder for the files.", metavar="OUT")],
    sites: Annotated[
        int | None, typer.Option(help="Number of sites; default: the experiment's number of clients.")
    ] = None,
    data_root: Root = None,
    json: Json = False,
) -> None:
    """Write one data file per site, partitioned as in a simulation."""
    from fedstill.deploy.shard_files import write_shards
    from fedstill.runtime.plan import make_plan

    chosen = replace(flags, clients=sites, set_=[*(flags.set_ or []), "evaluation=on-site"]).assemble(experiment)
    if sites is not None and chosen.clients != sites:
        raise InputError(f"{chosen.method.name} pools the data in one place: there is nothing to cut for {sites} sites")
    plan = make_plan(chosen, data_root)
    paths = write_shards(plan, out)
    assert plan.clients.test is not None
    training, test = plan.clients.shards.sizes().tolist(), plan.clients.test[1].sizes().tolist()
    if json:
        files = [
            {"file": str(path), "training": rows, "test": held, "bytes": path.stat().st_size}
            for path, rows, held in zip(paths, training, test, strict=True)
        ]
        print_json({"data": plan.experiment.data, "partition": plan.experiment.partition.name, "files": files})
        return
    lines = [
        (str(path), f"{rows:,}", f"{held:,}", size(path.stat().st_size))
        for path, rows, held in zip(paths, training, test, strict=True)
    ]
    table("", ("file", "training samples", "test samples", "size"), lines, right=(1, 2, 3))


def deploy_status(folder: Folder, json: Json = False) -> None:
    """Show server activity, connected sites, certificate expiry."""
    need_extra()
    from fedstill.deploy.certificates import day, expiry
    from fedstill.deploy.deployment_folder import open_server
    from fedstill.deploy.server_status import read_status

    place = open_server(folder)
    known = read_status(place.path)
    until = expiry(place.certificate)
    if json:
        print_json(
            {"name": place.name, "address": place.address, "port": place.port, "expires": until.isoformat()}
            | (known or {"alive": False})
        )
        return
    console.print(f"{place.name}: {place.address} port {place.port}, certificate until {day(until)}")
    if known is None:
        console.print("no server has run here yet: start one with `fedstill deploy server`")
        return
    alive = known["state"] if known["alive"] else f"not running (last status {known['state']}, {known['at']})"
    console.print(f"server: {alive}")
    if known["run"]:
        console.print(f"run: {known['run']}, round {known['round']} of {known['rounds']}")
    keys = place.keyed_sites()
    table("", ("site", "state", "refusal or last failure"), [_site_row(name, known, keys) for name in known["sites"]])


def _site_row(name: str, known: Mapping[str, Any], keys: Collection[int]) -> tuple[str, str, str]:
    state = "connected" if known["sites"][name] and known["alive"] else "not connected"
    if int(name) not in keys:
        return name, "not admitted", "its key was revoked, or its file is missing in sites/"
    if why := known["refusals"].get(name):
        return name, f"{state}, does not take part", why
    return name, state, known["failures"].get(name, "")


@with_flags("clients", rounds=3)
def deploy_try(
    folder: Folder,
    flags: Flags,
    experiment: ExperimentName = "fedavg",
    proxy: Proxies = None,
    data_root: Root = None,
    compare: Annotated[
        bool, typer.Option(help="Also run the experiment in one process, and compare the models.")
    ] = True,
    insecure: Insecure = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Rehearse on this machine with a server and all sites."""
    need_extra()
    stop_cleanly()
    from fedstill.deploy.create import SERVER
    from fedstill.deploy.deployment_folder import open_server, open_site
    from fedstill.deploy.private_files import site_name
    from fedstill.deploy.server_status import NAME as STATUS
    from fedstill.deploy.shard_files import write_shards
    from fedstill.deploy.site_registry import for_sites
    from fedstill.runtime.launch import launch
    from fedstill.runtime.plan import make_plan

    place = open_server(folder)
    open_site(folder, 0)  # all folders must be here
    flags = _with_proxy(flags, experiment, proxy or ())
    on_site = [*(flags.set_ or ()), "evaluation=on-site"]
    chosen = replace(flags, clients=place.sites, set_=on_site).assemble(experiment)
    deployed = for_sites(chosen, place.sites, place.name)  # refused now if it cannot be deployed
    if insecure:
        errors.print(INSECURE, style="bold red")
    plan = make_plan(chosen, data_root)
    tried = folder / "try"
    shutil.rmtree(tried, ignore_errors=True)  # of an earlier rehearsal
    shards = write_shards(plan, tried / "data")
    # Copies: what is handed out later must not hold agreements and states of a rehearsal.
    for part in (SERVER, *(site_name(site) for site in range(place.sites))):
        shutil.copytree(folder / part, tried / "folders" / part, ignore=shutil.ignore_patterns(STATUS))
    shared = _shared_arguments(proxy or (), data_root)
    run = _rehearse(tried, experiment, flags, shards, insecure, quiet, shared)
    repeatable = deployed.privacy == chosen.privacy  # at sites noise comes from the operating system
    same = None
    if compare and repeatable:
        same = launch(chosen, out=tried / "alone", data_root=data_root).sha256 == run.sha256
    if json:
        print_json({**run_to_dict(run), **({} if same is None else {"as_in_one_process": same})})
    else:
        show_result(run)
        if same:
            console.print("the same experiment in one process gives the same models, bit for bit")
        elif compare and not repeatable:
            console.print("its noise comes from the operating system: no other run gives the same models")
    if same is False:
        raise RunError("the same experiment in one process gives other models: that must not be, please report it")


def _rehearse(
    tried: Path,
    name: str,
    flags: Flags,
    shards: Sequence[Path],
    insecure: bool,
    quiet: bool,
    shared: tuple[Sequence[str], Sequence[str]],
) -> Run:
    from fedstill.deploy.create import SERVER
    from fedstill.deploy.rehearsal import LocalDeployment
    from fedstill.deploy.server_status import refusal
    from fedstill.runtime.result import Run

    folder = tried / "folders"
    plain = ["--insecure"] if insecure else []
    port = str(_free_port())
    if not quiet:
        started = f"starting a server and {len(shards)} sites on this machine"
        errors.print(f"{started}; their logs are in {tried / 'logs'}", soft_wrap=True)
    with LocalDeployment(tried / "logs", {"FEDSTILL_DATA": str(tried / "no-data-here")}) as company:
        answer = tried / "result.json"
        with open(answer, "wb") as output:
            listen = ["--host", "127.0.0.1", "--port", port, "--json", *plain]
            same = [*_server_arguments(name, flags), "--out", str(tried / "runs"), *shared[0]]
            company.start("server", ["server", str(folder), *same, *listen], output)
            for number, shard in enumerate(shards):
                where = ["--site", str(number), "--server", f"127.0.0.1:{port}", "--data", f"npz:{shard}", *plain]
                more = [*_plugin_arguments(flags.plugin or ()), *shared[1]]
                company.start(f"site-{number}", ["site", str(folder), *where, *more])
            company.wait("server", lambda: refusal(folder / SERVER))
        content: dict[str, Any] = json.loads(answer.read_text())
    return Run(content["run"])


def _server_arguments(experiment: str, flags: Flags) -> list[str]:
    """The same experiment for `fedstill deploy server`, without data and partition, which each site has itself."""
    once = ("model", "participation", "dropout", "rounds", "seed", "preset", "variant")
    given = [text for name in once if (value := getattr(flags, name)) is not None for text in (f"--{name}", str(value))]
    repeated = [text for setting in flags.set_ or () for text in ("--set", setting)]
    repeated += [text for query in flags.query or () for text in ("--query", query)]
    return [experiment, *given, *repeated, *_plugin_arguments(flags.plugin or ())]


def _shared_arguments(proxies: Sequence[str], root: Path | None) -> tuple[list[str], list[str]]:
    """For the server and for each site: where the shared samples are, and which of them a site may use."""
    if not proxies:
        return [], []
    from fedstill.data.roots import data_root

    place = ["--data-root", str(data_root(root))]
    return place, [*place, *(text for name in proxies for text in ("--proxy", name))]


def _with_proxy(flags: Flags, name: str, proxies: Sequence[str]) -> Flags:
    """The only shared samples that sites may use are those of a method that needs some and was given none."""
    from fedstill.methods import methods

    wants = (
        name in methods and "shared samples" in methods[name].wants and "proxy" in methods[name].Options.model_fields
    )
    given = {text.partition("=")[0].strip() for text in flags.set_ or ()}
    if not wants or len(proxies) != 1 or given & {"proxy", "method.proxy"}:
        return flags
    return replace(flags, set_=[*(flags.set_ or ()), f"method.proxy={proxies[0]}"])


def _plugin_arguments(plugins: Sequence[Path]) -> list[str]:
    return [text for plugin in plugins for text in ("--plugin", str(plugin))]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def load_site_data(name: str, root: Path | None) -> Bundle:
    """A site's data, which need not have samples of every class; a file may be named without its kind."""
    from fedstill.data.lookup import load

    return load(f"npz:{name}" if name.endswith(".npz") and ":" not in name else name, root, part=True)


def need_extra() -> None:
    """Refuse, before any work, what only the extra `flower` makes possible."""
    if missing := [name for name in ("cryptography", "flwr") if find_spec(name) is None]:
        raise InputError(f"deployments need {', '.join(missing)}: install them with pip install 'fedstill[flower]'")


def stop_cleanly() -> None:
    """A service is stopped with SIGTERM: what was started is then ended as with Ctrl-C."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
