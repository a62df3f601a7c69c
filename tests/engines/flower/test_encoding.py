"""Messages as Flower's records: what is sent arrives, and what is not a message is refused before it is a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill.core.message import TYPES, Message, MessageError, digest
from fedstill.engines.flower.encoding import packed, salted, unpacked, unsalted


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


def hostile(data: bytes, dtype: str = "uint8", stype: str = "safetensors", name: str = "x") -> RecordDict:
    arrays = ArrayRecord({name: Array(dtype, (len(data),), stype, data)})
    return RecordDict({"tensors": arrays, "header": ConfigRecord({})})


GOOD = Message({"x/a": torch.ones(3), "x/b": torch.ones(())}).encode()


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        pytest.param(hostile(b"junk"), "not a message", id="junk"),
        pytest.param(hostile(GOOD[:-1]), "not a message", id="too few bytes"),
        pytest.param(hostile(GOOD + b"x"), "not a message", id="too many bytes"),
        pytest.param(hostile(GOOD, stype="numpy.ndarray"), "written as 'numpy.ndarray'", id="another way of writing"),
        pytest.param(hostile(GOOD, dtype="float32"), "not a message's way", id="another type"),
        pytest.param(hostile(GOOD, name="y"), "holds 'x/a', which belongs elsewhere", id="in another part's place"),
        pytest.param(hostile(GOOD.replace(b"[3]", b"[9]")), "not a message", id="a shape that does not fit"),
    ],
)
def test_an_array_that_is_no_part_of_a_message_is_refused(records: RecordDict, sentence: str) -> None:
    with pytest.raises(MessageError, match=sentence):
        unpacked(records)
    with pytest.raises(MessageError, match=sentence):
        unpacked(transported(records))


def test_each_part_of_a_message_is_one_array() -> None:
    """Flower fetches every array with two requests: a model of a hundred tensors is one."""
    model = {f"model/parameters/{number}": torch.ones(number) for number in range(100)}
    records = packed({**model, "steps": torch.tensor(3), "loss/cross-entropy": torch.tensor(0.5)}, {})
    assert list(records["tensors"]) == ["loss", "model", "steps"]
    assert len(get_all_nested_objects(records)) == 3 + 2 * 3


def test_salted_messages_have_hashes_that_nobody_knows_beforehand() -> None:
    records = packed({"model/a": torch.ones(3)}, {"round": 1})
    one, two = salted(records), salted(records)
    own = [set(get_all_nested_objects(each)) for each in (one, two)]
    assert not own[0] & own[1]
    shared = [set(get_all_nested_objects(salted(records, b"0123456789abcdef"))) for _ in range(2)]
    assert len(shared[0] & shared[1]) == 3, "what goes out together is stored once: the arrays, not the header"
    message, header = unpacked(unsalted(transported(one)))
    assert message["model/a"].tolist() == [1, 1, 1]
    assert header == {"round": 1}
    for wrong in (records, RecordDict(), salted(hostile(b"x"))):
        with pytest.raises(MessageError):
            unpacked(unsalted(wrong))


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


def test_the_limit_counts_all_tensors_together() -> None:
    sent = {"a": torch.zeros(10), "b": torch.zeros(5, dtype=torch.uint8)}
    records, size = packed(sent, {}), sum(Message({name: tensor}).nbytes for name, tensor in sent.items())
    assert list(unpacked(records, limit=size)[0]) == ["a", "b"]
    with pytest.raises(MessageError, match=f"{size} bytes is over the limit of {size - 1}"):
        unpacked(records, limit=size - 1)


def test_what_cannot_be_in_a_message_is_not_packed() -> None:
    with pytest.raises(MessageError, match="complex64"):
        packed({"x": torch.zeros(1, dtype=torch.complex64)}, {})


def test_only_plain_values_are_taken_from_a_header() -> None:
    records = packed(Message({}), {"round": 3})
    records["header"] = ConfigRecord({"round": 3, "bytes": b"x", "list": [1, 2]})
    assert unpacked(transported(records))[1] == {"round": 3}
