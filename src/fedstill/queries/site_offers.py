"""What a site keeps of a transfer between peers, for itself: the offered models, and who answered its query.

    SITE/offers/RUN/peers/peer-1.safetensors ...   weights of each peer that fit an architecture that is installed here
    SITE/offers/RUN/peers/peers.yaml               the architecture of each, and the recall that it reports
    SITE/offers/RUN/own.safetensors, own.yaml      this site's model before the transfer, and its architecture
    SITE/queries/RUN.json                          the query, the teachers and the change in recall; it is sent nowhere

The offered models can be queried again later, without the server (`fedstill query SITE/offers/RUN/peers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from fedstill.core.files import disk_trouble, write_atomically, write_json
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, digest, part
from fedstill.core.numbers import share
from fedstill.core.protocols import Client
from fedstill.core.table import text_table
from fedstill.core.terminal_table import terminal_text
from fedstill.methods.base import MODEL
from fedstill.queries.checkpoint_files import FACTS_FILE, SUFFIX
from fedstill.queries.peers import ARCHITECTURE, BEFORE, QUERY, RECALL, PeerMethod, built
from fedstill.queries.qkt import QKTSettings, QueryTransfer
from fedstill.queries.query import Answered, recalls

OWN = "own"
_WIDTH = 118  # characters of a line of the site's log


def keep_offers(
    method: PeerMethod, client: Client, offered: Mapping[str, Tensor], folder: Path, run: str
) -> Sequence[str]:
    """Store the offered models and the outcome of this site's query; gives the outcome as a table."""
    peers = built(method.task, offered)
    facts = {number: _facts(method, part(offered, f"{number}/")) for number in peers}
    place = folder / "offers" / run
    try:
        _write(place, peers, facts, client)
        record = _record(method, client, peers, facts)
        if record is None:
            return [f"{len(peers)} offered models are in {place}"]
        (folder / "queries").mkdir(exist_ok=True)
        write_json(folder / "queries" / f"{run}.json", record)
    except OSError as error:
        raise disk_trouble(folder, error) from error
    return [*_lines(record, method.task.classes), f"the offered models are in {place}"]


def _facts(method: PeerMethod, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The architecture of an offered model, and the recall that its owner reports, by the name of the class."""
    classes = method.task.classes
    told = state[RECALL].tolist() if RECALL in state and state[RECALL].shape == (len(classes),) else []
    recall = {name: value for name, value in zip(classes, told, strict=False) if 0 <= value <= 1}
    return {"model": method.task.architectures[int(state[ARCHITECTURE])], "recall": recall}


def _write(place: Path, peers: Mapping[int, nn.Module], facts: Mapping[int, Any], client: Client) -> None:
    (place / "peers").mkdir(parents=True, exist_ok=True)
    for number, model in peers.items():
        write_atomically(place / "peers" / f"{_name(number)}{SUFFIX}", Message(state_of(model)).encode())
    described = {_name(number): one for number, one in facts.items()}
    write_atomically(place / "peers" / FACTS_FILE, yaml.safe_dump(described).encode())
    write_atomically(place / f"{OWN}{SUFFIX}", Message(part(client.state, BEFORE)).encode())
    write_atomically(place / f"{OWN}.yaml", yaml.safe_dump({"model": client.profile.architecture}).encode())


def _name(number: int) -> str:
    return f"peer-{number}"


def _record(
    method: PeerMethod, client: Client, peers: Mapping[int, nn.Module], facts: Mapping[int, Any]
) -> dict[str, Any] | None:
    """The query and its outcome; None if this site asked for nothing, or its method has no teachers."""
    settings, query = method.settings, torch.nonzero(client.state[QUERY]).flatten().tolist()
    if not query or not isinstance(settings, QKTSettings):
        return None
    transfer = QueryTransfer(client, settings, method.training)
    teachers = transfer.teachers(peers)
    before, after = (_recalls(client, part(client.state, which)) for which in (BEFORE, MODEL))
    classes = method.task.classes
    return {
        "classes": query,
        "peers": [
            {
                "peer": number,
                "model": facts[number]["model"],
                "sha256": digest(state_of(model)),
                "probed": transfer.probed(number, model).probabilities.tolist(),
                "recall": {classes.index(name): value for name, value in facts[number]["recall"].items()},
                "teaches": any(model is one for one in teachers),
            }
            for number, model in peers.items()
        ],
        "before": None if before is None else before.tolist(),
        "after": None if after is None else after.tolist(),
        "metrics": _metrics(client, before, after, query),
        "unmeasured": _unmeasured(client, query),
    }


def _recalls(client: Client, state: Mapping[str, Tensor]) -> Tensor | None:
    """The recall of each class on this site's held-out samples; None without any."""
    if client.test is None or not len(client.test):
        return None
    model = client.task.build(client.profile.architecture, dict(state))
    return recalls(client.task.score([model], client.test)["confusion"])


def _unmeasured(client: Client, query: Sequence[int]) -> list[int]:
    """Queried classes of which this site has no held-out samples."""
    labels = None if client.test is None else client.test.labels()
    return [number for number in query if labels is None or not bool((labels == number).any())]


def _metrics(
    client: Client, before: Tensor | None, after: Tensor | None, query: Sequence[int]
) -> dict[str, float] | None:
    labels = client.data.labels()
    if before is None or after is None or labels is None:
        return None
    counts = torch.bincount(labels, minlength=len(before))
    return Answered(before, after, counts, tuple(query)).metrics()


def _lines(record: Mapping[str, Any], classes: Sequence[str]) -> list[str]:
    """The table for this site's operator."""
    query = record["classes"]
    names = ", ".join(classes[number] for number in query)
    header = ["peer", "model", *(f"{classes[number]}: said of noise (recall it reports)" for number in query), ""]
    rows = [
        [
            str(one["peer"]),
            one["model"],
            *(f"{share(one['probed'][number])} ({share(one['recall'].get(number))})" for number in query),
            "teaches" if one["teaches"] else "",
        ]
        for one in record["peers"]
    ]
    lines = [
        f"this site asks for {names}",
        terminal_text(text_table("", header, rows, range(2, 2 + len(query))), _WIDTH),
    ]
    if not any(one["teaches"] for one in record["peers"]):
        return [*lines, "no peer passed the probe: this site keeps the model it has"]
    lines += [
        f"this site has no held-out samples of {classes[number]}: what it gained of it is not known, and counts as 0"
        if number in record["unmeasured"]
        else f"recall of {classes[number]}: {share(record['before'][number])} → {share(record['after'][number])}"
        for number in query
    ]
    if record["metrics"] is not None:
        lines.append(
            f"gain {100 * record['metrics']['gain']:+.1f}, forgetting {100 * record['metrics']['forgetting']:+.1f}"
            " points, on this site's held-out samples"
        )
    return lines
