"""The commands below `fedstill deploy`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.completion import named
from fedstill.cli.flags import Flags, with_flags
from fedstill.cli.options import (
    Device,
    DryRun,
    Experiment,
    Json,
    Out,
    Plugin,
    Quiet,
    Root,
)
from fedstill.cli.plain import Commands

deploy_app = Commands(name="deploy", help="A federation across machines: folders, server and sites.")

Folder = Annotated[Path, typer.Argument(help="The deployment's folder.", metavar="DIR")]
Days = Annotated[int, typer.Option(help="How long the server's certificate counts.")]


@deploy_app.command(name="init")
def deploy_init(
    folder: Folder,
    sites: Annotated[int, typer.Option(help="How many sites take part.")],
    address: Annotated[str, typer.Option(help="The name or IP at which sites call the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port on which the server listens.")] = 9092,
    days: Days = 365,
    json: Json = False,
) -> None:
    """Make certificates, keys and instructions for a server and its sites."""
    from fedstill.cli import deploy as deploying

    deploying.init(folder, sites, address, port, days, json)


@deploy_app.command(name="renew")
def deploy_renew(
    folder: Folder,
    address: Annotated[str | None, typer.Option(help="Where sites call the server, if that has changed.")] = None,
    days: Days = 365,
    json: Json = False,
) -> None:
    """Make a new certificate for the server; sites need nothing new."""
    from fedstill.cli import deploy as deploying

    deploying.renew(folder, address, days, json)


@deploy_app.command(name="split")
@with_flags("clients")
def deploy_split(
    experiment: Experiment,
    flags: Flags,
    out: Annotated[Path, typer.Argument(help="Folder for the files.", metavar="OUT")],
    sites: Annotated[
        int | None, typer.Option(help="How many sites; else as many as the experiment has clients.")
    ] = None,
    data_root: Root = None,
    json: Json = False,
) -> None:
    """Cut an experiment's data into a file for each site, as a simulation would."""
    from fedstill.cli import deploy as deploying

    chosen = replace(flags, clients=sites, set_=[*(flags.set_ or []), "evaluation=on-site"]).assemble(experiment)
    deploying.split(chosen, out, sites, data_root, json)


Insecure = Annotated[bool, typer.Option("--insecure", help="WITHOUT ENCRYPTION: for tests on one machine only.")]


@deploy_app.command(name="server")
@with_flags("data", "partition", "clients")
def deploy_server(
    folder: Folder,
    experiment: Experiment,
    flags: Flags,
    out: Out = Path("runs"),
    only: Annotated[str | None, typer.Option(help="Only these sites, e.g. 0,2; else all of the deployment.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[int | None, typer.Option(help="The port to listen on; else the deployment's.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds for one reply, after which a site counts as lost.")] = 3600,
    wait: Annotated[float, typer.Option(help="Seconds for missing sites when an interrupted run goes on.")] = 60,
    limit: Annotated[float, typer.Option(help="The largest reply that is accepted, in megabytes.")] = 1024,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew with whatever data the sites have now.")] = False,
    data_root: Root = None,
    device: Device = "cpu",
    insecure: Insecure = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run an experiment with a deployment's sites; the server has no data, and goes on where it was interrupted."""
    from fedstill.cli import deploy_server as serving
    from fedstill.deploy.server_options import ServerOptions, bytes_of

    chosen = flags.assemble(experiment)
    sites, largest = serving.site_numbers(only), bytes_of(limit)
    terms = ServerOptions(host, port, insecure, sites, patience, wait, largest, fresh, data_root, device)
    if dry_run:
        serving.show_plan(folder, chosen, terms, json)
    else:
        serving.server(folder, chosen, out, terms, quiet, json)


@deploy_app.command(name="site")
def deploy_site(
    folder: Folder,
    data: Annotated[
        str,
        typer.Option(
            help="This site's own data: a file, npz:FILE, folder:FOLDER or a name.", autocompletion=named("datasets")
        ),
    ],
    site: Annotated[int | None, typer.Option(help="Its number, where DIR is the whole deployment's folder.")] = None,
    server: Annotated[str | None, typer.Option(help="HOST:PORT of the server; else the deployment's.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Leave when an experiment has ended.")] = False,
    proxy: Annotated[
        list[str] | None, typer.Option(help="Shared samples that an experiment may use here, by name; repeatable.")
    ] = None,
    insecure: Insecure = False,
    data_root: Root = None,
    device: Device = "cpu",
    plugin: Plugin = None,
    quiet: Quiet = False,
) -> None:
    """Take part with this site's own data, as far as its policy file allows."""
    from fedstill.cli import deploy_server as serving

    serving.site(folder, site, data, server, once, insecure, proxy or [], data_root, device, plugin or [], quiet)


@deploy_app.command(name="status")
def deploy_status(folder: Folder, json: Json = False) -> None:
    """What the server is doing, which sites are connected, and until when its certificate counts."""
    from fedstill.cli import deploy_server as serving

    serving.status(folder, json)


@deploy_app.command(name="try")
@with_flags("clients", rounds=3)
def deploy_try(
    folder: Folder,
    flags: Flags,
    experiment: Experiment = "fedavg",
    data_root: Root = None,
    compare: Annotated[bool, typer.Option(help="Also run it in this process, and compare the models.")] = True,
    insecure: Insecure = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Rehearse a deployment on this machine: a server and all sites, each with its own shard only."""
    from fedstill.cli import trying

    trying.try_out(folder, experiment, flags, data_root, compare, insecure, quiet, json)
