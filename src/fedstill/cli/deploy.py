"""`fedstill deploy ...`: what makes and shows the folders of a deployment."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path

from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import count, size
from fedstill.runtime.experiment import Experiment


def init(folder: Path, sites: int, address: str, port: int, days: int, as_json: bool) -> None:
    need_extra()
    from fedstill.deploy.certificates import day, expiry
    from fedstill.deploy.deployment_folder import make_deployment, open_server

    make_deployment(folder, sites, address, port, days)
    made = open_server(folder)
    made.check()
    until = expiry(made.certificate)
    if as_json:
        facts = {"name": made.name, "address": made.address, "port": made.port, "sites": made.sites}
        print_json({"folder": str(folder), **facts, "expires": until.isoformat()})
        return
    console.print(
        f"{folder}: a server at {made.address}, port {made.port}, and {count(sites, 'site')};"
        f" its certificate counts until {day(until)}\n"
        f"who gets which folder, and what to do there: {folder / 'README.md'}\n"
        f"keep {folder / 'authority'} offline, and give each site its own folder only",
        soft_wrap=True,
    )


def renew(folder: Path, address: str | None, days: int, as_json: bool) -> None:
    need_extra()
    from fedstill.deploy.certificates import day, expiry
    from fedstill.deploy.deployment_folder import open_server
    from fedstill.deploy.renewal import renew_certificate

    renew_certificate(folder, address, days)
    made = open_server(folder)
    until = expiry(made.certificate)
    if as_json:
        print_json({"folder": str(folder), "address": made.address, "expires": until.isoformat()})
        return
    console.print(
        f"{made.certificate} counts until {day(until)}: copy the files in {made.path} to the server's folder",
        soft_wrap=True,
    )
    if address is not None:
        console.print(f"each site: write `address: {made.address}` into its site.yaml", soft_wrap=True)


def split(experiment: Experiment, out: Path, sites: int | None, data_root: Path | None, as_json: bool) -> None:
    from fedstill.deploy.shard_files import write_shards
    from fedstill.runtime.plan import make_plan

    if sites is not None and experiment.clients != sites:
        raise InputError(
            f"{experiment.method.name} pools the data in one place: there is nothing to cut for {sites} sites"
        )
    plan = make_plan(experiment, data_root)
    paths = write_shards(plan, out)
    assert plan.clients.test is not None
    training, test = plan.clients.shards.sizes().tolist(), plan.clients.test[1].sizes().tolist()
    if as_json:
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


def stop_cleanly() -> None:
    """A service is stopped with SIGTERM: what was started is then ended as with Ctrl-C."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)


def need_extra() -> None:
    """Refuse, before any work, what only the extra `flower` makes possible."""
    if missing := [name for name in ("cryptography", "flwr") if find_spec(name) is None]:
        raise InputError(f"deployments need {', '.join(missing)}: install them with pip install 'fedstill[flower]'")
