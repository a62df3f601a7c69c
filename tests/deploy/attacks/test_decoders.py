"""Decoders of everything that arrives, fed with anything: a value or a declared error, and memory within bounds."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import torch
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstill.core.errors import InputError, RunError
from fedstill.core.message import Message, MessageError
from fedstill.core.records import RecordError, read_result, read_round
from fedstill.deploy.answer_log import AnswerLog
from fedstill.deploy.certificates import certificate_bytes, check_certificate, make_authority
from fedstill.deploy.deployment_folder import SiteFile, read_facts
from fedstill.deploy.egress_log import EgressLog, read_log
from fedstill.deploy.enrolment import _read_roster
from fedstill.deploy.key_rotation import read_rotation, rotation_request
from fedstill.deploy.keys import (
    make_key,
    read_site_key,
    read_site_public,
    read_tls_key,
    registered_bytes,
    site_key_bytes,
    site_public_bytes,
    tls_key_bytes,
)
from fedstill.deploy.policy import read_policy
from fedstill.deploy.request_guard import InnerIdentity, RequestGuard, announced_by
from fedstill.deploy.secure_keys import read_peers, signed_peers
from fedstill.deploy.server_status import read_status
from fedstill.deploy.site_keys import SiteKeys
from fedstill.deploy.site_registry import SiteFacts
from fedstill.deploy.site_session import Agreement
from fedstill.engines.flower.encoding import packed, salted, unpacked, unsalted
from fedstill.queries.checkpoint_files import peer_facts, read_weights
from fedstill.runtime.recipes import recipe_by

GOOD = Message({"model/w": torch.ones(3, 2), "steps": torch.tensor(4)}).encode()
OLD, NEW = ((key, key.public_key()) for key in (make_key(), make_key()))
SIGNER = registered_bytes(OLD[1])
MOST = 64 * 2**20  # bytes that a decoder may take for inputs of a few kilobytes

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=6), one), max_leaves=6
)


def damaged(good: bytes) -> st.SearchStrategy[bytes]:
    """Anything, or something good with a piece of it replaced."""

    @st.composite
    def made(draw: st.DrawFn) -> bytes:
        at = draw(st.integers(0, len(good)))
        return good[:at] + draw(st.binary(max_size=12)) + good[at + draw(st.integers(0, 12)) :]

    return st.binary(max_size=200) | made()


def like(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with these fields, in which some are replaced, missing or of another kind."""
    known = st.fixed_dictionaries({}, optional={name: st.just(value) | values for name, value in fields.items()})
    return known | st.dictionaries(st.sampled_from([*fields, "other"]), values)


def header(**entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


FACTS = {
    "samples": 3,
    "classes": ["a", "b"],
    "kind": "image",
    "shape": [1, 8, 8],
    "labelled": True,
    "point_labels": False,
    "fingerprint": "0" * 64,
}
AGREEMENT = {"experiment": {}, "question": {"classes": ["a"], "kind": "image", "shape": [1, 8, 8]}, "client": 0}
POLICY = {
    "allow": {"parameters": "server"},
    "rounds": 3,
    "attempts": 1,
    "privacy": {"noise": 1.0},
    "methods": ["fedavg"],
}
ENTRY = {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}
frames = damaged(GOOD) | like(a=ENTRY, b={**ENTRY, "shape": [2], "data_offsets": [0, 2**62]}).map(
    lambda entries: header(**{str(name): entry for name, entry in entries.items()}) + bytes(8)
)


def record(data: bytes, dtype: str, stype: str, fields: dict[str, Any]) -> RecordDict:
    told = {str(name): value for name, value in fields.items() if isinstance(value, str | int | float | bytes)}
    told = {name: value for name, value in told.items() if not isinstance(value, int) or abs(value) < 2**63}
    return RecordDict(
        {"tensors": ArrayRecord({"model": Array(dtype, (1,), stype, data)}), "header": ConfigRecord(told)}
    )


envelopes = st.builds(
    record,
    frames.map(lambda data: bytes(16) + data),
    st.sampled_from(["uint8", "float32", ""]),
    st.sampled_from(["safetensors", "numpy.ndarray", ""]),
    like(salted="00", run="a", round=1),
) | st.just(salted(packed({"steps": torch.tensor(1)}, {"round": 1})))

DECODERS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any], tuple[type[Exception], ...]]] = {
    "frame": (frames, Message.decode, (MessageError,)),
    "envelope": (envelopes, lambda one: unpacked(unsalted(one)), (MessageError,)),
    "announcement": (st.binary(max_size=300), announced_by, ()),
    "rotation": (
        damaged(rotation_request(2, OLD, NEW))
        | like(statement="{}", signatures=["", ""]).map(lambda one: json.dumps(one).encode()),
        lambda body: read_rotation(body, 2, SIGNER),
        (InputError,),
    ),
    "enrolment": (like(**FACTS).map(json.dumps) | st.text(max_size=50), SiteFacts.read, (InputError,)),
    "agreement": (like(**AGREEMENT).map(json.dumps) | st.text(max_size=50), Agreement.read, (InputError,)),
    "round": (values | like(round=1, rounds=2, accepted=[0], failures=[]), read_round, (RecordError,)),
    "result": (values | like(format=3, sha256="0", rounds=2), read_result, (RecordError,)),
}


Message.decode(GOOD)  # what it imports is not measured


def decoded(decode: Callable[[Any], Any], value: Any, declared: tuple[type[Exception], ...]) -> None:
    tracemalloc.start()
    try:
        decode(value)
    except declared:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < MOST


def fuzzed(name: str, examples: int) -> None:
    strategy, decode, declared = DECODERS[name]

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(value: Any) -> None:
        decoded(decode, value, declared)

    run()


@pytest.mark.parametrize("name", DECODERS)
def test_only_declared_errors(name: str) -> None:
    fuzzed(name, 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_only_declared_errors_in_many_examples(name: str) -> None:
    fuzzed(name, 3000)


@settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    content=st.lists(
        st.binary(max_size=20) | like(previous="0" * 64, round=1).map(lambda one: json.dumps(one).encode()), max_size=3
    )
)
def test_logs(content: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("log")
    for name in ("egress.jsonl", "run.jsonl"):
        (folder / name).write_bytes(b"".join(line + b"\n" for line in content))
    decoded(read_log, folder, (RunError,))
    (folder / "egress.jsonl").unlink()
    decoded(AnswerLog, folder, (RunError,))


header_values = st.binary(max_size=40) | st.just(b"2026-11-18T12:00:00+00:00") | st.just(b"QUFB")


@settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    headers=st.lists(
        st.tuples(st.sampled_from([b"flwr-public-key", b"flwr-signature", b"flwr-timestamp", b"x"]), header_values),
        max_size=5,
    )
)
def test_heads_of_requests(headers: list[tuple[bytes, bytes]]) -> None:
    said: list[int] = []

    async def send(event: Any) -> None:
        if event["type"] == "http.response.start":
            said.append(event["status"])

    guard = RequestGuard(None, SiteKeys({0: SIGNER}), {0: InnerIdentity(NEW[0], 1)}, 100)
    scope = {"type": "http", "path": "/v1/fleet/pull-messages", "headers": headers}
    asyncio.run(guard(scope, lambda: pytest.fail("the body was read"), send))
    assert said == [401]


CERTIFICATE = certificate_bytes(make_authority("a")[1])
ROSTER = json.dumps({"0": FACTS}).encode()
STATUS = {"state": "x", "round": 0, "rounds": 1, "failures": {}, "refusals": {}, "run": None, "sites": {}, "at": ""}


def peers_of(place: Path) -> Any:
    (place / "ca.crt").write_bytes(CERTIFICATE)
    return read_peers(place)


# By file: bytes, and what reads them from its folder.
FILES: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "site.key": (site_key_bytes(OLD[0]), lambda place: read_site_key(place / "site.key")),
    "site.pub": (site_public_bytes(OLD[1], "a"), lambda place: read_site_public(place / "site.pub")),
    "server.key": (tls_key_bytes(OLD[0]), lambda place: read_tls_key(place / "server.key")),
    "ca.crt": (CERTIFICATE, lambda place: check_certificate(place / "ca.crt", place / "ca.crt", "localhost")),
    "peers.json": (signed_peers(OLD[0], "a", {0: bytes(32)}), peers_of),
    "status.json": (json.dumps(STATUS).encode(), read_status),
    "roster.json": (ROSTER, lambda place: _read_roster(place / "roster.json", [0])),
    "policy.yaml": (yaml.safe_dump(POLICY).encode(), lambda place: read_policy(place / "policy.yaml")),
    "site.yaml": (b"name: a\nsite: 0\nsites: 1\n", lambda place: read_facts(place / "site.yaml", SiteFile)),
    "peers.yaml": (b"a: cnn\n", lambda place: peer_facts(place, [place / "a.safetensors"])),
    "a.safetensors": (GOOD, lambda place: read_weights(place / "a.safetensors")),
    "mine.yaml": (b"experiment: {method: fedavg}\n", lambda place: recipe_by(str(place / "mine.yaml"))),
    "egress.jsonl": (b'{"previous": "0"}', lambda place: EgressLog(place).add(what="event")),
}


def read_anything(name: str, folder: Path, examples: int, fresh: bool = False) -> None:
    good, read = FILES[name]
    texts = (values | like(**{**STATUS, **POLICY})).map(
        lambda one: (json.dumps(one) if "json" in name else yaml.safe_dump(one)).encode()
    )

    quiet = list(HealthCheck)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=quiet, derandomize=not fresh)
    @given(damaged(good) | texts)
    def run(data: bytes) -> None:
        path = folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        decoded(read, folder, (InputError, RunError))

    run()


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    read_anything(name, tmp_path, 15)


def test_a_point_that_is_compressed_makes_no_key(tmp_path: Path) -> None:
    """What fuzzing found: cryptography raises an error of its own kind for it."""
    key = tmp_path / "site.key"
    lines = site_key_bytes(OLD[0]).splitlines()
    inside = bytearray(b64decode(b"".join(lines[1:-1])))
    place = inside.index(b"\x00\x00\x00\x61\x04") + 4
    inside[place] = 2
    key.write_bytes(b"\n".join([lines[0], b64encode(bytes(inside)), lines[-1]]) + b"\n")
    key.chmod(0o600)
    with pytest.raises(InputError, match="is no private key"):
        read_site_key(key)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_files_in_many_examples(name: str, tmp_path: Path) -> None:
    read_anything(name, tmp_path, 1000, fresh=True)


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_too_deep(name: str, tmp_path: Path) -> None:
    """Refused at once: the parser of YAML in Python takes a time quadratic in the depth, over a minute for these."""
    path = tmp_path / name
    for deep in ("[" * 50_000, "{a: " * 50_000, "- " * 50_000, '{"a":' * 50_000, "[" * 25_000 + "]" * 25_000):
        path.write_text(deep)
        path.chmod(0o600)
        begun = process_time()
        with suppress(InputError, RunError):
            FILES[name][1](tmp_path)
        assert process_time() - begun < 1


def test_nothing_is_too_deep(tmp_path: Path) -> None:
    deep = "[" * 100_000
    (tmp_path / "egress.jsonl").write_text(deep + "\n")
    for read, value, error in (
        (read_log, tmp_path, RunError),
        (SiteFacts.read, deep, InputError),
        (Agreement.read, deep, InputError),
        (Message.decode, len(deep).to_bytes(8, "little") + deep.encode(), MessageError),
    ):
        with pytest.raises(error):
            read(value)  # type: ignore[operator]
