"""Distillation: how a student learns from teachers; importing this package registers the objectives."""

from fedstill.distillation.adapters import Adapters
from fedstill.distillation.alone import LabelsOnly
from fedstill.distillation.base import Objective, cross_entropy, objectives
from fedstill.distillation.ceiling import Ceiling, masking_ceiling, masking_threshold
from fedstill.distillation.contrastive import Contrastive, ContrastiveAndSoft, contrast
from fedstill.distillation.decoupled import Decoupled, other_classes, target_class
from fedstill.distillation.detectors import DetectorMatching, findings
from fedstill.distillation.features import Attention, Feature, attention, hint
from fedstill.distillation.labels import LABEL_MODES, LabelMode, NotAssessable, proxy_under_labels, under_labels
from fedstill.distillation.logits import (
    Basic,
    Cosine,
    LogitMse,
    MultiTeacher,
    SelfDistillation,
    Vanilla,
    average_teachers,
    cosine_distance,
    soft_targets,
    squared_difference,
)
from fedstill.distillation.relations import Relational, SimilarityPreserving, angles, distances, similarity

__all__ = [
    "LABEL_MODES",
    "Adapters",
    "Attention",
    "Basic",
    "Ceiling",
    "Contrastive",
    "ContrastiveAndSoft",
    "Cosine",
    "Decoupled",
    "DetectorMatching",
    "Feature",
    "LabelMode",
    "LabelsOnly",
    "LogitMse",
    "MultiTeacher",
    "NotAssessable",
    "Objective",
    "Relational",
    "SelfDistillation",
    "SimilarityPreserving",
    "Vanilla",
    "angles",
    "attention",
    "average_teachers",
    "contrast",
    "cosine_distance",
    "cross_entropy",
    "distances",
    "findings",
    "hint",
    "masking_ceiling",
    "masking_threshold",
    "objectives",
    "other_classes",
    "proxy_under_labels",
    "similarity",
    "soft_targets",
    "squared_difference",
    "target_class",
    "under_labels",
]
