"""Names of earlier releases: those of settings are accepted, those of code are refused by what they are called now."""

from __future__ import annotations

import dis
import re
from collections.abc import Mapping
from itertools import pairwise
from types import FunctionType

from fedstill.core.errors import InputError

# Settings, e.g. the sections of an experiment.
FORMER_SETTINGS = {"cure": "mitigation"}

# Parts of Exchange and Method, for plugins that define them under their names before 0.2.
RENAMED = {
    "merge": "aggregate",
    "least": "min_replies",
    "update": "update_prefix",
    "once": "first_contact_prefix",
    "bulky": "spill_to_disk",
    "also": "extra_models",
    "facts": "metrics",
    "counts": "selectable",
}

# The same for kinds of dropout.
RENAMED_IN_DROPOUT = {"fates": "dropout_events", "fate": "dropout_event", "able": "can_replace"}

# Attributes of the context and of profiles, which an exchange's methods are passed.
ATTRIBUTES = {"lost": "failures", "since": "last_round"}
PASSED_TO = ("prepare", "request", "reply", "expect", "aggregate")

# Classes and functions.
CODE = {
    "Attendance": "RoundParticipation",
    "Cure": "Mitigation",
    "Fate": "DropoutEvent",
    "Kept": "StateVersion",
    "Lectures": "TeacherCache",
    "Lost": "Failure",
    "Turn": "RoundContext",
    "cures": "mitigations",
    "first_words": "first_outputs",
    "said_by": "teacher_outputs",
    "spoken": "output_of",
    "words": "named_outputs",
}

# Modules; and names that one of these packages or modules had, which another one has now.
MODULES = {
    "fedstill.core.devices": "fedstill.core.hardware",
    "fedstill.core.queries": "fedstill.queries.query",
    "fedstill.core.threads": "fedstill.core.hardware",
    "fedstill.data.augment": "fedstill.data.augmentation",
    "fedstill.data.files": "fedstill.data.file_sources",
    "fedstill.data.kinds": "fedstill.data.data_kinds",
    "fedstill.data.known": "fedstill.data.known_images",
    "fedstill.data.parts": "fedstill.data.point_labels",
    "fedstill.data.patches": "fedstill.shared_image.patches",
    "fedstill.data.scene_augment": "fedstill.detection.scene_augmentation",
    "fedstill.data.scene_shards": "fedstill.detection.scene_partitions",
    "fedstill.data.scenes": "fedstill.detection.scenes",
    "fedstill.data.slices": "fedstill.data.named_slices",
    "fedstill.distillation.acquaintance": "fedstill.distillation.compatibility",
    "fedstill.distillation.adapters": "fedstill.distillation.objective",
    "fedstill.distillation.alone": "fedstill.distillation.labels_only",
    "fedstill.distillation.base": "fedstill.distillation.objective",
    "fedstill.distillation.clusters": "fedstill.shared_image.embedding_clusters",
    "fedstill.distillation.detectors": "fedstill.detection.distillation",
    "fedstill.distillation.labels": "fedstill.distillation.label_modes",
    "fedstill.distillation.query": "fedstill.queries.transfer_loss",
    "fedstill.distillation.selection": "fedstill.shared_image.proxy_selection",
    "fedstill.distillation.teaching": "fedstill.distillation.teachers",
    "fedstill.distillation.words": "fedstill.distillation.outputs",
    "fedstill.methods.attacks": "fedstill.methods.wrappers.attacks",
    "fedstill.methods.class_aware": "fedstill.detection.class_aware",
    "fedstill.methods.clue": "fedstill.queries.clue",
    "fedstill.methods.cured": "fedstill.methods.wrappers.mitigations",
    "fedstill.methods.cures": "fedstill.methods.wrappers.mitigations",
    "fedstill.methods.distill": "fedstill.distillation.distill",
    "fedstill.methods.ensemble": "fedstill.queries.ensemble",
    "fedstill.methods.fed3d": "fedstill.detection.fed3d",
    "fedstill.methods.feddf": "fedstill.shared_image.feddf",
    "fedstill.methods.fedgkt": "fedstill.devices.fedgkt",
    "fedstill.methods.fedmd": "fedstill.shared_image.fedmd",
    "fedstill.methods.friends": "fedstill.methods.wrappers.friend_substitution",
    "fedstill.methods.matching": "fedstill.queries.neuron_matching",
    "fedstill.methods.mimic": "fedstill.methods.wrappers.mimic",
    "fedstill.methods.peers": "fedstill.queries.peers",
    "fedstill.methods.perceptron": "fedstill.queries.perceptron",
    "fedstill.methods.pfnm": "fedstill.queries.pfnm",
    "fedstill.methods.privacy": "fedstill.methods.wrappers.privacy",
    "fedstill.methods.privacy_accounting": "fedstill.methods.wrappers.privacy_accounting",
    "fedstill.methods.qkt": "fedstill.queries.qkt",
    "fedstill.methods.qkt_light": "fedstill.queries.qkt_light",
    "fedstill.methods.shared_samples": "fedstill.shared_image.shared_samples",
    "fedstill.methods.single_image": "fedstill.shared_image.single_image",
    "fedstill.methods.split_sides": "fedstill.devices.split_sides",
    "fedstill.methods.vote": "fedstill.queries.vote",
    "fedstill.methods.wrapped": "fedstill.methods.wrappers.wrapper",
    "fedstill.models.compiled_neighbours": "fedstill.models.kernels.compiled_neighbours",
    "fedstill.models.detector": "fedstill.detection.model",
    "fedstill.models.detector.attention": "fedstill.detection.model.attention",
    "fedstill.models.detector.masked": "fedstill.detection.model.masked_autoencoder",
    "fedstill.models.detector.model": "fedstill.detection.model.detector",
    "fedstill.models.detector.predictions": "fedstill.detection.model.predictions",
    "fedstill.models.detector.sizes": "fedstill.detection.model.detector_sizes",
    "fedstill.models.detector.tokens": "fedstill.detection.model.tokens",
    "fedstill.models.neighbours": "fedstill.models.kernels.neighbours",
    "fedstill.models.registry": "fedstill.models.builders",
    "fedstill.models.sized": "fedstill.models.builders",
    "fedstill.models.split_cnn": "fedstill.devices.split_cnn",
    "fedstill.participation.attendance": "fedstill.participation.round_participation",
    "fedstill.participation.clustered": "fedstill.devices.clustered",
    "fedstill.participation.clusters": "fedstill.devices.clusters",
    "fedstill.participation.energy": "fedstill.devices.energy",
    "fedstill.participation.fleet": "fedstill.devices.fleet",
    "fedstill.runtime.fingerprint": "fedstill.runtime.experiment",
    "fedstill.runtime.participants": "fedstill.runtime.plan",
    "fedstill.tasks.detection": "fedstill.detection.detection_task",
    "fedstill.tasks.detection_losses": "fedstill.detection.detection_losses",
    "fedstill.tasks.kinds": "fedstill.tasks.task_choice",
    "fedstill.tasks.masked": "fedstill.detection.masked_task",
    "fedstill.tasks.measures": "fedstill.tasks.task_choice",
}
PACKAGES = ("fedstill.core.protocols", "fedstill.distillation", "fedstill.methods", "fedstill.participation")
HOMES = {
    "DetectorMatching": "fedstill.detection.distillation",
    "findings": "fedstill.detection.distillation",
    "Fed3D": "fedstill.detection.fed3d",
    "Clustered": "fedstill.devices.clustered",
    "Clusters": "fedstill.devices.clusters",
    "FedGkt": "fedstill.devices.fedgkt",
    "Fleet": "fedstill.devices.fleet",
    "Adapters": "fedstill.distillation.objective",
    "Ceiling": "fedstill.distillation.ceiling",
    "masking_ceiling": "fedstill.distillation.ceiling",
    "masking_threshold": "fedstill.distillation.ceiling",
    "Contrastive": "fedstill.distillation.contrastive",
    "ContrastiveAndSoft": "fedstill.distillation.contrastive",
    "contrast": "fedstill.distillation.contrastive",
    "Decoupled": "fedstill.distillation.decoupled",
    "other_classes": "fedstill.distillation.decoupled",
    "target_class": "fedstill.distillation.decoupled",
    "Distillation": "fedstill.distillation.distill",
    "Attention": "fedstill.distillation.features",
    "Feature": "fedstill.distillation.features",
    "hint": "fedstill.distillation.features",
    "LABEL_MODES": "fedstill.distillation.label_modes",
    "LabelMode": "fedstill.distillation.label_modes",
    "NotAssessable": "fedstill.distillation.label_modes",
    "proxy_under_labels": "fedstill.distillation.label_modes",
    "under_labels": "fedstill.distillation.label_modes",
    "LabelsOnly": "fedstill.distillation.labels_only",
    "Basic": "fedstill.distillation.logits",
    "Cosine": "fedstill.distillation.logits",
    "LogitMse": "fedstill.distillation.logits",
    "MultiTeacher": "fedstill.distillation.logits",
    "SelfDistillation": "fedstill.distillation.logits",
    "Vanilla": "fedstill.distillation.logits",
    "average_teachers": "fedstill.distillation.logits",
    "cosine_distance": "fedstill.distillation.logits",
    "soft_targets": "fedstill.distillation.logits",
    "squared_difference": "fedstill.distillation.logits",
    "cross_entropy": "fedstill.distillation.objective",
    "Relational": "fedstill.distillation.relations",
    "SimilarityPreserving": "fedstill.distillation.relations",
    "angles": "fedstill.distillation.relations",
    "distances": "fedstill.distillation.relations",
    "similarity": "fedstill.distillation.relations",
    "FedAdagrad": "fedstill.methods.adaptive",
    "FedAdam": "fedstill.methods.adaptive",
    "FedYogi": "fedstill.methods.adaptive",
    "Centralised": "fedstill.methods.centralised",
    "ClippedMean": "fedstill.methods.clipped_mean",
    "Ditto": "fedstill.methods.ditto",
    "FedAvgM": "fedstill.methods.fedavgm",
    "FedBn": "fedstill.methods.fedbn",
    "FedDyn": "fedstill.methods.feddyn",
    "FedMedian": "fedstill.methods.fedmedian",
    "FedNova": "fedstill.methods.fednova",
    "FedProx": "fedstill.methods.fedprox",
    "FineTuned": "fedstill.methods.fine_tuned",
    "Krum": "fedstill.methods.krum",
    "MultiKrum": "fedstill.methods.krum",
    "LocalOnly": "fedstill.methods.local_only",
    "Moon": "fedstill.methods.moon",
    "Scaffold": "fedstill.methods.scaffold",
    "TrimmedMean": "fedstill.methods.trimmed_mean",
    "Attack": "fedstill.methods.wrappers.choices",
    "attacks": "fedstill.methods.wrappers.choices",
    "Cure": "fedstill.methods.wrappers.choices",
    "cures": "fedstill.methods.wrappers.choices",
    "Privacy": "fedstill.methods.wrappers.choices",
    "privacies": "fedstill.methods.wrappers.choices",
    "Bursty": "fedstill.participation.dropout",
    "Dropout": "fedstill.participation.dropout",
    "Independent": "fedstill.participation.dropout",
    "NoDropout": "fedstill.participation.dropout",
    "LabelBalanced": "fedstill.participation.label_balanced",
    "Everyone": "fedstill.participation.policies",
    "Policy": "fedstill.participation.policies",
    "Attendance": "fedstill.core.participation_protocols",
    "DropoutEvent": "fedstill.core.participation_protocols",
    "Fate": "fedstill.core.participation_protocols",
    "Participation": "fedstill.core.participation_protocols",
    "RoundParticipation": "fedstill.core.participation_protocols",
    "Survey": "fedstill.core.participation_protocols",
    "Random": "fedstill.participation.policies",
    "PowerOfChoice": "fedstill.participation.power_of_choice",
    "replacements": "fedstill.participation.replacement",
    "Participants": "fedstill.participation.round_participation",
    "Trace": "fedstill.participation.trace",
    "BatteryAware": "fedstill.participation.weighted",
    "Clue": "fedstill.queries.clue",
    "Ensemble": "fedstill.queries.ensemble",
    "PeerMethod": "fedstill.queries.peers",
    "PFNM": "fedstill.queries.pfnm",
    "NaiveKD": "fedstill.queries.qkt",
    "QKT": "fedstill.queries.qkt",
    "QKTLight": "fedstill.queries.qkt_light",
    "FedDF": "fedstill.shared_image.feddf",
    "FedMD": "fedstill.shared_image.fedmd",
    "SingleImage": "fedstill.shared_image.single_image",
}
_IMPORTED = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def import_remedy(error: BaseException) -> str | None:
    """What to import instead of a name of an earlier release; None where it is no such name.

    >>> import_remedy(ImportError("cannot import name 'Turn' from 'fedstill.core.protocols' (protocols.py)"))
    'Turn of fedstill.core.protocols has another name now: rename it to RoundContext'
    """
    if isinstance(error, ModuleNotFoundError):
        now = MODULES.get(error.name or "")
        return now and f"the module {error.name} has another name now: rename it to {now}"
    found = _IMPORTED.match(str(error)) if isinstance(error, ImportError) else None
    if found is None:
        return None
    name, module = found.groups()
    if module in PACKAGES and name in HOMES:
        return f"{module} does not have {name} any more: import {CODE.get(name, name)} from {HOMES[name]}"
    return CODE.get(name) and f"{name} of {module} has another name now: rename it to {CODE[name]}"


def former_attribute(function: object) -> str | None:
    """An attribute of an earlier release that a method reads of its arguments, or of their profile; None: none.

    >>> former_attribute(lambda self, turn: len(turn.lost)), former_attribute(lambda self, turn: turn.round)
    ('lost', None)
    """
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    passed = code.co_varnames[1 : code.co_argcount]  # without `self`, whose attributes are its own
    for one, other in pairwise(dis.get_instructions(code)):
        of_argument = one.opname.startswith("LOAD_FAST") and one.argval in passed
        of_profile = one.opname == "LOAD_ATTR" and one.argval == "profile"
        if other.opname == "LOAD_ATTR" and other.argval in ATTRIBUTES and (of_argument or of_profile):
            return str(other.argval)
    return None


def check_renamed(kind: type, renamed: Mapping[str, str]) -> None:
    """Refuse a class that defines something under a name that is no longer called."""
    for old, new in renamed.items():
        if old in vars(kind):
            raise InputError(f"{kind.__name__}.{old} has another name now: rename it to {new}")


def check_exchange(kind: type) -> None:
    """Refuse an exchange or method of a plugin that uses names of earlier releases."""
    check_renamed(kind, RENAMED)
    for name in PASSED_TO:
        if (read := former_attribute(vars(kind).get(name))) is not None:
            raise InputError(f"{kind.__name__}.{name} reads .{read}, which is .{ATTRIBUTES[read]} now: rename it")
    if "provide" in vars(kind):
        raise InputError(
            f"{kind.__name__}.provide is not called any more: set wants = frozenset({{'shared samples'}}), and take"
            " them from the constructor's `inputs`"
        )
