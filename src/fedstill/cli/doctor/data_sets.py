"""Which data sets are here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fedstill.cli.doctor.finding import Finding
from fedstill.core.errors import InputError
from fedstill.data.catalogue import available
from fedstill.data.roots import VARIABLE, data_root, recorded

TOPIC = "data"


def look_at_data(given: Path | None = None) -> Iterator[Finding]:
    root = data_root(given)
    said = "--data-root" if given is not None else VARIABLE if os.environ.get(VARIABLE) else "your data folder"
    if not root.is_dir():
        if said != "your data folder":
            yield Finding(
                TOPIC, "problem", f"{said} names {root}, which is no folder", "create it, or name the folder you mean"
            )
        else:
            yield Finding(TOPIC, "ok", f"nothing of your own in {root} yet: `fedstill data add` changes that")
    try:
        entries = recorded(root)
        every = available(None if given is None or not root.is_dir() else given)
    except InputError as error:
        yield Finding(TOPIC, "problem", str(error), "`fedstill data add` records data sets anew")
        return
    inside = [one.name for one in every if one.where == "built in"]
    found = [one.name for one in every if one.found and one.where != "built in"]
    yield Finding(TOPIC, "ok", f"built in: {', '.join(inside)}")
    if root.is_dir():
        missing = sum(not one.found for one in every)
        yield Finding(
            TOPIC,
            "ok",
            f"in {root}, by {said}: {', '.join(found) or 'none'}; {missing} more are known: see `fedstill data list`",
        )
    for one in every:
        if one.name in entries and not one.found:
            yield Finding(
                TOPIC, "look", f"{one.name} is recorded, but {one.where}", f"`fedstill data add {one.name} PATH`"
            )
