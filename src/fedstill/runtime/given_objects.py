"""Objects that are given in place of names: each gets a name, by which an experiment's configuration has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstill.core.errors import InputError
from fedstill.data.bundle import Bundle
from fedstill.data.data_settings import data_name
from fedstill.data.lookup import by_name, hold
from fedstill.models.model_settings import model_name
from fedstill.models.own_models import check_same, named_model, own_models

MODEL_NOTES = ("features", "outputs", "head")  # what is said of a model that is given as an object


def named_objects(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Bundle | None]:
    """The settings with names in place of data and models; and the data, where it was given as an object."""
    named = dict(settings)
    notes = {key: named.pop(key) for key in MODEL_NOTES if key in named}
    if named.get("model") is not None or notes:
        if isinstance(named.get("model"), Mapping):
            named["model"] = model_name(named["model"])
        named["model"] = named_model(named.get("model") or "the default model", **notes)
    if isinstance(models := named.get("models"), Mapping):
        named["models"] = _named_models(models)
    bundle = None
    if "data" in named:
        named["data"], bundle = named_data(named["data"])
    if bundle is not None and bundle.sites:
        named.setdefault("clients", bundle.sites)
        named.setdefault("partition", "sites")
    return named, bundle


def _named_models(given: Mapping[Any, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for model, count in given.items():
        held = own_models(named)
        name = named_model(model)
        check_same(held)
        if name in named:
            raise InputError(f"the model {name} is given twice: give it once, with the number of both")
        named[name] = count
    return named


def named_data(data: Any) -> tuple[str, Bundle | None]:
    """The name of a data set; and the data set itself, where it was given as an object."""
    if isinstance(data, Mapping) and isinstance(data.get("name"), str):
        data = data_name({**data, "name": by_name(data["name"])})
    if isinstance(data, str | Path):
        return by_name(data), None
    from fedstill.data.objects import dataset  # which data by name does not need

    bundle = dataset(data)
    hold(bundle)
    return bundle.name, bundle
