"""The data a student learns on, as the label mode allows it; and samples that clients and server share."""

from __future__ import annotations

from pathlib import Path

import torch

from fedstill.core.dataset import Dataset, Proxy, Subset
from fedstill.core.errors import InputError
from fedstill.core.numbers import count
from fedstill.core.protocols import Method
from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle, Kind
from fedstill.data.parts import shape_kinds
from fedstill.data.patches import make_patches
from fedstill.data.splits import split_validation
from fedstill.data.unlabelled import load_proxy
from fedstill.distillation.labels import proxy_under_labels
from fedstill.methods import Distillation


def proxy_data(
    method: Distillation, bundle: Bundle, train: Dataset, data_root: Path | None, streams: Streams
) -> tuple[Dataset, str]:
    """What a student learns on: the training split, or another data set, or a share of either; perhaps unlabelled.

    A share is drawn evenly from the classes where they are known, and is the same rows in every label mode. The text
    beside it is the fingerprint of another data set, for the run's identity.
    """
    settings, data, fingerprint = method.settings, train, ""
    if settings.proxy is not None:
        other = load_proxy(settings.proxy, data_root)
        fingerprint = other.fingerprint()
        if other.kind == bundle.kind != "image":
            other = other.with_points(min(bundle.shape[0], other.shape[0]))
        if other.kind != bundle.kind or (bundle.kind == "image" and other.shape != bundle.shape):
            raise InputError(
                f"the proxy {settings.proxy} holds {other.kind}s of shape {other.shape}, and {bundle.name} holds"
                f" {bundle.kind}s of shape {bundle.shape}"
            )
        if other.classes and other.classes != bundle.classes and "labels" in method.objective.reads:
            raise InputError(
                f"the objective {method.objective.name} reads labels, and those of the proxy {settings.proxy} are of"
                f" other classes than {bundle.name}'s: choose --labels withhold, or an objective that needs no labels"
            )
        # Another set's labels are of other classes: they must not be read as if they were of these.
        data = other.train if other.classes == bundle.classes else other.train.unlabelled()
    if round(settings.share * len(data)) < 2:
        raise InputError(
            f"a share of {settings.share:g} of the proxy's {count(len(data), 'sample')} makes no batch of two: raise"
            " method.share, or choose another proxy"
        )
    if settings.share < 1:
        kinds = torch.zeros(len(data), dtype=torch.int64) if data.labels() is None else shape_kinds(data)
        _, taken = split_validation(kinds, settings.share, streams.at("proxy"))
        data = Subset(data, taken)
    return proxy_under_labels(data, method.objective, settings.labels), fingerprint


PATCHES = "patches:"


def shared_proxy(method: Method, kind: Kind, shape: tuple[int, ...], data_root: Path | None) -> Proxy | None:
    """The samples that a method wants everybody to have, handed to the method; None where it wants none.

    Patches are cut from one image, or one cloud, by everybody for themselves; another data set loses its labels.
    """
    name = method.shared_samples()
    if name is None:
        return None
    if name.startswith(PATCHES):
        pool = make_patches(
            name.removeprefix(PATCHES), shape, kind, getattr(method.settings, "patches", None), data_root
        )
        proxy = Proxy(pool, pool.fingerprint())
    else:
        other = load_proxy(name, data_root)
        if other.kind == kind != "image" and other.shape[0] >= shape[0]:
            other = other.with_points(shape[0])
        if other.kind != kind or other.shape != shape:
            raise InputError(
                f"the proxy {name} holds {other.kind}s of shape {other.shape}, and the clients {kind}s of shape {shape}"
            )
        proxy = Proxy(other.train.unlabelled(), other.fingerprint())
    method.provide(proxy)
    return proxy
