"""Plugins written for an earlier release: each gets one sentence that says what to rename, and nothing is run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedstill.cli import main
from fedstill.core.renamed import CODE, HOMES, MODULES, RENAMED

METHOD = """
from fedstill.methods import FedAvg, methods

@methods.register("old-{number}")
class Old(FedAvg):
    {line}
"""
EXCHANGE = """
from fedstill.core.protocols import Exchange

class Old(Exchange):
    {line}
"""
SIGNATURES = {
    "merge": "def merge(self, state, replies, turn): return state",
    "also": "def also(self, server): return {}",
    "facts": "def facts(self, server): return {}",
    "counts": "def counts(self, round, rounds): return True",
    "least": "least = 2",
    "update": "update = 'model/'",
    "once": "once = 'frozen/'",
    "bulky": "bulky = True",
}
ATTRIBUTES = {
    "def request(self, state, who, turn): return None if who.since is None else super().request(state, who, turn)": (
        "Old.request reads .since, which is .last_round now: rename it"
    ),
    "def reply(self, client, request, turn): return client.profile.since": (
        "Old.reply reads .since, which is .last_round now: rename it"
    ),
    "def aggregate(self, state, replies, turn): return len(turn.lost)": (
        "Old.aggregate reads .lost, which is .failures now: rename it"
    ),
    "def provide(self, proxy): self.proxy = proxy": "Old.provide is not called any more: set wants =",
}
IMPORTS = {
    "policy": ("from fedstill.core.protocols import Turn", "Turn of fedstill.core.protocols has another name now"),
    "dropout": (
        "from fedstill.core.protocols import Fate",
        "import DropoutEvent from fedstill.core.participation_protocols",
    ),
    "participation": (
        "from fedstill.core.protocols import Attendance",
        "import RoundParticipation from fedstill.core.part",
    ),
    "failures": ("from fedstill.core.protocols import Lost", "rename it to Failure"),
    "state": ("from fedstill.core.protocols import Kept", "rename it to StateVersion"),
    "base policy": (
        "from fedstill.participation import Policy",
        "fedstill.participation does not have Policy any more: import Policy from fedstill.participation.policies",
    ),
    "mitigation": (
        "from fedstill.methods import Cure",
        "fedstill.methods does not have Cure any more: import Mitigation from fedstill.methods.wrappers.choices",
    ),
    "objective": (
        "from fedstill.distillation.base import Objective",
        "the module fedstill.distillation.base has another name now: rename it to fedstill.distillation.objective",
    ),
    "own objective": ("from fedstill.distillation import Vanilla", "import Vanilla from fedstill.distillation.logits"),
    "outputs": (
        "from fedstill.distillation.outputs import words",
        "words of fedstill.distillation.outputs has another name now: rename it to named_outputs",
    ),
    "model": ("from fedstill.models.detector import Detector", "rename it to fedstill.detection.model"),
    "attack": ("from fedstill.methods.attacks import attacks", "rename it to fedstill.methods.wrappers.attacks"),
}


@pytest.fixture
def complaint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """The one sentence on standard error of a run with this plugin, which must end with 2 and leave nothing."""

    def run(text: str) -> str:
        plugin, out = tmp_path / "old.py", tmp_path / "runs"
        plugin.write_text(text)
        monkeypatch.setattr(sys, "argv", ["fedstill", "run", "fedavg", "--plugin", str(plugin), "--out", str(out)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert not out.exists()
        said = capsys.readouterr().err.strip()
        assert "\n" not in said
        return said

    return run


@pytest.mark.parametrize("base", [METHOD, EXCHANGE], ids=["method", "exchange"])
@pytest.mark.parametrize("name", SIGNATURES)
def test_every_renamed_part_of_an_exchange_is_named(name: str, base: str, complaint: Callable[[str], str]) -> None:
    said = complaint(base.format(number=name, line=SIGNATURES[name]))
    assert f"Old.{name} has another name now: rename it to {RENAMED[name]}" in said


def test_the_table_has_every_renamed_part() -> None:
    assert SIGNATURES.keys() == RENAMED.keys()


@pytest.mark.parametrize("line", ATTRIBUTES)
def test_renamed_attributes_are_found_before_a_run(line: str, complaint: Callable[[str], str]) -> None:
    assert ATTRIBUTES[line] in complaint(METHOD.format(number=0, line=line))


@pytest.mark.parametrize("part", IMPORTS)
def test_imports_of_an_earlier_release_are_named(part: str, complaint: Callable[[str], str]) -> None:
    line, sentence = IMPORTS[part]
    assert sentence in complaint(line)


def test_attributes_of_a_plugins_own_are_left_alone() -> None:
    """`self.lost` is the plugin's, and so is whatever another function is passed."""
    from fedstill.methods import FedAvg

    class Mine(FedAvg):
        lost = 0

        def aggregate(self, state, replies, context):  # type: ignore[no-untyped-def]
            return {**super().aggregate(state, replies, context), **self.kept(self, self.lost)}

        def kept(self, other, lost):  # type: ignore[no-untyped-def]
            return other.lost + lost

    assert Mine.lost == 0


def test_what_is_recommended_exists() -> None:
    """And what is refused does not, or the sentence would be wrong."""
    places = {*MODULES.values(), *HOMES.values()}
    assert [place for place in sorted(places) if find_spec(place) is None] == []
    assert not MODULES.keys() & places


def test_recommended_names_exist() -> None:
    from fedstill.core import participation_protocols, protocols
    from fedstill.distillation import outputs, teachers
    from fedstill.methods.wrappers import mitigations

    known = {
        name for module in (participation_protocols, protocols, outputs, teachers, mitigations) for name in vars(module)
    }
    assert set(CODE.values()) <= known
    assert not CODE.keys() & known
