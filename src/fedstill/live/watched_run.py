"""One run as the page shows it, kept up to date from its folder at the cost of a few file times."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any

from fedstill.live.bounded_files import Stamp, finite, read_mapping, section_of, short_text, stamp_of, whole
from fedstill.live.held_locks import is_held
from fedstill.live.journal_reader import JournalReader
from fedstill.report.titles import teachers_text

CONFIG, RESULT, TIMING = "config.json", "result.json", "timing.json"
_SPARK = 40  # points of the small curve in the list
_RECENT = 10  # rounds that the estimate is made of
_QUIET = 120.0  # seconds without news after which a run has stopped, where the system does not tell
_MODELS = ("selected", "best", "last")
_NAMES = 200  # settings of one run


class WatchedRun:
    """A folder with a config.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = sha256(str(path.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self.title = path.name
        self.journal = JournalReader(path)
        self.config: dict[str, Any] = {}
        self.state = "unfinished"
        self.version = 0  # in which it last changed
        self._stamps: dict[str, Stamp | None] = {}
        self._seconds: list[float] = []
        self._result: dict[str, Any] = {}

    def look(self, held: frozenset[int] | None) -> bool:
        """Whether something changed since the last look."""
        changed = self._read_config()
        changed |= self.journal.look()
        if self._changed(RESULT):
            self._result, changed = read_mapping(self.path / RESULT), True
        if self._changed(TIMING):
            timing = read_mapping(self.path / TIMING)
            self._seconds, changed = _round_times(timing), True
        before, self.state = self.state, self._state(held)
        return changed or self.state != before

    def _read_config(self) -> bool:
        if not self._changed(CONFIG):
            return False
        self.config = read_mapping(self.path / CONFIG)
        vars(self).pop("settings", None)
        return True

    def _changed(self, name: str) -> bool:
        stamp = stamp_of(self.path / name)
        if name in self._stamps and self._stamps[name] == stamp:
            return False
        self._stamps[name] = stamp
        return True

    def _state(self, held: frozenset[int] | None) -> str:
        if not self.experiment:
            return "cannot be read"
        if self._result:
            return "finished"
        if held is None:
            return "running" if time() - self.changed < _QUIET else "unfinished"
        return "running" if is_held(self.path, held) else "unfinished"

    @property
    def experiment(self) -> dict[str, Any]:
        return section_of(self.config, "experiment")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The experiment's settings by path, as config.json has them."""
        return _flat(self.experiment)

    @property
    def rounds(self) -> int:
        return whole(self.config.get("rounds")) or whole(self.experiment.get("rounds"))

    @property
    def changed(self) -> float:
        """When it was last written to, in seconds since 1970."""
        times = [stamp[2] for stamp in (*self._stamps.values(), self.journal.stamp) if stamp is not None]
        return max(times, default=0) / 1e9

    @property
    def seconds(self) -> float:
        """The time that its rounds took."""
        return finite(sum(self._seconds)) or 0.0

    @property
    def seconds_left(self) -> float | None:
        """From its last rounds, less what has passed since; None while nothing is known."""
        recent, left = self._seconds[-_RECENT:], self.rounds - self.journal.course.round
        if self.state != "running" or not recent or left <= 0:
            return None
        each = sum(recent) / len(recent)
        begun = min(each, max(0.0, time() - self.changed))
        return finite(each * left - begun)

    def summary(self) -> dict[str, Any]:
        """What the list shows of it."""
        course, accuracy = self.journal.course, section_of(self._result, "accuracy")
        last, best = finite(accuracy.get("last")), finite(accuracy.get("best"))
        left = self.seconds_left
        return {
            "id": self.id,
            "name": self.path.name,
            "what": self.title,
            "state": self.state,
            "round": course.round,
            "rounds": self.rounds,
            "last": course.last if last is None else last,
            "best": course.best if best is None else best,
            "curve": [value for _, value in course.curve("accuracy", _SPARK)],
            "failures": course.failed,
            "skipped": course.skipped,
            "non_finite": course.non_finite,
            "damaged": course.damaged,
            "left": None if left is None else round(left, 1),
            "seconds": round(self.seconds, 1),
            "changed": round(self.changed),
        }

    def details(self) -> dict[str, Any]:
        """All that the page shows of a run that was chosen."""
        course = self.journal.course
        return {
            **self.summary(),
            "folder": str(self.path),
            "settings": self.settings,
            "curves": {name: course.curve(name) for name in course.values},
            "notes": list(course.failures),
            "metrics": self._metrics(),
            "best_round": whole(section_of(self._result, "round_of").get("best")) or course.best_round,
            "bytes": course.bytes,
            "models": [
                {"which": which, "file": str(self.path / f"model-{which}.safetensors")}
                for which in _MODELS
                if stamp_of(self.path / f"model-{which}.safetensors") is not None
            ],
        }

    def _metrics(self) -> dict[str, dict[str, float]]:
        """Of a finished classifier, by model and metric."""
        kept = read_mapping(self.path / "metrics.json")
        found: dict[str, dict[str, float]] = {}
        for which in _MODELS:
            overall = section_of(kept, which, "overall")
            numbers = {short_text(name): finite(value) for name, value in overall.items()}
            known = {name: value for name, value in numbers.items() if value is not None}
            if known:
                found[which] = known
        return found


def _round_times(timing: Mapping[str, Any]) -> list[float]:
    """Each round with its checkpoint."""
    rounds, checkpoints = timing.get("rounds"), timing.get("checkpoints")
    if not isinstance(rounds, list):
        return []
    stored = checkpoints if isinstance(checkpoints, list) else []
    known = [finite(one) or 0.0 for one in rounds]
    return [one + (finite(stored[place]) or 0.0 if place < len(stored) else 0.0) for place, one in enumerate(known)]


def _flat(given: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Settings by path, a part by its section; what is deeper or more than any experiment has is left out."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        path = f"{prefix}{short_text(name)}"
        if isinstance(value, dict) and depth < 5:
            found |= _flat(value, f"{path}.", depth + 1)
        elif not isinstance(value, dict):
            found[path.removesuffix(".name")] = _shown(value)
        if len(found) >= _NAMES:
            break
    return found


def _shown(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):  # the teachers of a student
        value = teachers_text(value)
    if value is None or isinstance(value, bool):
        return value
    number = finite(value)
    if number is not None:
        return value if isinstance(value, int) and abs(value) < 2**53 else number
    return short_text(value if isinstance(value, str) else str(value)[:1000])
