"""Messages as Flower's records: what is sent arrives, and what is not a message is refused before it is a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill.core.message import TYPES, Message, MessageError, digest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedstill.engines.flower.records import packed, unpacked

RAW = "fedstill.raw"


def transported(records: RecordDict) -> RecordDict:
    """As between machines: every nested object to bytes, and the whole made of these bytes again."""
    contents = {name: part.deflate() for name, part in get_all_nested_objects(records).items()}
    arrived = inflate_object_from_contents(records.object_id, contents)
    assert isinstance(arrived, RecordDict)
    return arrived


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any type, up to three sides of which some are empty, and bits of any kind (infinities, NaN, the largest)."""
    dtype = draw(st.sampled_from(list(TYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = torch.Size(shape).numel() * dtype.itemsize
    bits = draw(st.binary(min_size=count, max_size=count))
    if dtype is torch.bool:
        bits = bytes(bit & 1 for bit in bits)
    return torch.tensor(list(bits), dtype=torch.uint8).view(dtype).reshape(shape)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")
values = st.text(max_size=8) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)


@given(st.dictionaries(names, tensors(), max_size=4), st.dictionaries(names, values, max_size=4))
@settings(max_examples=200, deadline=None)
def test_what_is_sent_arrives_bit_by_bit(tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    message, told = unpacked(transported(packed(tensors, header)))
    assert digest(message) == digest(tensors)
    assert {name: tensor.shape for name, tensor in message.items()} == {
        name: tensor.shape for name, tensor in tensors.items()
    }
    assert told == header
    assert {name: type(value) for name, value in told.items()} == {name: type(value) for name, value in header.items()}


@pytest.mark.parametrize("dtype", TYPES, ids=TYPES.get)
def test_every_type_with_nothing_one_and_many(dtype: torch.dtype) -> None:
    sent = {
        "nothing": torch.empty((0, 3), dtype=dtype),
        "one": torch.ones((), dtype=dtype),
        "many": torch.arange(6).reshape(2, 3).to(dtype),
    }
    message, _ = unpacked(transported(packed(sent, {})))
    for name, tensor in sent.items():
        assert message[name].dtype == dtype
        assert message[name].shape == tensor.shape
        assert torch.equal(message[name], tensor)


def test_tensors_stand_alone_in_aligned_memory() -> None:
    """Arithmetic on misaligned tensors gives other bits; views of one storage must not meet again."""
    whole = torch.arange(12, dtype=torch.float32)
    message, _ = unpacked(transported(packed({"a": whole[1:6], "b": whole[:3], "odd": torch.ones(3).bool()}, {})))
    assert [tensor.data_ptr() % 16 for tensor in message.values()] == [0, 0, 0]
    message["a"].zero_()
    assert message["b"].tolist() == [0, 1, 2]


def test_an_array_longer_than_one_of_flowers_chunks_arrives() -> None:
    """Flower cuts arrays into chunks and sends equal ones once: zeros around a few ones come back in their places."""
    long = torch.zeros(25 * 2**20, dtype=torch.uint8)
    long[[0, 12_345_678, -1]] = 1
    message, _ = unpacked(transported(packed({"long": long}, {})))
    assert torch.equal(message["long"], long)


def hostile(dtype: Any, shape: tuple[Any, ...], stype: str, data: bytes) -> RecordDict:
    return RecordDict({"tensors": ArrayRecord({"x": Array(dtype, shape, stype, data)}), "header": ConfigRecord({})})


@pytest.mark.parametrize(
    ("dtype", "shape", "stype", "data"),
    [
        pytest.param("F32", (2,), RAW, bytes(7), id="too few bytes"),
        pytest.param("F32", (2,), RAW, bytes(9), id="too many bytes"),
        pytest.param("F32", (), RAW, b"\0", id="a scalar without its bytes"),
        pytest.param("F32", (2**40,), RAW, bytes(4), id="a shape that would fill the memory"),
        pytest.param("F32", (0,), RAW, bytes(2), id="an empty tensor with bytes"),
        pytest.param("F32", (-1,), RAW, bytes(4), id="a negative side"),
        pytest.param("F32", (-2, -1), RAW, bytes(8), id="negative sides whose product fits"),
        pytest.param("F32", (-1, 0), RAW, b"\0", id="a negative side of nothing"),
        pytest.param("F32", (0, 2**62, 2**62), RAW, b"\0", id="nothing times too much"),
        pytest.param("F32", (0, 2**70), RAW, b"\0", id="a side that no integer holds"),
        pytest.param("U8", (True,), RAW, b"\1", id="a side that is a truth"),
        pytest.param("F8", (1,), RAW, bytes(1), id="an unknown type"),
        pytest.param("float32", (1,), RAW, bytes(4), id="a type by numpy's name"),
        pytest.param("F32", (1,), "numpy.ndarray", bytes(4), id="another way of writing"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(dtype: str, shape: tuple[Any, ...], stype: str, data: bytes) -> None:
    with pytest.raises(MessageError, match="tensor 'x'"):
        unpacked(hostile(dtype, shape, stype, data))
    with pytest.raises(MessageError, match="tensor 'x'"):
        unpacked(transported(hostile(dtype, shape, stype, data)))


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(RecordDict(), id="nothing"),
        pytest.param(RecordDict({"tensors": ArrayRecord()}), id="no header"),
        pytest.param(RecordDict({"header": ConfigRecord({})}), id="no tensors"),
        pytest.param(RecordDict({"tensors": MetricRecord({"x": 1}), "header": ConfigRecord()}), id="metrics instead"),
        pytest.param(RecordDict({"tensors": ConfigRecord(), "header": ArrayRecord()}), id="each in the other's place"),
    ],
)
def test_records_that_are_no_message_are_refused(records: RecordDict) -> None:
    with pytest.raises(MessageError, match="lacks its tensors or its header"):
        unpacked(transported(records))


def test_a_tensor_may_not_have_the_formats_own_name() -> None:
    records = RecordDict(
        {"tensors": ArrayRecord({"__metadata__": Array("U8", (1,), RAW, b"\0")}), "header": ConfigRecord()}
    )
    with pytest.raises(MessageError, match="__metadata__"):
        unpacked(records)


def test_the_limit_counts_all_tensors_together() -> None:
    records = packed({"a": torch.zeros(10), "b": torch.zeros(5, dtype=torch.uint8)}, {})
    assert list(unpacked(records, limit=45)[0]) == ["a", "b"]
    with pytest.raises(MessageError, match="45 bytes is over the limit of 44"):
        unpacked(records, limit=44)


def test_what_cannot_be_in_a_message_is_not_packed() -> None:
    with pytest.raises(MessageError, match="complex64"):
        packed({"x": torch.zeros(1, dtype=torch.complex64)}, {})


def test_only_plain_values_are_taken_from_a_header() -> None:
    records = packed(Message({}), {"round": 3})
    records["header"] = ConfigRecord({"round": 3, "bytes": b"x", "list": [1, 2]})
    assert unpacked(transported(records))[1] == {"round": 3}
