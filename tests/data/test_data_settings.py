"""Settings behind a data set's name: one text for each meaning, on every path that takes a name."""

from __future__ import annotations

import pytest

from fedstill.core.errors import InputError
from fedstill.data.data_settings import data_name, identity_name, split_name
from fedstill.runtime.assemble import make_experiment, overlay, override


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("digits", "digits"),
        ("digits,channels=3,size=16", "digits,size=16,channels=3"),
        ({"name": "digits,size=16", "size": 32}, "digits,size=32"),
        ({"name": "npz:a,b=.npz"}, None),
        ("npz:a=b.npz", "npz:a=b.npz"),
        ("folder:a,b c", "folder:a,b c"),
    ],
)
def test_equal_settings_have_one_name(given: object, name: str | None) -> None:
    if name is None:
        with pytest.raises(InputError, match=r"unknown setting 'data\.b'"):
            data_name(given)
    else:
        assert data_name(given) == name
        assert data_name(name) == name


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("digits,size=4", "data.size: input should be greater than or equal to 8"),
        ("digits,size=big", "data.size: input should be a valid integer"),
        ("digits,fit=crop", "fit=crop needs the size of the images, e.g. size=224"),
        ("digits,size=16,fit=squeeze", "data.fit: input should be 'resize', 'crop' or 'pad'"),
        ("digits,channels=2", "data.channels: input should be 1 or 3"),
        ("digits,sice=16", "unknown setting 'data.sice' of digits,sice=16: did you mean 'size'"),
    ],
)
def test_wrong_settings_are_named(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        split_name(name)


def test_a_name_alone_keeps_its_identity_and_settings_change_it() -> None:
    plain, sized = (make_experiment({"method": "fedavg", "data": name}) for name in ("digits", "digits,size=16"))
    assert identity_name("digits") == "digits"
    assert plain.hashed()["data"] == "digits"
    assert plain.digest("x") != sized.digest("x")


def test_the_same_settings_by_text_mapping_and_assignment() -> None:
    ways = [
        {"method": "fedavg", "data": {"name": "digits", "size": 16}},
        override({"method": "fedavg", "data": "digits"}, ["data.size=16"]),
        override({"method": "fedavg"}, ["size=16"]),
        overlay({"method": "fedavg", "data": "cifar10,size=64"}, {"data": "digits,size=16"}),
    ]
    assert {make_experiment(given).data for given in ways} == {"digits,size=16"}
