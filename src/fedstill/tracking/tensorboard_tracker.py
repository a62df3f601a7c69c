"""Event files for TensorBoard, one folder a run; the steps that are kept are read from them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count as counter
from pathlib import Path
from time import time
from typing import Any

from fedstill.core.files import file_digest, writable_folder
from fedstill.core.numbers import size
from fedstill.tracking.flat_metrics import flattened
from fedstill.tracking.tracker import Status, TrackedRun, Tracker
from fedstill.tracking.tracker_registry import package, trackers

_numbers = counter()  # so that two event files of one process and second have different names


@dataclass
class _EventFolder:
    """The event files of a run, and what they hold."""

    path: Path
    last: int = 0
    texts: dict[str, str] = field(default_factory=dict)  # by tag, the text that was written last
    writer: Any = None
    file: Any = None


@trackers.register("tensorboard")
class TensorBoard(Tracker):
    """Event files for TensorBoard, in OUT/tensorboard or the folder that is named."""

    requires = ("tensorboard",)

    def __init__(self, where: str = "") -> None:
        self.where = where
        self.held: dict[str, _EventFolder] = {}

    def prepare(self, out: Path) -> None:
        for module in ("event_pb2", "summary_pb2", "tensor_pb2"):
            setattr(self, module, package(f"tensorboard.compat.proto.{module}", "tensorboard"))
        self.records = package("tensorboard.summary.writer.record_writer", "tensorboard")
        self.loader = package("tensorboard.backend.event_processing.event_file_loader", "tensorboard")
        self.text = package("tensorboard.plugins.text.metadata", "tensorboard")
        self.hparams = package("tensorboard.plugins.hparams.metadata", "tensorboard")
        self.sessions = package("tensorboard.plugins.hparams.plugin_data_pb2", "tensorboard")
        self.folder = writable_folder(Path(self.where).expanduser() if self.where else out / "tensorboard")

    def open(self, run: TrackedRun) -> int:
        held = self.held[run.key] = _EventFolder(self.folder / run.key)
        for file in sorted(held.path.glob("events.out.tfevents.*")):
            self._read(file, held)
        return held.last

    def log(self, run: TrackedRun, step: int, metrics: Mapping[str, float]) -> None:
        """One record of the file, so that a step is there with all its numbers or not at all."""
        held = self.held[run.key]
        if "settings" not in held.texts:
            self._describe(run, held)
        make = self.summary_pb2.Summary.Value  # type: ignore[attr-defined]
        self._write(held, step, [make(tag=name, simple_value=value) for name, value in metrics.items()])
        held.last = step

    def save(self, run: TrackedRun, files: Mapping[str, Path]) -> None:
        """Event files hold no other files: a text in them has the paths."""
        lines = ["| file | size | sha256 | where |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {size(path.stat().st_size)} | {str(file_digest(path))[:16]}… | {path} |"
            for name, path in files.items()
        ]
        self._write_text(self.held[run.key], "files", "\n".join(lines))

    def close(self, run: TrackedRun, status: Status) -> None:
        held = self.held.pop(run.key, None)
        if held is None:
            return
        self._write_text(held, "status", status)
        if held.file is not None:
            held.file.close()

    def _describe(self, run: TrackedRun, held: _EventFolder) -> None:
        """The settings, as a table and for the page that compares runs by them."""
        settings = {name: value for name, value in flattened(run.settings) if value not in (None, {}, [])}
        lines = ["| setting | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in settings.items())]
        self._write_text(held, "settings", "\n".join(lines))
        session = self.sessions.SessionStartInfo(group_name=run.key, start_time_secs=time())
        for name, value in {**settings, **run.labels}.items():
            if isinstance(value, bool):
                session.hparams[name].bool_value = value
            elif isinstance(value, int | float):
                session.hparams[name].number_value = value
            else:
                session.hparams[name].string_value = str(value)
        content = self.sessions.HParamsPluginData(session_start_info=session)
        make = self.summary_pb2.Summary.Value  # type: ignore[attr-defined]
        about = self.hparams.create_summary_metadata(content)
        self._write(held, 0, [make(tag=self.hparams.SESSION_START_INFO_TAG, metadata=about)])

    def _write_text(self, held: _EventFolder, tag: str, text: str) -> None:
        if held.texts.get(tag) == text:
            return
        tensor = self.tensor_pb2.TensorProto(dtype=7, string_val=[text.encode()])  # type: ignore[attr-defined]  # DT_STRING
        tensor.tensor_shape.dim.add(size=1)
        about = self.text.create_summary_metadata(display_name=tag, description="")
        make = self.summary_pb2.Summary.Value  # type: ignore[attr-defined]
        self._write(held, held.last, [make(tag=tag, tensor=tensor, metadata=about)])
        held.texts[tag] = text

    def _write(self, held: _EventFolder, step: int, values: Any) -> None:
        event = self.event_pb2.Event  # type: ignore[attr-defined]
        if held.writer is None:
            held.path.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{int(time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
            held.file = open(held.path / name, "xb", buffering=0)  # noqa: SIM115 (closed with the run)
            held.writer = self.records.RecordWriter(held.file)
            held.writer.write(event(wall_time=time(), file_version="brain.Event:2").SerializeToString())
        summary = self.summary_pb2.Summary(value=values)  # type: ignore[attr-defined]
        held.writer.write(event(wall_time=time(), step=step, summary=summary).SerializeToString())

    def _read(self, file: Path, held: _EventFolder) -> None:
        """What a file holds; a record that was cut off when its writer was killed ends it."""
        for event in self.loader.LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    held.last = max(held.last, event.step)
                elif value.tensor.string_val:
                    held.texts[value.tag] = value.tensor.string_val[0].decode()
