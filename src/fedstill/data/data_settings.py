"""Settings of a data set, written behind its name: `folder:scans,size=224,fit=crop`.

The text is what an experiment keeps and its identity contains, so that everything that loads data by name reads it in
the same way. In YAML and Python a mapping does as well: `{"name": "folder:scans", "size": 224}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.settings import Settings

_BEFORE_SETTING = re.compile(r",(?=[a-z_]+=)")
_OF_TABLES = ("table", "file", "label", "labels", "group", "split", "classes")
_OF_FEATURES = ("drop", "categorical", "impute", "indicators", "scale")
Fit = Literal["resize", "crop", "pad"]


class DataSettings(Settings):
    """How the samples of a data set are read."""

    size: int | None = Field(None, ge=8, le=4096, description="side of square images in pixels; unset: as stored")
    fit: Fit = Field(
        "resize",
        description="how images become square: resize (stretched), crop (the centre) or pad (black margins)",
    )
    channels: Literal[1, 3] | None = Field(
        None, description="channels of images: 1 (grey) or 3 (colour); unset: 1 if all images are grey"
    )

    memory: int = Field(
        2048,
        ge=0,
        description="megabytes of decoded images in a process; other files are read again for each batch",
    )

    normals: bool = Field(False, description="clouds with the normal of each point behind its coordinates")

    table: str | None = Field(None, description="table of labels, a file in the folder; unset: the one that is found")
    file: str | None = Field(None, description="the table's column of file names; unset: found by name")
    label: str | None = Field(None, description="the table's column of classes; unset: found by name")
    labels: tuple[str, ...] = Field(
        (),
        description="any number of classes for a sample: the table's columns of 0 and 1, one for each class; or one"
        " column of class names with |, ; or , between them",
    )
    site: str | None = Field(
        None, description="the table's column of sites, or `folder`: each folder is a site; unset: the column `site`"
    )
    group: str | None = Field(None, description="the table's column of patients, whom no split and no shard divides")
    split: str | None = Field(
        None, description="the table's column of train, validation and test; unset: found by name"
    )
    classes: tuple[str, ...] = Field(
        (), description="classes in their order, or a file with one in each line; unset: sorted"
    )
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="whether a file that cannot be read stops or is left out"
    )

    drop: tuple[str, ...] = Field((), description="columns of a table that are no features")
    categorical: tuple[str, ...] = Field(
        (), description="columns of numbers that are categories; columns of texts are categories anyhow"
    )
    impute: Literal["mean", "median", "most-frequent", "zero"] = Field(
        "mean", description="what stands for a missing number: of the training rows of the same site, or zero"
    )
    indicators: bool = Field(
        False, description="a further feature for each column with missing numbers, 1 where missing"
    )
    scale: Literal["site", "shared", "none"] = Field(
        "site",
        description="numbers are centred and divided by their standard deviation, of the training rows of the same site"
        " or of all sites",
    )

    added_later: ClassVar[frozenset[str]] = frozenset(
        {
            "size",
            "fit",
            "channels",
            "memory",
            "normals",
            "table",
            "file",
            "label",
            "labels",
            "site",
            "group",
            "split",
            "classes",
            "on_error",
        }
        | {"drop", "categorical", "impute", "indicators", "scale"}
    )
    outside_identity: ClassVar[frozenset[str]] = frozenset({"memory"})  # settings that change no number

    @field_validator("table", "file", "label", "site", "group", "split", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int | float) else value

    @field_validator("classes", "labels", "drop", "categorical", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        listed = value.split(",") if isinstance(value, str) else value
        return [str(one) for one in listed] if isinstance(listed, list | tuple) else listed

    @property
    def reads_table(self) -> tuple[str, ...]:
        """The settings that need a table of labels, as far as they are set."""
        return tuple(name for name in _OF_TABLES if getattr(self, name))

    @property
    def of_features(self) -> tuple[str, ...]:
        """The settings that need a table of features, as far as they are set."""
        fields = type(self).model_fields
        return tuple(name for name in _OF_FEATURES if getattr(self, name) != fields[name].default)

    @property
    def of_files(self) -> tuple[str, ...]:
        """The settings that are for files of the user's own only, as far as they are set."""
        others = ("site",) if self.site else ("on_error",) if self.on_error != "stop" else ()
        others = ("normals", *others) if self.normals else others
        return (*self.reads_table, *self.of_features, *others)

    @model_validator(mode="after")
    def _consistent(self) -> DataSettings:
        if self.fit != "resize" and self.size is None:
            raise ValueError(f"fit={self.fit} needs the size of the images, e.g. size=224")
        if self.labels and self.label is not None:
            raise ValueError("label is for one class per sample, and labels for any number: give one of them")
        if len(self.labels) > 1 and self.classes:
            raise ValueError("labels names the classes by their columns: leave classes out")
        return self

    def text(self, leave_out: frozenset[str] = frozenset()) -> str:
        """The settings that are not at their default, as they are written behind a name.

        >>> DataSettings(size=64, fit="pad").text()
        ',size=64,fit=pad'
        """
        chosen = {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name not in leave_out and getattr(self, name) != field.default
        }
        return "".join(f",{name}={_written(value)}" for name, value in chosen.items())


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def split_name(name: str) -> tuple[str, DataSettings]:
    """A data set's name without its settings, and the settings.

    >>> split_name("folder:scans,size=224")[0], split_name("folder:scans,size=224")[1].size
    ('folder:scans', 224)
    """
    plain, given = _pieces(name)
    return plain, _settings(given, name)


def data_mapping(name: str) -> dict[str, Any]:
    """A name with its settings as a mapping.

    >>> data_mapping("digits,size=16")
    {'name': 'digits', 'size': 16}
    """
    plain, given = _pieces(name)
    return {"name": plain, **given}


def data_name(given: Any) -> Any:
    """A data set as text, settings in a fixed order and without defaults; what is neither text nor mapping stays.

    >>> data_name({"name": "digits", "fit": "pad", "size": 16}), data_name("digits,fit=resize")
    ('digits,size=16,fit=pad', 'digits')
    """
    if isinstance(given, str) and given:
        given = data_mapping(given)
    if not isinstance(given, Mapping):
        return given
    settings = dict(given)
    name = settings.pop("name", None)
    if not isinstance(name, str) or not name:
        raise InputError("data needs the name of a data set, npz:FILE or folder:FOLDER")
    plain, own = _pieces(name)
    return plain + _settings({**own, **settings}, plain).text()


def identity_name(name: str) -> str:
    """The name as a run's identity contains it: without settings that change no number."""
    plain, settings = split_name(name)
    return plain + settings.text(settings.outside_identity)


def _pieces(name: str) -> tuple[str, dict[str, Any]]:
    plain, *pairs = _BEFORE_SETTING.split(name)
    split = [pair.partition("=") for pair in pairs]
    return plain, {key: _read(value) for key, _, value in split}


def _settings(given: Mapping[str, Any], owner: str) -> DataSettings:
    if unknown := sorted(given.keys() - DataSettings.model_fields.keys()):
        known = did_you_mean(unknown[0], DataSettings.model_fields)
        raise InputError(f"unknown setting {f'data.{unknown[0]}'!r} of {owner}: {known}")
    try:
        return DataSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["data", *map(str, first["loc"][:1])])
        what = first["msg"].removeprefix("Value error, ")
        value = f" (got {first['input']!r})" if isinstance(first["input"], str | int | float) else ""
        raise InputError(f"{where}: {what[0].lower()}{what[1:]}{value}") from None
