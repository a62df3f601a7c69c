"""Whatever is misspelt, one sentence names the nearest word, before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedstill

pytestmark = pytest.mark.xdist_group("wrong-names")  # so that the runs are made once

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A run that shares a model, and one whose clients have their own."""
    folder = tmp_path_factory.mktemp("runs")
    tiny = {"data": "digits", "model": "mlp", "clients": 2, "rounds": 1, "out": folder, "epochs": 1}
    return {name: str(fedstill.run(method, **tiny).path) for name, method in (("run", "fedavg"), ("own", "local-only"))}


# What is typed, and the name that was meant.
WRONG = [
    ("rnu", "run"),
    ("data lits", "list"),
    ("deploy innit", "init"),
    ("run fedavg --roundz 3", "--rounds"),
    ("data list --jsn", "--json"),
    ("list method", "methods"),
    ("run fedvag", "fedavg"),
    ("run digist", "digits"),
    ("egress fedvag", "fedavg"),
    ("fleet show fedvag", "fedavg"),
    ("study clinical-gird", "clinical-grid"),
    ("run digits --preset tny", "tiny"),
    ("study clinical-grid --preset lit", "lite"),
    ("study clinical-grid --variant corected", "corrected"),
    ("run fedavg --data digit", "digits"),
    ("data check digit", "digits"),
    ("data partition digit", "digits"),
    ("data show digit", "digits"),
    ("pretrain rooms-unlabeled", "rooms-unlabelled"),
    ("run fedavg --model resnet9", "resnet8"),
    ("pretrain rooms --model detr3d-lit", "detr3d-lite"),
    ("run fedavg --partition dirichlett", "dirichlet"),
    ("data partition digits --partition dirichlett", "dirichlet"),
    ("run fedavg --participation randm:number=2", "random"),
    ("run fedavg --dropout brusty", "bursty"),
    ("run fedavg --engine proces", "processes"),
    ("run fedavg --device cdua", "cuda"),
    ("study digits --executor rey", "ray"),
    ("study digits --metric acuracy", "accuracy"),
    ("run fedavg --set traning.rate=1", "training"),
    ("run fedavg --set training.rat=1", "rate"),
    ("run fedavg --set rat=1", "rate"),
    ("run fedavg --set fleet.volt=1", "volts"),
    ("run fedavg --set queries.clases=single", "classes"),
    ("run fedavg --partition dirichlet:alfa=1", "alpha"),
    ("run fedprox --set method.mue=1", "mu"),
    ("pretrain rooms --set hiden=0.5", "hidden"),
    ("pretrain rooms --set training.rat=1", "rate"),
    ("study digits --set rat=1", "rate"),
    ("run fedavg --set training.schedule=cosin", "cosine"),
    ("run fedavg --set schedule=cosin", "cosine"),
    ("run fedavg --set evaluation=onsite", "on-site"),
    ("run fedavg --set attack=label-filp", "label-flip"),
    ("run fedavg --set mitigation=nonee", "none"),
    ("run feddf --set precision=haf", "half"),
    ("distill --teacher {run} --student cn", "cnn"),
    ("distill --teacher {run} --student mlp --objective vanila", "vanilla"),
    ("distill --teacher {run} --student mlp --objective dkd:temprature=4", "temperature"),
    ("distill --teacher {run} --student mlp --labels withold", "withhold"),
    ("distill --teacher {run} --student mlp --which bets", "best"),
    ("distill --teacher {run} --student mlp --teacher-model mpl", "mlp"),
    ("distill --teacher {run} --student cnn --proxy digit", "digits"),
    ("predict {run} x.npy --which lst", "last"),
    ("predict {run} x.npy --architecture mpl", "mlp"),
    ("export {run} model.pt2 --which lst", "last"),
    ("latency {run} --which lst", "last"),
    ("query {own} --client 0 --class 3 --method qtk", "qkt"),
    ("query {own} --client 0 --class 3 --set treshold=0", "threshold"),
    ("audit table.csv --fail-on maskd", "masked"),
    ("audit table.csv --unit percnt", "percent"),
    ("data show heads --class sagital", "sagittal"),
]


@pytest.mark.parametrize(("words", "meant"), WRONG, ids=[words for words, _ in WRONG])
def test_the_nearest_name_is_said(call: Call, runs: dict[str, str], words: str, meant: str) -> None:
    np.save("x.npy", np.zeros((8, 8), dtype=np.uint8))
    Path("table.csv").write_text("teacher,objective,seed,accuracy\nfedavg,vanilla,7,91\n")
    before = sorted(Path().rglob("*"))
    code, out, err = call(*words.format(**runs).split())
    assert code == 2, err
    assert f"did you mean {meant!r}?" in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert sorted(Path().rglob("*")) == before, "nothing is half-written"
