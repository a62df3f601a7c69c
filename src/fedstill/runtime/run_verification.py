"""Whether what a run's folder says fits together: digests, journal and checkpoint, accuracies and predictions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError, InputError
from fedstill.core.files import file_digest, parse_json, read_file, read_json
from fedstill.core.records import RUN_FORMAT, RecordError, RoundRecord, RunResult, read_result, read_round
from fedstill.runtime import checkpoint
from fedstill.runtime.client_store import ClientStore
from fedstill.runtime.digests import CONFIG, JOURNAL, PREDICTIONS, RESULT, Digests, EditedError, changed_fields, leaves
from fedstill.runtime.digests import NAME as DIGESTS
from fedstill.runtime.experiment import experiment_class
from fedstill.runtime.identity import identity_from, stale_parts
from fedstill.runtime.run_folder import MODELS, RunFolder, is_of_another_run
from fedstill.runtime.run_summary import run_digest, total_traffic

_log = logging.getLogger(__name__)
TOLERANCE = 1e-9  # between an accuracy that is written and one that is counted


@dataclass(frozen=True)
class Contradiction:
    """Something that is not what was written, or does not fit what else is there."""

    file: str
    field: str
    says: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.field}" if self.field else self.file
        return f"{where}: {self.says}"


@dataclass(frozen=True)
class Verified:
    """What was found out about a run or a results file."""

    path: Path
    contradictions: tuple[Contradiction, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be checked, and why
    stale: tuple[str, ...] = ()  # parts that have another behaviour today
    checked: int = 1  # runs

    @property
    def ok(self) -> bool:
        return not self.contradictions


def verify_run(path: Path) -> Verified:
    """Check everything in a run's folder against everything else."""
    held, config = Digests(path), _config(path)
    notes: list[str] = []
    if not (path / RESULT).exists():
        return Verified(path, tuple(_unfinished(path)), ("the run is not finished",), stale_parts(config))
    found = [*_without_digests(config, held, notes), *_edited(path, held), *_identity(config), *_journal(path)]
    if is_of_another_run(path, config):
        found.insert(0, Contradiction(CONFIG, "identity", f"it says {config['identity']}, and the folder another run"))
    result = _result(path)
    if result is None:
        found.append(Contradiction(RESULT, "", "it cannot be read as a result"))
    else:
        rounds = _records(path)
        found += [*_against_journal(result, rounds), *_predictions(path, result)]
        found += _models(path, result, notes)
    unique = {(one.file, one.field): one for one in reversed(found)}
    return Verified(path, tuple(reversed(unique.values())), tuple(notes), stale_parts(config))


def _config(path: Path) -> dict[str, Any]:
    """The configuration, also where it was edited: what was, is found later."""
    try:
        return RunFolder(path).config()
    except InputError as error:
        content: dict[str, Any] = read_json(path / CONFIG) or {}
        if isinstance(error, EditedError) or is_of_another_run(path, content):
            return content
        raise


def _unfinished(path: Path) -> Iterator[Contradiction]:
    yield from _journal(path)


def _without_digests(config: Mapping[str, Any], held: Digests, notes: list[str]) -> Iterator[Contradiction]:
    """Earlier versions kept no digests; a finished run of this format has them."""
    if held:
        return
    if config.get("format") == RUN_FORMAT:
        yield Contradiction(DIGESTS, "", "it is missing or damaged")
    else:
        notes.append("it was made by an earlier version, which kept no digests")


def _edited(path: Path, held: Digests) -> Iterator[Contradiction]:
    """What is not what its digest says."""
    for name, expected in held.fields.items():
        content = read_json(path / name)
        if content is None:
            yield Contradiction(name, "", "it is missing or damaged")
            continue
        values = dict(leaves(content))
        for field in changed_fields(content, expected):
            now = f"it says {values[field]!r} now" if field in values else "it is missing"
            yield Contradiction(name, field, f"it is not what the run wrote ({now})")
    for name, written in held.files.items():
        digest = file_digest(path / name)
        if digest is None and name not in (checkpoint.NAME, checkpoint.PREVIOUS):  # `fedstill clean` frees checkpoints
            yield Contradiction(name, "", "it is missing")
        elif digest is not None and digest != written and name != JOURNAL:
            yield Contradiction(name, "", "it is not what the run wrote")
    if held.files.get(JOURNAL, "") not in ("", file_digest(path / JOURNAL) or "") and not _checkpoint(path):
        yield Contradiction(JOURNAL, "", "it is not what the run wrote")


def _identity(config: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Whether the settings, data and parts that a run names are those of its identity."""
    if "reads" not in config or config["unknown"]:
        return
    try:
        experiment = experiment_class().model_validate(config["experiment"])
    except (ValueError, FedstillError) as error:  # with a plugin that is not loaded, say
        _log.info("the identity cannot be computed again: %s", error)
        return
    digest = experiment.digest(config["reads"])
    if identity_from(digest, config["parts"], made_by=config["torch"]) != config["identity"]:
        yield Contradiction(CONFIG, "identity", "it is not that of these settings, data, parts and torch")


def _checkpoint(path: Path) -> checkpoint.Progress | None:
    found, _ = checkpoint.candidates(path)
    return found[0] if found else None


def _lines(path: Path) -> list[Any]:
    try:
        return [parse_json(line) for line in read_file(path / JOURNAL).splitlines()]
    except (OSError, ValueError):
        return []


def _records(path: Path) -> list[RoundRecord]:
    """The journal as the checkpoint has it, or, where that is gone or of an earlier round, as it is."""
    held, lines = _checkpoint(path), _lines(path)
    return list(held.journal) if held and held.round >= len(lines) else [read_round(line) for line in lines]


def _journal(path: Path) -> Iterator[Contradiction]:
    """Where the journal says something else than the checkpoint."""
    held = _checkpoint(path)
    if held is None:
        return
    lines = _lines(path)
    if len(lines) < len(held.journal):
        yield Contradiction(JOURNAL, "", f"it has {len(lines)} rounds, and the checkpoint has {len(held.journal)}")
    for record, line in zip(held.journal, lines, strict=False):
        try:
            read = dict(leaves(read_round(line).to_dict()))
        except RecordError as error:
            yield Contradiction(JOURNAL, f"round {record.round}", str(error))
            continue
        kept = dict(leaves(record.to_dict()))
        for field in {**kept, **read}:
            if not _same(kept.get(field), read.get(field)):
                yield Contradiction(
                    JOURNAL,
                    f"round {record.round}, {field}",
                    f"it says {read.get(field)!r}, and the checkpoint {kept.get(field)!r}",
                )


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))  # not a number either


def _result(path: Path) -> RunResult | None:
    try:
        return read_result(read_json(path / RESULT) or {})
    except RecordError:
        return None


def _against_journal(result: RunResult, rounds: list[RoundRecord]) -> Iterator[Contradiction]:
    """Whether a result is what its rounds give."""
    if not rounds:
        return
    evaluations = {record.round: record.evaluation for record in rounds if record.evaluation is not None}
    given: dict[str, Any] = {
        "rounds": rounds[-1].round,
        "failures": sum(len(record.failures) for record in rounds),
        "skipped": sum(record.skipped is not None for record in rounds),
        "finite": all(evaluation.finite for evaluation in evaluations.values()),
    }
    traffic = total_traffic(rounds)
    given |= {"bytes.up": traffic.up, "bytes.down": traffic.down}
    for which, number in result.round_of.items():
        if number not in evaluations:
            yield Contradiction(RESULT, f"round_of.{which}", f"round {number} was not evaluated")
            continue
        test = evaluations[number].test
        given |= {f"accuracy.{which}": test.get("accuracy"), f"class_accuracy.{which}": test.get("class_accuracy")}
    said = dict(leaves(result.to_dict()))
    for field, value in given.items():
        if not _same(said.get(field), value):
            yield Contradiction(RESULT, field, f"it says {said.get(field)!r}, and the journal gives {value!r}")


def _predictions(path: Path, result: RunResult) -> Iterator[Contradiction]:
    """Whether accuracies are those of the kept predictions."""
    kept = read_json(path / PREDICTIONS) or {}
    truth = kept.get("labels")
    if not truth or result.personal is not None:
        return
    for which in MODELS:
        said, accuracy = kept.get(which), result.accuracy.get(which)
        if said is None or accuracy is None:
            continue
        # What is not finite counts as class 0 (see `Classification.score`).
        right = sum(max(guess, 0) == label for guess, label in zip(said, truth, strict=False)) / len(truth)
        if len(said) != len(truth) or abs(right - accuracy) > TOLERANCE:
            counted = f"{right:.6f} of the kept predictions are right"
            yield Contradiction(RESULT, f"accuracy.{which}", f"it says {accuracy:.6f}, and {counted}")


def _models(path: Path, result: RunResult, notes: list[str]) -> Iterator[Contradiction]:
    """Whether the models are those of the result."""
    folder = RunFolder(path)
    if result.model_last and file_digest(folder.model_path("last")) != result.model_last:
        yield Contradiction(folder.model_path("last").name, "", "it is not the model of the result")
        return
    try:
        models = folder.load_models("last") if result.model_last else {}
        held = _checkpoint(path)
        if held is None:
            notes.append("the state of clients cannot be checked: the checkpoint is gone")
            return
        store = None
        if held.clients["digests"].ndim == 1:  # at sites, otherwise
            store = ClientStore(path / "clients", len(held.clients["digests"]))
            store.restore(held.clients)
            yield from (Contradiction(name, "", "it is not what the checkpoint names") for name in store.damaged())
        if run_digest(models, store if result.personal is not None else None) != result.sha256:
            yield Contradiction(RESULT, "sha256", "it is not the digest of the models in the folder")
    except FedstillError as error:
        notes.append(f"its models cannot be checked: {error}")
