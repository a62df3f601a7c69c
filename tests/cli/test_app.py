"""The command line as a whole: help, exit codes, and one sentence for every invalid command, before any work."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedstill
from fedstill import cli
from fedstill.cli.app import COMMANDS, DATA_COMMANDS, DEPLOY_COMMANDS, EXAMPLES
from fedstill.cli.reference import overview

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


def broken_npz() -> None:
    Path("broken.npz").write_bytes(b"PK\x03\x04 not really")


MISTAKES = [
    (["run", "fedvag"], "did you mean 'fedavg'"),
    (["run", "fedavg", "--data", "digit"], "did you mean 'digits'"),
    (["run", "fedavg", "--model", "resnet9"], "did you mean 'resnet"),
    (["run", "fedavg", "--partition", "dirichlett"], "did you mean 'dirichlet'"),
    (["run", "fedavg", "--participation", "randm:number=2"], "did you mean 'random'"),
    (["run", "fedavg", "--engine", "process"], "did you mean 'processes'"),
    (["run", "fedavg", "--device", "gpu"], "unknown device 'gpu'"),
    (["run", "fedavg", "--set", "traning.rate=1"], "traning"),
    (["run", "fedavg", "--set", "training.rat=1"], "did you mean 'rate'"),
    (["run", "fedavg", "--set", "rat=1"], "did you mean 'rate'"),
    (["run", "fedavg", "--set", "rate"], "key=value"),
    (["run", "fedavg", "--set", "rate=0"], "training.rate"),
    (["run", "fedavg", "--set", "rate=fast"], "training.rate"),
    (["run", "fedavg", "--set", "rate=NaN"], "training.rate"),
    (["run", "fedavg", "--rounds", "0"], "rounds"),
    (["run", "fedavg", "--rounds", "many"], "rounds"),
    (["run", "fedavg", "--seed", "-1"], "seed"),
    (["run", "fedavg", "--clients", "0"], "clients"),
    (["run", "fedavg", "--clients", "2000"], "2,000 clients cannot share 1,438 samples"),
    (["run", "fedavg", "--set", "validation=1.5"], "validation"),
    (["run", "fedavg", "--set", "min_replies=99"], "min_replies"),
    (["run", "fedavg", "--set", "norm_limit=-1"], "norm_limit"),
    (["run", "fedavg", "--participation", "random"], "fraction or number"),
    (["run", "fedavg", "--participation", "random:number=99"], "participation.number"),
    (["run", "fedavg", "--participation", "everyone:availability=2"], "participation.availability"),
    (["run", "fedavg", "--partition", "dirichlet:alpha=0"], "partition.alpha"),
    (["run", "fedavg", "--partition", "pathological:classes_per_client=99"], "99 classes"),
    (["run", "fedavg", "--data", "mnist", "--data-root", "nowhere"], "nowhere"),
    (["run", "fedavg", "--data", "npz:missing.npz"], "missing.npz"),
    (["run", "fedavg", "--data", "npz:broken.npz"], "broken.npz"),
    (["run", "fedavg", "--data", "heads", "--model", "cnn"], "2048x3"),
    (["run", "fedavg", "--workers", "0", "--engine", "processes"], "workers"),
    (["run", "fedavg", "--plugin", "missing.py"], "missing.py"),
    (["run", "fedavg", "--preset", "tiny"], "only recipes have presets"),
    (["run", "digits", "--preset", "giant"], "no preset 'giant'"),
    (["run", "missing.yaml"], "missing.yaml"),
    (["run", "fedavg", "--bogus"], "--bogus"),
    (["run"], "METHOD_OR_RECIPE"),
    (["list", "method"], "did you mean 'methods'"),
    (["show", "nowhere"], "nowhere is not a run"),
    (["predict", "nowhere", "x.png"], "nowhere is not a run"),
    (["egress", "fedvag"], "did you mean 'fedavg'"),
    (["clean", "--out", "nowhere"], "nowhere"),
    (["data", "check", "digitz"], "did you mean 'digits'"),
    (["data", "add", "a/b", "."], "a/b"),
    (["data", "partition", "digits", "--out", "p.doc"], ".png or .svg"),
    (["data", "partition", "digits", "--partition", "iid:alpha=1"], "alpha"),
    (["data", "show", "head-parts", "--class", "nose"], "there is no class 'nose'"),
    (["frobnicate"], "frobnicate"),
]


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_gets_one_sentence_and_exit_code_2(call: Call, words: list[str], says: str) -> None:
    broken_npz()
    before = sorted(Path().rglob("*"))
    code, out, err = call(*words)
    assert code == 2, err
    assert says in err
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in out + err
    assert sorted(Path().rglob("*")) == before, "nothing is half-written"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run nosuch.yaml", "there is no file nosuch.yaml"),
        ("run some/where", "there is no file some/where"),
        ("run fedavg --data ok.npz", "say npz:ok.npz"),
        ("run fedavg --data pictures", "say folder:pictures"),
        ("run fedavg --data nosuch.npz", "there is no file nosuch.npz"),
        ("run fedavg --rounds 3 --set rounds=5", "--rounds and `--set rounds=5` contradict each other"),
        ("run fedavg --partition iid --set partition=dirichlet", "--partition and `--set partition=dirichlet`"),
        ("run fedavg --dropout 0.2 --set dropout.rate=0.1", "--dropout and `--set dropout.rate=0.1`"),
        ("run fedavg --set mu=1", "nothing chosen has it, only feddf, fedprox"),
        ("run fedavg --set rat=1", "did you mean 'rate'?"),
        ("run fedavg --set batchsize=1", "did you mean 'batch'?"),
        ("distill --student mlp --teacher-file w.safetensors", "add --teacher-model"),
        ("distill --student mlp --teacher-call a:b --epochs 0", "--epochs is at least 1, not 0"),
        ("study other.json", "other.json cannot be read as a study's results: format: field required"),
        ("report runs --out page.pdf", "page.pdf is to hold a page: give it a name that ends in .html"),
        ("audit table.csv --html page.pdf", "page.pdf is to hold a page"),
        ("query run --client 0 --class 1 --html page.pdf", "page.pdf is to hold a page"),
        ("detect run scan.ply --html page.pdf", "page.pdf is to hold a page"),
        ("run", "fedstill run` needs METHOD_OR_RECIPE (name of a method or recipe, or a recipe file)"),
        ("distill", "needs --student (name of the student's model): see `"),
        ("run fedavg --batch-size 8", "it is a setting: --set batch_size=VALUE"),
        ("runs --lr 1", "has no option '--lr': known: "),
        ("run fedavg --clients many", "'many' is not a valid integer: see `"),
        ("--log-level debug run fedavg", "options stand behind the name of a command"),
    ],
)
def test_one_sentence_names_the_remedy(call: Call, words: str, says: str) -> None:
    np.savez("ok.npz", x=np.zeros(1))
    Path("pictures").mkdir()
    Path("other.json").write_text("{}")
    code, out, err = call(*words.split())
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", ["", "data", "deploy", "fleet", "patches"])
def test_a_group_alone_prints_its_help(call: Call, words: str) -> None:
    code, out, err = call(*words.split())
    assert (code, err) == (0, "")
    assert out == call(*words.split(), "--help")[1]
    assert out.startswith("Usage: ")
    assert "\n  -h, --help" in out


def test_the_overview_needs_no_command_and_is_that_of_the_assembled_commands() -> None:
    code = """
import sys
from unittest.mock import patch
from fedstill.cli import main
sys.argv = ["bin/fedstill", "--help"]
with patch("shutil.get_terminal_size", return_value=__import__("os").terminal_size((100, 24))):
    try:
        main()
    except SystemExit as end:
        print("typer" in sys.modules, end.code, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["False", "0"]
    assert re.findall(r"^  [a-z]+  ", done.stdout, re.M) == re.findall(r"^  [a-z]+  ", overview(), re.M)


@pytest.mark.parametrize("words", ["", "data", "deploy", "deploy policy", "fleet", "patches"])
def test_the_sentence_of_every_command_is_shown_whole(call: Call, words: str) -> None:
    _, listed, _ = call(*words.split(), "-h")
    commands = listed.partition("Commands:")[2]
    assert commands
    assert "..." not in commands


def test_a_narrow_terminal_gets_help_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert cli._overview() is None


def test_help_and_version_are_quick_to_import() -> None:
    """`--help` must not wait for torch."""
    code = "import sys\nfrom fedstill.cli.app import app\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_interrupt_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedstill.cli.list.shelves", interrupted)
    assert call("list") == (130, "", "fedstill: interrupted: run the same command again to go on\n")


def test_the_package_itself_is_the_command() -> None:
    said = subprocess.run([sys.executable, "-m", "fedstill", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.split()[-1] == fedstill.__version__


@pytest.mark.parametrize("typed", EXAMPLES)
def test_examples_below_the_help_fit_a_terminal_and_use_options_that_exist(call: Call, typed: str) -> None:
    code, help_text, _ = call(*typed.split(), "--help")
    assert code == 0
    for example in EXAMPLES[typed]:
        assert example.startswith(f"fedstill {typed} ")
        assert f"    {example}\n" in help_text, "on a line of its own"
        assert len(example) <= 76
        assert [word for word in example.split() if word.startswith("--") and word not in help_text] == []


def test_the_most_used_commands_have_examples() -> None:
    assert len(EXAMPLES) >= 10
    known = {*COMMANDS, *(f"data {one}" for one in DATA_COMMANDS), *(f"deploy {one}" for one in DEPLOY_COMMANDS)}
    assert EXAMPLES.keys() <= known


def test_an_interrupt_while_packages_are_imported_gives_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["fedstill", "list"])
    monkeypatch.delitem(sys.modules, "fedstill.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=interrupted)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 130
    assert capsys.readouterr().err == "fedstill: interrupted: nothing has been done\n"


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_a_package_hides_gives_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hidden() -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise AttributeError("module 'numpy' has no attribute 'matrix'")

    monkeypatch.setattr(sys, "argv", ["fedstill", "list"])
    monkeypatch.setattr("fedstill.cli.app.main", hidden)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 130
    assert capsys.readouterr().err == "fedstill: interrupted: run the same command again to go on\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
