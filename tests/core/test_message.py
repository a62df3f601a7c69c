from __future__ import annotations

import copy
import json
import pickle
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedstill.core.kinds import state_of
from fedstill.core.message import Message, MessageError, digest, part, under

TYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(TYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = torch.Size(shape).numel()
    values = draw(st.lists(st.integers(0, 127), min_size=size, max_size=size))
    return torch.tensor(values).to(dtype).reshape(shape)


messages = st.dictionaries(NAMES, tensors(), max_size=5)


def same(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)


def crafted(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@given(messages)
@settings(deadline=None)
def test_what_is_encoded_is_what_is_decoded(content: dict[str, Tensor]) -> None:
    back = Message.decode(Message(content).encode())
    assert list(back) == sorted(content)
    assert all(same(back[name], content[name]) for name in content)


@given(messages)
@settings(deadline=None)
def test_the_bytes_are_those_of_safetensors(content: dict[str, Tensor]) -> None:
    """An independent writer of the same format gives the same file, so anyone can read what was sent."""
    assert Message(content).encode() == safetensors.torch.save(content)


@given(messages)
@settings(deadline=None)
def test_nbytes_is_the_encoded_length(content: dict[str, Tensor]) -> None:
    message = Message(content)
    assert message.nbytes == len(message.encode())


def test_the_length_of_a_message_by_hand() -> None:
    """8 bytes of length, the header {"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}} of 55 characters padded
    to 56, and 3 x 4 bytes: 76."""
    message = Message({"w": torch.tensor([1.0, 2.0, 3.0])})
    data = message.encode()
    assert data[:8] == (56).to_bytes(8, "little")
    assert data[8:64] == b'{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}' + b" "
    assert data[64:] == struct.pack("<3f", 1, 2, 3)
    assert message.nbytes == 76


def test_special_numbers_keep_their_bits() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    back = Message.decode(Message({"odd": odd}).encode())["odd"]
    assert torch.equal(back.view(torch.int32), odd.view(torch.int32))


def test_a_name_order_on_the_way_in_does_not_matter() -> None:
    one, two = torch.ones(2), torch.zeros(3)
    left, right = Message({"b": one, "a": two}), Message({"a": two, "b": one})
    assert list(left) == ["a", "b"]
    assert left.encode() == right.encode()


def test_views_expanded_and_transposed_tensors_travel_as_what_they_show() -> None:
    base = torch.arange(6.0).reshape(2, 3)
    content = {"expanded": base[:, :1].expand(2, 3), "row": base[1], "transposed": base.T, "whole": base}
    message = Message(content)
    back = Message.decode(message.encode())
    assert back["expanded"].tolist() == [[0, 0, 0], [3, 3, 3]]
    assert back["row"].tolist() == [3, 4, 5]
    assert back["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert message.nbytes == len(message.encode())
    assert all(tensor.is_contiguous() for tensor in message.values())


def test_tied_tensors_stand_alone() -> None:
    weight = nn.Parameter(torch.ones(3))
    message = Message({"a": weight, "b": weight})
    message["a"].data.mul_(2)
    assert message["b"].tolist() == [1, 1, 1]
    assert [t.requires_grad for t in message.values()] == [False, False]


def test_a_view_does_not_drag_its_storage_along_or_change_with_it() -> None:
    base = torch.zeros(1000)
    message = Message({"corner": base[:2]})
    base.fill_(7)
    assert message["corner"].tolist() == [0, 0]
    assert message["corner"].untyped_storage().nbytes() == 8


def test_a_message_of_a_models_state_does_not_follow_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    message = Message(state_of(model))
    before = message.encode()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
    assert message.encode() == before


def test_a_decoded_message_does_not_share_memory_with_its_bytes() -> None:
    data = Message({"w": torch.ones(4)}).encode()
    Message.decode(data)["w"].mul_(5)
    assert Message.decode(data)["w"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["a", "ab", "abc", "abcd", "abcdefgh"])
def test_decoded_memory_is_aligned(name: str) -> None:
    """In the bytes a tensor starts wherever the header ends; arithmetic on misaligned memory gives other bits."""
    content = {name + str(index): torch.rand(index + 1) for index in range(8)}
    for tensor in Message.decode(Message({**content, "byte": torch.ones(3, dtype=torch.uint8)}).encode()).values():
        assert tensor.data_ptr() % 64 == 0


@given(messages, st.sampled_from(["inside", "beside", "read-only", "misaligned"]))
@settings(deadline=None)
def test_a_message_between_processes(content: dict[str, Tensor], how: str) -> None:
    """A pickle with the tensors' memory in it or beside it: the same tensors, in aligned memory of their own."""
    message, buffers = Message(content), []
    data = pickle.dumps(message, protocol=5, buffer_callback=None if how == "inside" else buffers.append)
    given = [bytes(buffer) if how == "read-only" else placed(bytes(buffer), how) for buffer in buffers]
    back = pickle.loads(data, buffers=given)
    assert list(back) == list(message)
    assert all(same(back[name], message[name]) for name in content)
    assert all(
        tensor.data_ptr() % 64 == 0 and tensor.data_ptr() != message[name].data_ptr()
        for name, tensor in back.items()
        if tensor.nbytes
    )
    assert back.encode() == message.encode()
    for tensor in back.values():
        tensor.zero_()
    assert all(same(message[name], content[name]) for name in content)


def placed(data: bytes, how: str) -> memoryview:
    room = torch.zeros(len(data) + 64, dtype=torch.uint8)
    begin = 3 if how == "misaligned" else 0
    view = room.numpy()[begin : begin + len(data)].data
    view[:] = data
    return view


def test_copies_of_a_message() -> None:
    message = Message({"w": torch.ones(3)})
    for twin in (copy.deepcopy(message), pickle.loads(pickle.dumps(message, protocol=4))):
        twin["w"].zero_()
        assert message["w"].tolist() == [1, 1, 1]
        assert twin.nbytes == message.nbytes


def test_messages_are_the_same_where_their_tensors_are() -> None:
    """Equal numbers elsewhere in memory may become others."""
    one, two = torch.zeros(2), torch.zeros(2)
    message = Message({"a": one, "b": two})
    assert message.is_same(Message({"b": two, "a": one}))
    assert not any(
        message.is_same(other)
        for other in (
            Message({"a": one}),
            Message({"a": two, "b": one}),
            Message({"a": one, "b": two.clone()}),
            Message({"a": one.view(2, 1), "b": two}),
            Message({"a": one.view(torch.int32), "b": two}),
        )
    )


@given(messages, st.data())
@settings(deadline=None)
def test_damaged_bytes_give_a_message_error_or_a_message(content: dict[str, Tensor], data: st.DataObject) -> None:
    encoded = bytearray(Message(content).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(encoded) - 1))
        encoded[place] ^= data.draw(st.integers(1, 255))
    try:
        survivor = Message.decode(bytes(encoded))
    except MessageError:
        return
    assert survivor.nbytes == len(survivor.encode())


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        Message.decode(data)


def test_every_truncation_is_refused() -> None:
    data = Message({"a": torch.rand(3), "b": torch.tensor(2), "c": torch.ones(2, dtype=torch.bool)}).encode()
    for length in range(len(data)):
        with pytest.raises(MessageError):
            Message.decode(data[:length])
    with pytest.raises(MessageError):
        Message.decode(data + b"\0")


def entry(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (entry(shape=[2**32, 2**32]), b"\0" * 4),
        (entry(shape=[0, 2**63], offsets=[0, 0]), b""),
        (entry(shape=[0, 2**62, 2**62], offsets=[0, 0]), b""),
        (entry(shape=[-1]), b"\0" * 4),
        (entry(shape="x"), b"\0" * 4),
        (entry(shape=[2]), b"\0" * 4),
        (entry(offsets=[4, 0]), b"\0" * 4),
        (entry(offsets=[0, 2**63]), b"\0" * 4),
        (entry(dtype="PICKLE"), b"\0" * 4),
        (entry(dtype="F8_E4M3", offsets=[0, 1]), b"\0"),
        (entry(dtype="C64", offsets=[0, 8]), b"\0" * 8),
        (entry(dtype="U16", offsets=[0, 2]), b"\0" * 2),
        ([], b""),
        (b'{"a":' + b"[" * 10_000, b""),
        (b'{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}', b""),
    ],
)
def test_headers_that_lie_are_refused(header: object, body: bytes) -> None:
    with pytest.raises(MessageError):
        Message.decode(crafted(header, body))


def test_a_header_that_claims_to_be_enormous_is_refused() -> None:
    with pytest.raises(MessageError):
        Message.decode(struct.pack("<Q", 2**63) + b"{}")


def test_a_message_over_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    data = Message({"w": torch.ones(100)}).encode()
    assert len(Message.decode(data, limit=len(data))) == 1
    with pytest.raises(MessageError, match=f"{len(data)} bytes is over the limit of {len(data) - 1}"):
        Message.decode(data, limit=len(data) - 1)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16, torch.float8_e4m3fn])
def test_types_that_cannot_travel_are_named(dtype: torch.dtype) -> None:
    with pytest.raises(MessageError, match=f"'weights' has type {dtype}"):
        Message({"weights": torch.zeros(2).to(dtype)})


def test_metadata_is_never_written() -> None:
    assert b"__metadata__" not in Message({"w": torch.ones(2)}).encode()


def test_part_and_under_are_inverse() -> None:
    content = {"w": torch.ones(1), "b": torch.zeros(2)}
    message = Message({**under("model/", content), "steps": torch.tensor(3), "models/w": torch.zeros(1)})
    assert set(message.part("model/")) == {"w", "b"}
    assert set(part(under("x/", content), "x/")) == set(content)
    assert message.part("nothing/") == {}


@pytest.mark.parametrize(
    "other",
    [
        {"v": torch.zeros(4)},
        {"w": torch.zeros(2, 2)},
        {"w": torch.zeros(4, dtype=torch.int32)},
        {"w": torch.tensor([0.0, 0.0, 0.0, -0.0])},
        {"w": torch.zeros(4), "x": torch.zeros(0)},
    ],
    ids=["name", "shape", "type", "one bit", "empty tensor"],
)
def test_a_digest_tells_names_shapes_types_and_bits_apart(other: dict[str, Tensor]) -> None:
    assert digest({"w": torch.zeros(4)}) != digest(other)
    assert digest(other) == digest({name: tensor.clone() for name, tensor in reversed(other.items())})
