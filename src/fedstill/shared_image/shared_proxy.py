"""Proxy samples shared by clients and server: patches of one image or cloud, or another data set."""

from __future__ import annotations

from pathlib import Path

from fedstill.core.dataset import Proxy, SharedSamples
from fedstill.core.errors import InputError, MissingDataError
from fedstill.data.bundle import Kind
from fedstill.data.data_kinds import data_kinds
from fedstill.data.unlabelled import load_proxy
from fedstill.runtime.method_inputs import PlanContext, method_inputs
from fedstill.shared_image.patches import make_patches

SHARED = "shared samples"


PATCHES = "patches:"


@method_inputs.register(SHARED)
def shared_samples(context: PlanContext) -> Proxy | None:
    """The shared samples that a method requires; None if its settings require none."""
    wanted = context.method.shared_samples(context.experiment.method.settings)
    if wanted is None:
        return None
    if context.may_read is not None:
        context.may_read(wanted.name)
    key = f"{wanted.name} {context.task.shape} {wanted.patches!r}"
    if key not in context.made:
        try:
            context.made[key] = shared_proxy(wanted, context.kind, context.task.shape, context.data_root)
        except InputError as error:
            raise MissingDataError(wanted.name, str(error)) from None
    found: Proxy = context.made[key]
    return found


def shared_proxy(wanted: SharedSamples, kind: Kind, shape: tuple[int, ...], data_root: Path | None) -> Proxy:
    """The shared proxy data: patches, which every party cuts from one image or cloud, or an unlabelled data set."""
    name = wanted.name
    if name.startswith(PATCHES):
        pool = make_patches(name.removeprefix(PATCHES), shape, kind, wanted.patches, data_root)
        proxy = Proxy(pool, pool.fingerprint())
    else:
        other = load_proxy(name, data_root)
        if other.kind == kind and data_kinds[kind].points:
            other = other.with_points(shape[0])
        if other.kind != kind or other.shape != shape:
            raise InputError(
                f"the proxy {name} holds {other.kind}s of shape {other.shape}, and the clients {kind}s of shape {shape}"
            )
        proxy = Proxy(other.train.unlabelled(), other.fingerprint())
    return proxy
