"""What a run is recognised by: everything that can change its numbers.

That is its configuration, its data, the behaviour version of the kernel and of every part it uses, the content of the
parts that did not come with this package (see `core.content`), and the version of torch. Where content cannot be
established, the identity is one that no other run has; it lasts until the run has ended, so that an interrupted run can
go on in the process that knows its parts.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from typing import Any

import torch

from fedstill.core.content import content_of
from fedstill.core.origins import MODULE_PREFIX, is_outside
from fedstill.core.own_parts import check_sendable, fresh_token
from fedstill.core.own_training import OWN
from fedstill.core.registry import Registry
from fedstill.core.sections import sections
from fedstill.core.task import Task
from fedstill.methods import methods
from fedstill.methods.recalibration import recalibrates, statistics
from fedstill.models import models
from fedstill.participation.dropout import Dropout
from fedstill.runtime.experiment import BEHAVIOUR, PARTS, Experiment
from fedstill.runtime.method_inputs import method_inputs
from fedstill.tasks.task_choice import task_name, tasks

STATISTICS = ("statistics", "recalibrate")
KERNEL = "kernel"  # what all runs use: streams, training, rounds, evaluation
Parts = Mapping[str, int | str]  # by kind and name, the behaviour version of ours and the content of others
Known = dict[tuple[str, str], tuple[int | str, list[str]]]  # parts that were looked at


@dataclass(frozen=True)
class Identity:
    """A run's identity, and what it was made of."""

    name: str  # ends the name of the run's folder
    lineage: str  # the same for runs that differ in nothing but the number of rounds
    parts: Parts
    reads: str  # the fingerprint of data, samples, weights and files
    unknown: tuple[str, ...] = ()  # why no other run has this identity


def identify(
    experiment: Experiment, fingerprint: str, known: Known | None = None, changing: tuple[str, ...] = ()
) -> Identity:
    """The identity of an experiment on data and with samples, weights and files of that fingerprint.

    `changing` says why data cannot be recognised by its fingerprint.
    """
    parts, unknown = parts_of(experiment, known)
    unknown += changing
    inner = experiment.digest(fingerprint)
    without_rounds = experiment.digest(fingerprint, rounds=False)
    name, lineage = (identity_from(digest, parts, bool(unknown)) for digest in (inner, without_rounds))
    return Identity(name, lineage, parts, fingerprint, unknown)


def identity_from(digest: str, parts: Parts, unknown: bool = False, made_by: str = "") -> str:
    """One digest of settings with data, parts and torch; parts of ours count from their second version on."""
    facts = {
        "run": digest,
        "parts": {name: version for name, version in parts.items() if version != 1 and name != KERNEL},
        "torch": made_by or torch.__version__,
        "fresh": fresh_token.value if unknown else "",
    }
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()


def fingerprint_of(experiment: Experiment, data: str, task: Task, proxy: str = "", shared: str = "") -> str:
    """What a run reads, as one text: data, proxy, samples that all share, a dropout trace, weights of own models."""
    dropout = experiment.dropout.settings
    assert isinstance(dropout, Dropout)
    return data + proxy + shared + dropout.digest + _initial_weights(experiment, task)


def _initial_weights(experiment: Experiment, task: Task) -> str:
    """Of models of the user's own, what they are when they are built: a builder may read its weights from a file."""
    own = [name for name in dict.fromkeys(experiment.architectures) if is_outside(models[name])]
    return "".join(content_of(task.build(name)).digest for name in own)


def parts_of(experiment: Experiment, known: Known | None = None) -> tuple[Parts, tuple[str, ...]]:
    """Every part that an experiment uses, and what of them cannot be established.

    `known` are parts that were looked at before: a study looks once, when it is planned, since its runs may change what
    parts hold, e.g. a list in which they keep count.
    """
    return parts_of_names(_used(experiment), known)


def parts_of_names(used: Iterable[tuple[str, str]], known: Known | None = None) -> tuple[Parts, tuple[str, ...]]:
    """The same of parts by kind and name."""
    known = {} if known is None else known
    found: dict[str, int | str] = {KERNEL: BEHAVIOUR}
    unknown: list[str] = []
    for what, name in used:
        if (what, name) not in known:
            known[what, name] = _looked_at(what, name)
        version, why = known[what, name]
        found[f"{what} {name}"] = version
        unknown += why
    return found, tuple(unknown)


def _used(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Kind and name of every part; by its first name, which identities have always had."""
    for section, registry in PARTS.items():
        chosen = experiment.__dict__[section]
        if chosen is not None:
            yield section, registry.first(chosen.name)
    yield from (("input", name) for name in sorted(methods[experiment.method.name].wants))
    own = experiment.architectures if experiment.model is not None else ()
    taught_by = [teacher.model for teacher in experiment.teachers if teacher.call is None and teacher.model is not None]
    for model in dict.fromkeys((*own, *taught_by)):
        yield "model", model
        yield "task", task_name(model)
    if _measures_clouds(vars(experiment.method.settings), own):
        yield STATISTICS
    yield from experiment.training.own().items()
    yield from (("section", name) for name in experiment.sections())
    yield from (("teacher", teacher.call) for teacher in experiment.teachers if teacher.call is not None)


def _measures_clouds(method: Mapping[str, Any], architectures: Iterable[str]) -> bool:
    """Whether rounds re-estimate BatchNorm statistics of models of point clouds, which a fast path measures."""
    return recalibrates(method) and any(hasattr(models[name], "points") for name in set(architectures))


def _registries() -> dict[str, Registry[Any]]:
    return {
        **PARTS,
        "input": method_inputs,
        "model": models,
        "task": tasks,
        "section": sections,
        STATISTICS[0]: statistics,
        **OWN,
    }


def _looked_at(what: str, name: str) -> tuple[int | str, list[str]]:
    """The behaviour version of a part of ours; of others the content, and what of it cannot be established."""
    if what == "teacher":
        module, _, function = name.partition(":")
        part, version = getattr(import_module(module), function), 1
    else:
        registry = _registries()[what]
        part, version = registry[name], registry.behaviour(name)
    if is_outside(part):
        # What models read when they are built is in their weights, which `fingerprint_of` and teachers' digests have.
        content = content_of(part, reads=what not in ("model", "teacher"))
    elif patches := _patches(part):
        content = content_of(*patches)
    else:
        return version, []
    return content.digest, [f"the {what} {name} {why}" for why in content.unknown]


def check_parts_sendable(*experiments: Experiment) -> None:
    """Refuse experiments with a part of the user's own that worker processes cannot be sent."""
    for what, name in dict.fromkeys(part for experiment in experiments for part in _used(experiment)):
        part = None if what == "teacher" else _registries()[what][name]
        if part is None or not is_outside(part) or str(getattr(part, "__module__", "")).startswith(MODULE_PREFIX):
            continue
        check_sendable(part, f"the {what.replace('_', ' ')} {name}")


def _patches(part: Any) -> list[types.FunctionType]:
    """Functions from outside in a class of ours or its bases: it was changed by hand."""
    held = [value for kind in part.__mro__ for value in vars(kind).values()] if isinstance(part, type) else []
    return [one for one in held if isinstance(one, types.FunctionType) and is_outside(one)]


def recorded_parts(config: Mapping[str, Any]) -> Parts:
    """What a run's configuration says of its parts; earlier versions had one behaviour version for all.

    Statistics that were measured before they were a part had its first behaviour.
    """
    parts: Parts = config.get("parts") or {KERNEL: int(config.get("behaviour", 0))}
    ran = config.get("experiment", {})
    own = [name for name in (ran.get("model"), *(ran.get("models") or ())) if name in models]
    if " ".join(STATISTICS) not in parts and _measures_clouds(ran.get("method") or {}, own):
        return {**parts, " ".join(STATISTICS): 1}
    return parts


def stale_parts(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Which parts of a run have another behaviour today, each as a sentence."""
    return tuple(differences(recorded_parts(config)))


def differences(parts: Parts) -> Iterator[str]:
    """Which parts have another behaviour today."""
    registries = _registries()
    for name, version in parts.items():
        what, _, called = name.partition(" ")
        if name == KERNEL:
            now = BEHAVIOUR
        elif isinstance(version, int) and what in registries and registries[what].current(called) in registries[what]:
            now = registries[what].behaviour(called)
        else:  # from outside: its content was part of the identity
            continue
        if now != version:
            yield f"{name} has behaviour {now} today, and had {version}"
