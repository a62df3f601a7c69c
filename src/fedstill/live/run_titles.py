"""Runs are called by what they differ in, as in other lists; also those whose plugin is not loaded here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from fedstill.live.watched_run import WatchedRun
from fedstill.report.run_list import short_name
from fedstill.report.titles import setting_text
from fedstill.runtime.experiment import PARTS

_METHOD = "method"
_MOST = 8  # settings in a title


def give_titles(runs: Sequence[WatchedRun]) -> list[WatchedRun]:
    """Those whose title is now another one."""
    paths = _differing([run.settings for run in runs])
    named = [", ".join(_words(run.settings, paths[str(run.settings.get(_METHOD))])) or run.path.name for run in runs]
    often = Counter(named)
    changed = []
    for run, name in zip(runs, named, strict=True):
        title = name if often[name] == 1 else f"{name} ({short_name(run.path.name)})"
        if title != run.title:
            run.title = title
            changed.append(run)
    return changed


def _differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """By method, the settings that differ between its runs, the method's own first."""
    values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    paths = sorted({path for one in settings for path in one} - {_METHOD, "rounds"})  # in whatever order runs were read
    for one in settings:
        for path in paths:
            values[str(one.get(_METHOD))][path].add(str(one.get(path)))
    return {method: _first([path for path in paths if _tells(path, known)], known) for method, known in values.items()}


def _tells(path: str, values: Mapping[str, set[str]]) -> bool:
    """Whether a setting differs, beyond that only some runs have the part it belongs to: that part is named already."""
    section = path.partition(".")[0]
    follows = section in PARTS and section != _METHOD and path != section and len(values.get(section, ())) > 1
    return len(values[path] - {str(None)} if follows else values[path]) > 1


def _first(paths: Sequence[str], values: Mapping[str, set[str]]) -> list[str]:
    """Those that a title has room for: the method's own, and what all runs have before what only some have."""
    return sorted(paths, key=lambda path: (not path.startswith(f"{_METHOD}."), str(None) in values[path]))[:_MOST]


def _words(settings: Mapping[str, Any], paths: Sequence[str]) -> list[str]:
    texts = [setting_text(f"{path}.name" if path in PARTS else path, settings.get(path)) for path in paths]
    return [text for text in [str(settings.get(_METHOD) or ""), *texts] if text]
