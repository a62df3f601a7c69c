"""More rounds: a run of 20 goes on where one of 10 that differs in nothing else has ended.

It is a run of its own, in a folder of its own, and ends with the bits it would have had from the start. That is so
where nothing in the first ten rounds depends on how many there are in all; otherwise it starts at its beginning.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

from fedstill.core.files import read_json, write_atomically
from fedstill.core.local_updates import takes_context
from fedstill.core.locks import lock_folder
from fedstill.core.origins import is_outside
from fedstill.core.own_training import local_updates
from fedstill.core.records import RoundRecord
from fedstill.methods import methods
from fedstill.runtime import checkpoint
from fedstill.runtime.plan import Plan
from fedstill.runtime.run_folder import RunFolder

_TIMING = "timing.json"


def continued(plan: Plan, folder: RunFolder) -> str | None:
    """Begin a run with the rounds of a shorter one beside it; a sentence says what was done, or why not."""
    if folder.has_begun:
        return None
    shorter = _shorter(plan, folder)
    if not shorter:
        return None
    rounds, found = max(shorter, key=lambda one: one[0])
    if (why := _depends_on_the_total(plan, rounds)) is not None:
        return f"there is a run of {rounds} rounds, but this one starts at its beginning, since {why}"
    lock = lock_folder(found.path)
    if lock is None:
        return None
    try:
        return _copied(found, folder, rounds)
    finally:
        lock.release()


def _shorter(plan: Plan, folder: RunFolder) -> list[tuple[int, RunFolder]]:
    """Finished runs of the same lineage with fewer rounds."""
    found = []
    for path in folder.path.parent.glob(f"{plan.experiment.method.name}-*/config.json"):
        config = read_json(path) or {}
        rounds = config.get("rounds")
        same = config.get("lineage") == plan.identified.lineage and path.parent != folder.path
        if same and isinstance(rounds, int) and rounds < plan.rounds and RunFolder(path.parent).result() is not None:
            found.append((rounds, RunFolder(path.parent)))
    return found


def _depends_on_the_total(plan: Plan, rounds: int) -> str | None:
    """Why the first rounds of this run are not those of a run of so many; None where they are."""
    training, every = plan.experiment.training, plan.experiment.evaluate_every
    if any(training.factor(turn, rounds) != training.factor(turn, plan.rounds) for turn in range(rounds)):
        return "the schedule of its learning rate depends on the number of rounds"
    if training.local_update is not None and takes_context(local_updates[training.local_update]):
        return "its local update receives the number of rounds"
    if rounds % every:
        return f"that one's last round was evaluated, which in this run is no round of evaluation (every {every})"
    name = plan.experiment.method.name
    if is_outside(methods[name]) and "same_with_more_rounds" not in vars(methods[name]):
        return f"{name} does not say whether its rounds depend on their number (`same_with_more_rounds`)"
    if not plan.method.same_with_more_rounds(rounds, plan.rounds):
        return f"rounds of {name} depend on their number"
    return None


def _copied(found: RunFolder, folder: RunFolder, rounds: int) -> str | None:
    """Copy what the run goes on from; the checkpoint last, so that a copy that is broken off counts for nothing."""
    held, _ = checkpoint.candidates(found.path)
    if not held or held[0].round != rounds:
        return None
    (folder.path / "clients").mkdir(exist_ok=True)
    for path in (found.path / "clients").glob("*.safetensors"):
        shutil.copyfile(path, folder.path / "clients" / path.name)
    for which, leader in held[0].leaders.items():
        if (path := found.model_path(which)).exists():
            shutil.copyfile(path, folder.model_path(which, leader.round))
    if (found.path / _TIMING).exists():
        write_atomically(folder.path / _TIMING, (found.path / _TIMING).read_bytes())
    journal = (*held[0].journal[:-1], _not_last(held[0].journal[-1]))
    folder.restore_journal(journal)
    checkpoint.save(folder.path, replace(held[0], journal=journal))
    return f"going on after the {rounds} rounds of {found.path.name}"


def _not_last(record: RoundRecord) -> RoundRecord:
    """A record without what is checked after a run's last round only."""
    if record.evaluation is None:
        return record
    return record.model_copy(update={"evaluation": record.evaluation.model_copy(update={"batchnorm": None})})
