"""Damaged files are detected, said, and the last good state is used; changed settings are another run."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.errors import InputError, RunError
from fedstill.core.message import Message
from fedstill.core.protocols import Engine
from fedstill.core.records import RUN_FORMAT, RoundRecord
from fedstill.runtime import checkpoint
from fedstill.runtime.run import execute
from fedstill.runtime.run_folder import RunFolder

from ..warm import Warm


class Listener:
    """Remembers what it was told; stops the run after a round if asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.rounds: list[int] = []
        self.stop_after = stop_after

    def start(self, experiment: Any, journal: Any) -> None: ...

    def round(self, record: RoundRecord) -> None:
        self.rounds.append(record.round)
        if record.round == self.stop_after:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def finish(self) -> None: ...


@pytest.fixture
def tiny_plan(tiny_plan: Any) -> Any:
    """Of less data and a smaller model: files are damaged all the same."""
    return partial(tiny_plan, data="digits[:30%]", model="mlp")


@pytest.fixture
def engine(engines: dict[str, Engine]) -> Engine:
    return engines["in-process"]


def interrupted(plan: Any, engine: Engine, out: Path, after: int) -> Path:
    with pytest.raises(KeyboardInterrupt):
        execute(plan, engine, out, [Listener(after)])
    return out / plan.folder_name


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        data[-3] ^= 1
        path.write_bytes(data)
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied", "missing"])
def test_a_damaged_checkpoint_costs_one_round(how: str, tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan(method="local-only", rounds=4)
    whole = RunFolder(execute(plan, engine, tmp_path / "whole").path)
    run = interrupted(plan, engine, tmp_path / "hurt", after=3)
    damage(run / "checkpoint.safetensors", how)
    listener = Listener()
    execute(plan, engine, tmp_path / "hurt", [listener])
    assert listener.rounds == [3, 4]
    if how != "missing":
        assert any(
            "checkpoint.safetensors is damaged" in note and "after round 2" in note for note in listener.warnings
        )
    assert RunFolder(run).result() == whole.result()
    assert (run / "journal.jsonl").read_bytes() == (whole.path / "journal.jsonl").read_bytes()


@pytest.mark.parametrize("hurt", ["checkpoint.safetensors", "clients/3.2.safetensors"])
def test_a_kill_in_the_commit_after_a_damage_costs_no_more(
    hurt: str, tiny_plan: Any, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the old checkpoint has moved out of the way, and before the new one has its name."""
    plan = tiny_plan(method="local-only", rounds=4)
    whole = execute(plan, engine, tmp_path / "whole")
    run = interrupted(plan, engine, tmp_path / "hurt", after=3)
    damage(run / hurt, "flipped")

    def killed(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            execute(plan, engine, tmp_path / "hurt")
    listener = Listener()
    again = execute(plan, engine, tmp_path / "hurt", [listener])
    assert listener.rounds == [3, 4]
    assert again.result() == whole.result()


@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied", "missing"])
def test_a_damaged_journal_is_restored(how: str, tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan(rounds=4)
    whole = execute(plan, engine, tmp_path / "whole").path
    run = interrupted(plan, engine, tmp_path / "hurt", after=3)
    damage(run / "journal.jsonl", how)
    listener = Listener()
    execute(plan, engine, tmp_path / "hurt", [listener])
    assert listener.rounds == [4]
    assert any("journal" in note for note in listener.warnings)
    assert (run / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()


def test_a_damaged_client_state_is_detected(tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan(method="local-only", rounds=4)
    whole = execute(plan, engine, tmp_path / "whole")
    run = interrupted(plan, engine, tmp_path / "hurt", after=3)
    damage(run / "clients" / "3.2.safetensors", "flipped")
    listener = Listener()
    hurt = execute(plan, engine, tmp_path / "hurt", [listener])
    assert listener.rounds == [3, 4]
    assert any("round 3 needs is damaged" in note for note in listener.warnings)
    assert hurt.result() == whole.result()


def test_with_both_checkpoints_gone_the_run_starts_again(tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan(rounds=3)
    whole = execute(plan, engine, tmp_path / "whole")
    run = interrupted(plan, engine, tmp_path / "hurt", after=2)
    for name in ("checkpoint.safetensors", "checkpoint-previous.safetensors"):
        damage(run / name, "flipped")
    listener = Listener()
    hurt = execute(plan, engine, tmp_path / "hurt", [listener])
    assert listener.rounds == [1, 2, 3]
    assert any("starting again" in note for note in listener.warnings)
    assert hurt.result() == whole.result()


def test_a_damaged_best_model_is_made_again(tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan(rounds=3)
    whole = execute(plan, engine, tmp_path / "whole").path
    run = interrupted(plan, engine, tmp_path / "hurt", after=2)
    for path in run.glob("model-best.*.safetensors"):
        damage(path, "flipped")
    execute(plan, engine, tmp_path / "hurt")
    assert (run / "model-best.safetensors").read_bytes() == (whole / "model-best.safetensors").read_bytes()


def test_a_finished_run_is_not_run_again(tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan()
    first = execute(plan, engine, tmp_path)
    listener = Listener()
    assert execute(plan, engine, tmp_path, [listener]).result() == first.result()
    assert listener.rounds == []
    assert "already" in listener.notes[0]


def test_a_finished_run_with_a_damaged_model_is_mended(tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan()
    path = execute(plan, engine, tmp_path).path / "model-last.safetensors"
    right = path.read_bytes()
    damage(path, "flipped")
    execute(plan, engine, tmp_path)
    assert path.read_bytes() == right


def test_changed_settings_are_another_run(tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan(rounds=3)
    run = interrupted(plan, engine, tmp_path, after=2)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    other = execute(tiny_plan(rounds=3, training={"epochs": 1, "batch": 64, "rate": 0.01}), engine, tmp_path)
    assert other.path != run
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_an_older_format_is_refused_with_a_sentence(tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    run = execute(tiny_plan(), engine, tmp_path).path
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "format": 0}))
    with pytest.raises(InputError, match="format 0"):
        RunFolder(run).config()


def test_two_processes_do_not_work_on_one_run(tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan()
    folder = RunFolder(tmp_path / plan.folder_name)
    folder.create({})
    with folder.lock(), pytest.raises(InputError, match="another process"):
        execute(plan, engine, tmp_path)


class _After:
    """An observer that does something after the first round."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def start(self, experiment: Any, journal: Any) -> None: ...

    def round(self, record: RoundRecord) -> None:
        if record.round == 1:
            self.act()

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def finish(self) -> None: ...


SECOND = """
from pathlib import Path
from fedstill.core.errors import BusyError
from fedstill.engines import InProcess
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import make_plan
from fedstill.runtime.run import execute
try:
    execute(make_plan(make_experiment({})), InProcess(), Path("runs"))
except BusyError as error:
    print(error)
"""


def test_a_deleted_lock_file_does_not_let_a_second_process_write(
    tiny_plan: Any, engine: Engine, warm: Warm, tmp_path: Path
) -> None:
    plan = tiny_plan()
    asked = plan.experiment.model_dump(mode="json", exclude_unset=True)
    printed: list[str] = []

    def second() -> None:
        (tmp_path / "runs" / plan.folder_name / ".lock").unlink()
        code = SECOND.format(repr(asked))
        printed.append(warm.python(code, tmp_path).stdout)

    disturbed = execute(plan, engine, tmp_path / "runs", [_After(second)])
    assert "another process is working on" in printed[0]
    assert disturbed.result() == execute(plan, engine, tmp_path / "undisturbed").result()


def test_a_run_whose_folder_was_replaced_writes_nothing_more(tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan()
    folder, moved = tmp_path / plan.folder_name, tmp_path / "moved"

    def replace_folder() -> None:
        folder.rename(moved)
        folder.mkdir()

    with pytest.raises(RunError, match="was deleted or replaced"):
        execute(plan, engine, tmp_path, [_After(replace_folder)])
    assert [path.name for path in folder.iterdir()] in ([], ["timing.json"])
    assert len((moved / "journal.jsonl").read_bytes().splitlines()) == 1


def test_a_full_disk_stops_the_run_and_loses_nothing(
    tiny_plan: Any, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    plan = tiny_plan(rounds=3)
    whole = execute(plan, engine, tmp_path / "whole")
    real, calls = os.fsync, [0]

    def full(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="the disk is full") as told:
            execute(plan, engine, tmp_path / "hurt")
    assert "\n" not in str(told.value)
    listener = Listener()
    assert execute(plan, engine, tmp_path / "hurt", [listener]).result() == whole.result()
    assert listener.rounds == [2, 3], "the round before the disk filled up was kept"


def in_format_2(record: RoundRecord) -> dict[str, Any]:
    """A line as version 0.1 wrote it, of a run without fleet, surveys and personal models."""
    new = record.to_dict()
    evaluation = new["evaluation"]
    return {
        "round": new["round"],
        "asked": new["sampled"],
        "accepted": new["accepted"],
        "lost": new["failures"],
        "skipped": None,
        "bytes": new["bytes"],
        "work": new["work"],
        "loss": new["loss"],
        "fleet": {"stand_ins": new["replacements"]},
        "facts": {},
        "finite": evaluation["finite"],
        "metrics": evaluation["test"],
        "validation": {},
        "personal": {},
        "also": {},
        "negative_variances": evaluation["negative_variances"],
    }


def put_into_format_2(run: Path) -> None:
    """Rewrite a run's folder, both checkpoints included, as version 0.1 would have left it."""
    lines = [in_format_2(record) for record in RunFolder(run).journal()]
    (run / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "format": 2}))
    (run / "digests.json").unlink(missing_ok=True)
    for name in (checkpoint.NAME, checkpoint.PREVIOUS):
        message = Message.decode((run / name).read_bytes())
        facts = json.loads(bytes(message["facts"].numpy().tobytes()))
        old = {"round": facts["round"], "journal": lines[: facts["round"]], "leaders": facts["leaders"]}
        text = torch.frombuffer(bytearray(json.dumps(old).encode()), dtype=torch.uint8)
        tensors = {key: value for key, value in message.items() if key not in ("digest", "facts")} | {"facts": text}
        digest = torch.frombuffer(bytearray(sha256(Message(tensors).encode()).digest()), dtype=torch.uint8)
        (run / name).write_bytes(Message({**tensors, "digest": digest}).encode())


def plain_record(line: str) -> Any:
    """A round's record without the metrics that format 2 did not have."""
    said = json.loads(line)
    said.get("evaluation", {}).pop("further", None)
    return said


@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_of_format_2_goes_on_in_todays_format(
    damaged: bool, tiny_plan: Any, engine: Engine, tmp_path: Path
) -> None:
    dropout = {"name": "independent", "rate": 0.4, "replace": True}
    plan = tiny_plan(method="scaffold", rounds=4, dropout=dropout, participation={"name": "random", "number": 3})
    whole = execute(plan, engine, tmp_path / "whole")
    run = interrupted(plan, engine, tmp_path / "old", after=3)
    put_into_format_2(run)
    assert [plain_record(one.model_dump_json()) for one in RunFolder(run).journal()] == [
        plain_record(one.model_dump_json()) for one in whole.journal()[:3]
    ], "it can be read as it is"
    if damaged:
        damage(run / "checkpoint.safetensors", "truncated")
    done = execute(plan, engine, tmp_path / "old")
    assert done.result() == whole.result()
    journals = [(folder / "journal.jsonl").read_text().splitlines() for folder in (run, whole.path)]
    assert list(map(plain_record, journals[0])) == list(map(plain_record, journals[1])), "no mixed journal"
    assert json.loads((run / "config.json").read_text())["format"] == RUN_FORMAT


def test_a_finished_run_of_format_2_is_shown_as_it_is(tiny_plan: Any, engine: Engine, tmp_path: Path) -> None:
    plan = tiny_plan(rounds=2, dropout={"name": "none", "replace": True})
    run = execute(plan, engine, tmp_path).path
    put_into_format_2(run)
    before = (run / "journal.jsonl").read_bytes()
    listener = Listener()
    assert len(execute(plan, engine, tmp_path, [listener]).journal()) == 2
    assert listener.rounds == []
    assert (run / "journal.jsonl").read_bytes() == before
