"""`fedstill.query` with a run, with files, and with torch modules and arrays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedstill
from fedstill.core.errors import InputError
from fedstill.core.kinds import state_of
from fedstill.core.message import digest
from fedstill.queries.query_function import are_offers

from .offered import QUICK, hand_over, net, samples, taught


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return hand_over(tmp_path)


def test_modules_and_arrays_from_python(peers: Path) -> None:
    """The same models as objects give the same model."""
    wanted = fedstill.query(
        peers, classes="date", data="npz:mine.npz", model="small_nets:build", own="mine.safetensors", **QUICK
    )
    offered = {"north": taught((1, 2)), "south": taught((0, 3), width=12)}
    own = taught((0, 1), seed=3)
    before = digest(state_of(own))
    asked = fedstill.query(offered, classes="date", data="npz:mine.npz", own=own, **QUICK)
    assert digest(state_of(asked.model)) == digest(state_of(wanted.model))
    assert asked.names == wanted.names
    assert digest(state_of(own)) == before
    listed = fedstill.query(list(offered.values()), classes="date", data="npz:mine.npz", own=own, **QUICK)
    assert listed.names == ("you", "peer 0", "peer 1")


def test_arrays_without_a_class_that_peers_have() -> None:
    images, labels = samples()
    mine = torch.isin(labels, torch.tensor([0, 1]))
    parts = ((images[mine], labels[mine]), (images, labels))
    with pytest.raises(InputError, match="class 'c' has no training samples"):
        fedstill.dataset(parts, classes=list("abcd"))
    data = fedstill.dataset(parts, classes=list("abcd"), part=True)
    heard: list[str] = []
    asked = fedstill.query(
        {"south": taught((0, 3))},
        classes="d",
        data=data,
        own=taught((0, 1)),
        callbacks=lambda phase, epochs, accuracy: heard.append(phase),
        **QUICK,
    )
    assert [asked.name(number) for number in asked.teachers] == ["south"]
    assert heard == ["features"] * 3 + ["head"] * 3


def test_an_interrupted_query_leaves_nothing_and_gives_the_same_bits_when_repeated(peers: Path, tmp_path: Path) -> None:
    """Interrupted while it learns from peers, after its own model was trained alone, which is kept and reused."""
    given = {"classes": "date", "data": "npz:mine.npz", "model": "small_nets:build", "out": tmp_path / "runs"}
    settings = {**QUICK, "rounds": 2, "training.epochs": 2}

    def interrupt(phase: str, epochs: int, accuracy: float) -> None:
        if (phase, epochs) == ("head", 2):
            raise KeyboardInterrupt

    whole = fedstill.query(peers, **{**given, "out": tmp_path / "whole"}, **settings)
    with pytest.raises(KeyboardInterrupt):
        fedstill.query(peers, **given, callbacks=interrupt, **settings)
    assert [path.name.split("-npz")[0] for path in (tmp_path / "runs").iterdir()] == ["local-only"]
    again = fedstill.query(peers, **given, **settings)
    assert digest(state_of(again.model)) == digest(state_of(whole.model))
    assert again.keep(tmp_path / "runs").path.name == whole.keep(tmp_path / "whole").path.name


def test_a_run_and_offers_are_told_apart(peers: Path, tmp_path: Path) -> None:
    assert are_offers(peers, "npz:mine.npz")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    assert not are_offers(tmp_path / "run", "npz:mine.npz")
    assert not are_offers(tmp_path / "run", None)
    with pytest.raises(InputError, match="name your own data"):
        are_offers(peers, None)
    with pytest.raises(InputError, match="say which client of the run asks"):
        fedstill.query(tmp_path / "run", classes=3)


def test_modules_that_cannot_be_asked() -> None:
    data = (torch.rand(20, 1, 6, 6), torch.arange(20) % 4)
    sick = net()
    sick[3].bias.data[0] = float("nan")
    with pytest.raises(InputError, match=r"the weights of a are not finite: '3.bias'"):
        fedstill.query({"a": sick}, classes=3, data=data, own=net())
    with pytest.raises(InputError, match=r"Sequential of b returns outputs of shape .* since there are 4 classes"):
        fedstill.query({"b": net(classes=5)}, classes=3, data=data, own=net())
    with pytest.raises(InputError, match="is of type str: pass torch modules"):
        fedstill.query({"c": "net"}, classes=3, data=data, own=net())  # type: ignore[dict-item]
    with pytest.raises(InputError, match="there is no offered model"):
        fedstill.query({}, classes=3, data=data, own=net())
    with pytest.raises(InputError, match="pass it as data"):
        fedstill.query({"a": net()}, classes=3, own=net())
    with pytest.raises(InputError, match="leave client out"):
        fedstill.query({"a": net()}, 0, 3, data=data, own=net())
