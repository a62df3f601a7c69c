"""`fedstill deploy try`: a rehearsal of a deployment on this machine."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedstill.cli.deploying import need_extra, stop_cleanly
from fedstill.cli.experiments import run_printed, show_result
from fedstill.cli.flags import Flags
from fedstill.cli.screen import console, errors, print_json
from fedstill.cli.serving import INSECURE
from fedstill.core.errors import RunError
from fedstill.runtime.experiment import Experiment
from fedstill.runtime.launch import launch
from fedstill.runtime.plan import make_plan
from fedstill.runtime.result import Run


def arguments(experiment: str, flags: Flags) -> list[str]:
    """The same experiment for `fedstill deploy server`: data and partition are the sites' own affair."""
    once = ("model", "participation", "dropout", "rounds", "seed", "preset", "variant")
    given = [text for name in once if (value := getattr(flags, name)) is not None for text in (f"--{name}", str(value))]
    repeated = [text for setting in flags.set_ or () for text in ("--set", setting)]
    repeated += [text for query in flags.query or () for text in ("--query", query)]
    return [experiment, *given, *repeated, *plugin_arguments(flags.plugin or ())]


def plugin_arguments(plugins: Sequence[Path]) -> list[str]:
    return [text for plugin in plugins for text in ("--plugin", str(plugin))]


def try_out(
    folder: Path,
    name: str,
    flags: Flags,
    data_root: Path | None,
    compare: bool,
    insecure: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    need_extra()
    stop_cleanly()
    from fedstill.deploy.create import SERVER
    from fedstill.deploy.deployment_folder import open_server, open_site
    from fedstill.deploy.private_files import site_name
    from fedstill.deploy.shard_files import write_shards
    from fedstill.deploy.site_registry import for_sites

    place = open_server(folder)
    open_site(folder, 0)  # all folders must be here
    on_site = [*(flags.set_ or ()), "evaluation=on-site"]
    experiment = replace(flags, clients=place.sites, set_=on_site).assemble(name)
    for_sites(experiment, place.sites, place.name)  # refused now if it cannot be deployed
    if insecure:
        errors.print(INSECURE, style="bold red")
    plan = make_plan(experiment, data_root)
    tried = folder / "try"
    shutil.rmtree(tried, ignore_errors=True)  # of an earlier rehearsal
    shards = write_shards(plan, tried / "data")
    # Copies: what is handed out later must not hold agreements and states of a rehearsal.
    for part in (SERVER, *(site_name(site) for site in range(place.sites))):
        shutil.copytree(folder / part, tried / "folders" / part)
    run = _played(tried, name, flags, shards, insecure, quiet)
    same = _alone(experiment, tried / "alone", data_root).sha256 == run.sha256 if compare else None
    if as_json:
        print_json({**run_printed(run), **({} if same is None else {"as_in_one_process": same})})
    else:
        show_result(run)
        if same:
            console.print("the same experiment in one process gives the same models, bit for bit")
    if same is False:
        raise RunError("the same experiment in one process gives other models: that must not be, please report it")


def _played(tried: Path, name: str, flags: Flags, shards: Sequence[Path], insecure: bool, quiet: bool) -> Run:
    from fedstill.deploy.rehearsal import LocalDeployment

    folder = tried / "folders"
    plain = ["--insecure"] if insecure else []
    port = str(_free_port())
    with LocalDeployment(tried / "logs", {"FEDSTILL_DATA": str(tried / "no-data-here")}) as company:
        _say(quiet, f"starting a server and {len(shards)} sites on this machine; their logs are in {tried / 'logs'}")
        answer = tried / "result.json"
        with open(answer, "wb") as output:
            listen = ["--host", "127.0.0.1", "--port", port, "--json", *plain]
            same = [*arguments(name, flags), "--out", str(tried / "runs")]
            company.start("server", ["server", str(folder), *same, *listen], output)
            for number, shard in enumerate(shards):
                where = ["--site", str(number), "--server", f"127.0.0.1:{port}", "--data", f"npz:{shard}", *plain]
                company.start(f"site-{number}", ["site", str(folder), *where, *plugin_arguments(flags.plugin or ())])
            company.wait("server")
        content: dict[str, Any] = json.loads(answer.read_text())
    return Run(content["run"])


def _alone(experiment: Experiment, out: Path, data_root: Path | None) -> Run:
    return launch(experiment, out=out, data_root=data_root)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        errors.print(text, soft_wrap=True)
