"""Connection faults: a proxy between sites and server disturbs the connections of a deployment over TLS.

Real `fedstill deploy` processes: a server and two sites that reach it through the proxy. In each episode faults of
random kinds at random places strike one after another, and the run's files must equal those of an undisturbed one.
"""

from __future__ import annotations

import random
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from tests.deploy.fault_proxy import Direction, Fault, FaultProxy, Kind

from benchmarks.reliability.jobs import OUT
from benchmarks.reliability.traces import contents, differences
from benchmarks.report import DifferenceError, Findings, Row
from benchmarks.sizes import Size
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan

SEED, SITES, IN_A_ROW = 12, 2, 8  # faults in one episode
KINDS: tuple[Kind, ...] = get_args(Kind)
PLACES = ("connecting", "enrolling", "a request or the final model", "a reply")
HEAD = ("fault", *PLACES, "faults")
EXPERIMENT = {"method": "fedavg", "data": "digits", "model": "mlp", "rounds": 2, "seed": 5, "clients": SITES}


def measure(size: Size, folder: Path) -> Findings:
    if not find_spec("flwr"):
        return Findings([Row("connection faults", "not measured", note="flwr not installed")])
    draw = random.Random(SEED)
    undisturbed, _ = episode(folder / "undisturbed", [])
    struck, different, compared = Counter[tuple[str, str]](), list[str](), 0
    while struck.total() < size.connection_faults:
        number = min(IN_A_ROW, size.connection_faults - struck.total())
        place = folder / str(struck.total())
        files, hit = episode(place, [drawn(draw) for _ in range(number)])
        compared += len(files)
        different += [f"{place.name}: {name}" for name in differences(files, undisturbed)[0]]
        struck.update((fault.kind, where(fault)) for fault in hit)
        print(f"  {struck.total()} faults, {len(different)} differences", file=sys.stderr, flush=True)
    return findings(struck, compared, different)


def drawn(draw: random.Random) -> Fault:
    """A fault at a random place; one in four in each of `PLACES`."""
    kind, direction = draw.choice(KINDS), draw.choice(get_args(Direction))
    match draw.randrange(4):
        case 0:
            return Fault(kind, direction, draw.randrange(1500))
        case 1:
            return Fault(kind, direction, draw.randrange(1500, 5000))
        case 2:
            return Fault(kind, "to site")
    return Fault(kind, "to server")


def where(fault: Fault) -> str:
    """The place of a fault in words.

    >>> [where(Fault("cut", "to site", after)) for after in (100, 4000, None)]
    ['connecting', 'enrolling', 'a request or the final model']
    """
    if fault.after is not None:
        return PLACES[0] if fault.after < 1500 else PLACES[1]
    return PLACES[2] if fault.direction == "to site" else PLACES[3]


def episode(place: Path, script: Sequence[Fault]) -> tuple[Mapping[str, bytes], Sequence[Fault]]:
    """The files of a run whose connections were disturbed, and the faults that struck."""
    from fedstill.deploy.deployment_folder import make_deployment
    from fedstill.deploy.rehearsal import LocalDeployment
    from fedstill.deploy.shard_files import write_shards

    place.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    deployment = place / "deployment"
    make_deployment(deployment, SITES, "127.0.0.1", port)
    shards = write_shards(make_plan(make_experiment({**EXPERIMENT, "evaluation": "on-site"})), place / "data")
    settings = ["--model", "mlp", "--rounds", "2", "--seed", "5", "--set", "training.epochs=1"]
    with LocalDeployment(place / "logs") as company, FaultProxy(port, script) as proxy:
        for site, shard in enumerate(shards):
            data = ["--site", str(site), "--server", f"127.0.0.1:{proxy.port}", "--data", f"npz:{shard}", "--once"]
            company.start(f"site-{site}", ["site", str(deployment), *data])
        out = ["--out", str(place / OUT), "--host", "127.0.0.1", "--quiet"]
        company.start("server", ["server", str(deployment), "fedavg", *settings, *out])
        company.wait("server")
        for site in range(SITES):
            company.wait(f"site-{site}")
    files = contents(place / OUT)
    if not any(name.endswith("result.json") for name in files):
        raise DifferenceError(f"{place.name}: the deployment has no result")
    return files, proxy.hit


def findings(struck: Counter[tuple[str, str]], compared: int, different: Sequence[str]) -> Findings:
    lines = [
        (kind, *(str(struck[kind, place]) for place in PLACES), str(sum(struck[kind, place] for place in PLACES)))
        for kind in KINDS
    ]
    sums = [sum(struck[kind, place] for kind in KINDS) for place in PLACES]
    made = Findings(tables={"Connection faults": [HEAD, *lines, ("all", *map(str, sums), str(sum(sums)))]})
    made.rows = [
        Row("connection faults", str(sum(sums))),
        Row("files compared with those of an undisturbed deployment", str(compared)),
        Row("different files", str(len(different))),
    ]
    made.differences = list(different)
    return made
