"""Pre-training of a detector's encoder on scenes; the result is a file that runs can start from.

The encoder learns from scenes without labels (masked autoencoding) or from labelled ones (detection), or it is imported
from another program's file. On data with boxes a linear probe measures it as it learns.

The settings of the pre-training are in `encoder.json` beside `encoder.safetensors`. During pre-training the folder
`encoder.partial` contains a checkpoint of every epoch: an interrupted command resumes from there, bit for bit. The
weights are written last, so that their file is always complete, and always the end of a pre-training.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from fedstill._version import __version__
from fedstill.core.dataset import Dataset, Subset
from fedstill.core.errors import BusyError, InputError, RunError
from fedstill.core.files import (
    disk_trouble,
    file_digest,
    read_json,
    sweep_temporaries,
    writable_folder,
    write_atomically,
    write_json,
)
from fedstill.core.fit import Learner, Schedule, fit, task_loss
from fedstill.core.hardware import check_device, one_thread
from fedstill.core.kinds import load_state, state_of
from fedstill.core.message import Message, digest, part, under
from fedstill.core.plugins import use_plugins
from fedstill.core.protocols import Meter
from fedstill.core.streams import Streams
from fedstill.data.augmentation import Augmentation
from fedstill.data.bundle import Bundle
from fedstill.data.unlabelled import load_proxy
from fedstill.detection.imported_weights import Imported, read_weights
from fedstill.detection.linear_probe import LinearProbe
from fedstill.detection.masked_task import Masked
from fedstill.detection.model import part_of
from fedstill.detection.model.masked_autoencoder import MaskedAutoencoder
from fedstill.detection.pretrain_tracking import PretrainFollower
from fedstill.detection.pretraining import Pretraining, PretrainingObserver, make_pretraining
from fedstill.detection.supervised_task import Supervised
from fedstill.models import build_model, models
from fedstill.runtime import checkpoint
from fedstill.runtime.checkpoint import Progress
from fedstill.runtime.experiment import BEHAVIOUR
from fedstill.runtime.run_folder import RunFolder
from fedstill.runtime.tracked import TrackInput, tracking_of

FORMAT = 1
_NAMELESS = ("one thing", "another")  # a detector is built for some classes; its encoder does not depend on them


@dataclass(frozen=True)
class Pretrained:
    """A file with the weights of an encoder, and the record of its pre-training."""

    file: Path
    record: Mapping[str, Any]
    fresh: bool  # False: it already existed

    @property
    def losses(self) -> list[float]:
        """The mean loss in every epoch: the Chamfer distance of hidden patches, or the loss of detection."""
        return list(self.record["losses"])

    @property
    def probe(self) -> dict[int, float]:
        """The scores of the linear probe by number of finished epochs; empty on data without boxes."""
        return {int(epoch): score for epoch, score in self.record.get("probe", {}).items()}


@dataclass(frozen=True)
class _Scenes:
    """What a pre-training reads: its scenes, without labels unless it learns from them, and a probe if it can be."""

    train: Dataset
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    fingerprint: str
    probe: LinearProbe | None
    imported: Imported | None


def pretrain_encoder(
    settings: Pretraining,
    out: Path,
    *,
    data_root: Path | None = None,
    device: str = "cpu",
    overwrite: bool = False,
    observers: Sequence[PretrainingObserver] = (),
    bundle: Bundle | None = None,
    track: TrackInput = None,
    tell: Callable[[str], None] | None = None,
) -> Pretrained:
    """Pre-train, resume an interrupted pre-training, or find it done; the file of another one is not overwritten."""
    check_device(device)
    if out.suffix != ".safetensors":
        raise InputError(f"the encoder goes to a file that ends in .safetensors, not to {out}")
    settings, data = _scenes(settings, bundle or load_proxy(settings.data, data_root))
    identity = settings.identity(data.fingerprint)
    record: dict[str, Any] = {
        "format": FORMAT,
        "identity": identity,
        "pretraining": settings.model_dump(mode="json"),
        "scenes": len(data.train),
        "fingerprint": data.fingerprint,
        "behaviour": BEHAVIOUR,
        "fedstill": __version__,
        "torch": torch.__version__,
    }
    task = _task(settings, data, device)
    writable_folder(out.parent)
    follower = PretrainFollower(tracking_of(track, out.parent, tell), settings, out, identity)
    found = _made_before(out, identity, overwrite)
    if found is not None:
        for observer in observers:
            observer.note(f"{out} has been made with these settings already: nothing is done")
        _discard(_partial(out))
        return follower.finished(Pretrained(out, found, fresh=False))
    folder = RunFolder(writable_folder(_partial(out)))
    lock = folder.lock()
    try:
        for file in (out, out.with_suffix(".json")):
            sweep_temporaries(out.parent, of=file.name)
        with one_thread():
            attempt = _Attempt(settings, task, data, folder, identity, observers, follower)
            weights = attempt.finish()
        record |= {"sha256": digest(weights), "losses": attempt.losses, "seconds": attempt.seconds}
        if attempt.probe:
            record["probe"] = {str(epoch): score for epoch, score in attempt.probe.items()}
        if data.imported is not None:
            record["imported"] = data.imported.description()
        write_json(out.with_suffix(".json"), record)
        write_atomically(out, Message(weights).encode())
        shutil.rmtree(folder.path, ignore_errors=True)
        return follower.finished(Pretrained(out, record, fresh=True))
    except OSError as error:
        raise disk_trouble(out, error) from error
    finally:
        lock.release()
        follower.stopped()


def resolved(settings: Pretraining, data_root: Path | None = None) -> tuple[Pretraining, int]:
    """The resolved settings, and the number of training scenes; nothing is executed."""
    settings, data = _scenes(settings, load_proxy(settings.data, data_root))
    return settings, len(data.train)


class _Attempt:
    """One attempt at a pre-training, continuing from an earlier one if there is any."""

    def __init__(
        self,
        settings: Pretraining,
        task: Masked | Supervised,
        data: _Scenes,
        folder: RunFolder,
        identity: str,
        observers: Sequence[PretrainingObserver],
        follower: PretrainFollower,
    ) -> None:
        self.settings, self.task, self.data, self.folder = settings, task, data, folder
        self.identity, self.observers, self.follower = identity, observers, follower
        self.streams = Streams(settings.seed).at("pre-training")
        self.model = task.build(settings.model, streams=self.streams)
        self.detector = self.model.detector if isinstance(self.model, MaskedAutoencoder) else self.model
        if data.imported is not None:
            load_state(self.detector, {**state_of(self.detector), **data.imported.tensors})
            self._note(data.imported.description())
        self.optimiser = settings.training.optimiser_of(self.model)
        self.losses: list[float] = []
        self.probe: dict[int, float] = {}
        self.seconds = 0.0
        self._resume()
        for observer in observers:
            observer.start(settings, self.losses)

    def finish(self) -> dict[str, Tensor]:
        """Run the remaining epochs; returns the weights of the encoder."""
        epochs = 0 if self.settings.kind == "imported" else self.settings.epochs
        self._measure()
        for epoch in range(len(self.losses), epochs):
            began = perf_counter()
            self.losses.append(self._epoch(epoch, epochs))
            self.seconds += perf_counter() - began
            self._measure()
            self._keep()
            self.follower.catch_up(self.losses, self.probe)
            for observer in self.observers:
                observer.epoch(self.losses[-1])
        return {name: tensor for name, tensor in state_of(self.detector).items() if part_of(name) == "encoder"}

    def _epoch(self, epoch: int, epochs: int) -> float:
        """Train for one epoch; returns the mean loss."""
        learner = Learner(self.model, task_loss, self.optimiser, self.streams)
        training, scenes = self.settings.training, self.data.train
        training.begin(self.optimiser, epoch, epochs, len(scenes))
        schedule = Schedule(range(epoch, epoch + 1), training.batch, training.clip)
        (trained,) = fit([learner], self.task, scenes, schedule, self.streams, Meter(), augment=self.task.augment)
        loss = sum(trained.terms.values())
        if not math.isfinite(loss):
            raise RunError(
                f"pre-training came to numbers that are not finite in epoch {epoch + 1}: lower training.rate"
                f" (it is {training.rate:g}), or set training.clip"
            )
        return loss

    def _measure(self) -> None:
        """Score the encoder by the linear probe, if it is due."""
        done, probe = len(self.losses), self.data.probe
        if probe is None or done in self.probe or done not in self.settings.probe_epochs():
            return
        self.probe[done] = probe.score(self.detector)
        self._note(
            f"epoch {done}: a linear probe of the tokens has a mean recall of {100 * self.probe[done]:.1f} %"
            f" (chance {100 * probe.chance:.1f} %)"
        )

    def _note(self, text: str) -> None:
        for observer in self.observers:
            observer.note(text)

    def _keep(self) -> None:
        """Commit an epoch."""
        server = {**under("model/", state_of(self.model)), **under("optimiser/", self.optimiser.moments())}
        notes = {
            "identity": self.identity,
            "losses": self.losses,
            "seconds": self.seconds,
            "probe": list(self.probe.items()),
        }
        self.folder.check_lock()
        checkpoint.save(self.folder.path, Progress(len(self.losses), server, {}, {}, notes=notes))

    def _resume(self) -> None:
        """Resume from the newest checkpoint that is complete and belongs to this pre-training."""
        sweep_temporaries(self.folder.path)
        found, notes = checkpoint.candidates(self.folder.path)
        ours = [progress for progress in found if progress.notes.get("identity") == self.identity]
        if ours:
            checkpoint.settle_on(self.folder.path, ours[0])
            load_state(self.model, part(ours[0].server, "model/"))
            self.optimiser.load(part(ours[0].server, "optimiser/"))
            self.losses, self.seconds = list(ours[0].notes["losses"]), ours[0].notes["seconds"]
            self.probe = dict(ours[0].notes.get("probe", []))
        for note in notes:
            where = f"going on after epoch {len(self.losses)}" if ours else "starting again"
            for observer in self.observers:
                observer.warn(f"{note}: {where}")


def _scenes(settings: Pretraining, bundle: Bundle) -> tuple[Pretraining, _Scenes]:
    """The settings with their number of points, and what the pre-training reads."""
    if bundle.kind != "scene":
        raise InputError(f"{settings.data} holds {bundle.kind}s: an encoder of patches is pre-trained on scenes")
    whole = bundle.shape[0]
    builder: Any = models[settings.model]
    points = settings.points or min(builder.points, whole)
    bundle = bundle.with_points(points).with_features(settings.features)
    number = len(bundle.train)
    if settings.rows is not None and settings.rows > number:
        raise InputError(f"{settings.data} has {number:,} scenes to train on: --rows cannot be {settings.rows:,}")
    if number < 2:
        raise InputError(f"{settings.data} has one scene to train on: at least 2 are needed")
    labelled = bool(bundle.classes) and "boxes" in bundle.train.batch(torch.zeros(1, dtype=torch.int64))
    if settings.kind == "supervised" and not labelled:
        raise InputError(f"{settings.data} has no boxes to learn from: choose labelled scenes, or kind=masked")
    rows = torch.arange(settings.rows or number)
    scenes = bundle.train if settings.kind == "supervised" else bundle.train.unlabelled()
    imported = _imported(settings, bundle)
    found = _Scenes(
        Subset(scenes, rows),
        bundle.shape,
        bundle.classes if labelled else _NAMELESS,
        bundle.fingerprint() + (digest(imported.tensors) if imported else ""),
        LinearProbe(Subset(bundle.train, rows), bundle.test, len(bundle.classes)) if labelled else None,
        imported,
    )
    return settings.model_copy(update={"points": points}), found


def _imported(settings: Pretraining, bundle: Bundle) -> Imported | None:
    """The weights to start from, if any; an encoder that is only imported must be whole."""
    if settings.weights is None:
        return None
    detector = build_model(settings.model, bundle.shape, len(_NAMELESS))
    own = {name: tensor for name, tensor in state_of(detector).items() if part_of(name) == "encoder"}
    imported = read_weights(Path(settings.weights), own, settings.model)
    if settings.kind == "imported" and imported.missing:
        missing = imported.missing[0].split("/", 1)[1]
        raise InputError(
            f"{settings.weights} has no tensor {missing!r} of the encoder of {settings.model}, which would stay random:"
            " import a whole encoder, or train it further with kind=masked or supervised"
        )
    return imported


def _task(settings: Pretraining, data: _Scenes, device: str) -> Masked | Supervised:
    augmentation = settings.augmentation.settings
    assert isinstance(augmentation, Augmentation)
    if "cloud" not in augmentation.kinds:  # scenes without boxes are clouds
        augmentation.check("scene", data.shape)
    if settings.kind == "supervised":
        return Supervised(data.classes, data.shape, (settings.model,), device, augmentation)
    return Masked(
        _NAMELESS,
        data.shape,
        (settings.model,),
        device,
        augmentation,
        hidden=settings.hidden,
        layers=settings.layers,
        reach=settings.reach,
    )


def _partial(out: Path) -> Path:
    """The folder of an unfinished pre-training's checkpoints."""
    return out.with_suffix(".partial")


def _discard(partial: Path) -> None:
    """Remove the leftovers of a process killed after its file was complete, unless the folder is in use."""
    if partial.is_dir():
        with suppress(BusyError):
            lock = RunFolder(partial).lock()
            shutil.rmtree(partial, ignore_errors=True)
            lock.release()


def _made_before(out: Path, identity: str, overwrite: bool) -> dict[str, Any] | None:
    """The record of the file, if it belongs to this pre-training; another one's is refused unless agreed."""
    beside = out.with_suffix(".json")
    record = read_json(beside)
    known = isinstance(record, dict) and "pretraining" in record
    if known and record is not None and record["identity"] == identity and file_digest(out) == record["sha256"]:
        return record
    if overwrite:
        return None
    if out.exists():
        raise InputError(f"{out} exists, made otherwise than asked for now: choose another --out, or give --overwrite")
    if beside.exists() and not known:
        raise InputError(f"{beside}, which would say how the encoder was made, is something else: choose another --out")
    return None


def pretrain(
    data: str,
    out: str | Path = "encoder.safetensors",
    *,
    data_root: str | Path | None = None,
    device: str = "cpu",
    plugins: Sequence[str | Path] = (),
    overwrite: bool = False,
    observers: Sequence[PretrainingObserver] = (),
    track: TrackInput = None,
    **settings: Any,
) -> Pretrained:
    """Pre-train a detector's encoder on scenes, resume it, or find it done; runs can start from it.

    `settings` are those of a pre-training, by section or by name: `pretrain("rooms-pretraining", epochs=10, batch=8)`,
    `pretrain("rooms-pretraining", kind="supervised")`. `track` is as in `fedstill.run`.

    >>> import fedstill, numpy as np
    >>> folder = getfixture("tmp_path")
    >>> cube = np.stack(np.meshgrid(*[np.linspace(0, 1, 8)] * 3), axis=-1).reshape(-1, 3)
    >>> for split in ("train", "test"):
    ...     (folder / split).mkdir()
    ...     for name in ("a", "b"):
    ...         box = {"boxes": [[0.5, 0.5, 0.5, 1, 1, 1, 0]], "labels": [0], "classes": ["crate", "shelf"]}
    ...         np.savez(folder / split / name, points=cube, **box)
    >>> settings = {"model": "small-detr3d-lite", "epochs": 1, "points": 256}
    >>> made = fedstill.pretrain(f"folder:{folder}", folder / "encoder.safetensors", **settings)
    >>> len(made.losses), made.fresh
    (1, True)
    """
    use_plugins(plugins)
    given = [f"{key}={json.dumps(value, default=str)}" for key, value in settings.items()]
    chosen = make_pretraining({"data": data}, given)
    root = None if data_root is None else Path(data_root)
    return pretrain_encoder(
        chosen, Path(out), data_root=root, device=device, overwrite=overwrite, observers=observers, track=track
    )
