"""Knowledge distillation: objectives by family, label modes, the method `distill` and the masking ceiling."""

from fedstill.distillation.objective import Objective, objectives

__all__ = ["Objective", "objectives"]

for _file, _names in {
    "contrastive": ("crd", "crd+kl"),
    "decoupled": ("dkd",),
    "features": ("attention", "feature"),
    "labels_only": ("labels-only",),
    "logits": ("basic", "cosine", "logit-mse", "multi-teacher", "self", "vanilla"),
    "relations": ("rkd", "sp"),
}.items():
    objectives.declare(f"fedstill.distillation.{_file}", *_names)
