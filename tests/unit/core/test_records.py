from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fedloom.core.errors import MessageError
from fedloom.core.records import (
    Empty,
    PerClient,
    from_named,
    leaves,
    map_record,
    message_bytes,
    named,
    rebuild,
    row_fields,
    skeleton,
    stack,
    take,
)


class SGDState(NamedTuple):
    at: Tensor
    velocity: Tensor


class Both(NamedTuple):
    left: SGDState
    right: Tensor
    pair: tuple[Tensor, Tensor]


class Down(NamedTuple):
    shared: Tensor
    own: PerClient
    point: SGDState


def both(value: float = 0.0) -> Both:
    return Both(
        left=SGDState(torch.full((3,), value), torch.full((0,), value)),
        right=torch.full((), value, dtype=torch.float64),
        pair=(torch.full((2, 2), value), torch.full((1,), int(value))),
    )


def test_leaves_come_in_the_order_of_the_fields() -> None:
    record = both()
    expected = [*record.left, record.right, *record.pair]
    assert all(one is two for one, two in zip(leaves(record), expected, strict=True))
    assert leaves(Empty()) == []


def test_rebuilding_is_the_inverse_of_taking_leaves() -> None:
    record = both(1.0)
    again = rebuild(both(0.0), leaves(record))
    assert type(again) is Both
    assert type(again.left) is SGDState
    assert type(again.pair) is tuple
    assert all(
        one is two for one, two in zip(leaves(again), leaves(record), strict=True)
    )
    assert rebuild(Empty(), []) == Empty()


def test_a_skeleton_holds_no_tensor_and_can_be_filled() -> None:
    bones = skeleton(both())
    assert bones == Both(SGDState(None, None), None, (None, None))  # type: ignore[arg-type]
    assert named(rebuild(bones, leaves(both(2.0)))).keys() == named(both()).keys()


def test_names_are_dotted_paths() -> None:
    names = ["left.at", "left.velocity", "right", "pair.0", "pair.1"]
    assert list(named(both())) == names


def test_a_record_comes_back_from_its_names() -> None:
    record = both(3.0)
    shuffled = dict(reversed(named(record).items()))
    again = from_named(both(), shuffled, "here")
    assert type(again) is Both
    assert all(map(torch.equal, leaves(again), leaves(record)))


def test_a_missing_field_is_named() -> None:
    tensors = named(both())
    del tensors["left.at"]
    with pytest.raises(MessageError, match=r"^here: field 'left.at' is missing\.$"):
        from_named(both(), tensors, "here")


@pytest.mark.parametrize(
    "wrong", [torch.zeros(4), torch.zeros(3, dtype=torch.float64), torch.zeros(1, 3)]
)
def test_a_field_of_another_shape_or_type_is_refused(wrong: Tensor) -> None:
    tensors = named(both()) | {"left.at": wrong}
    with pytest.raises(MessageError, match=r"field 'left.at' should be torch.float32"):
        from_named(both(), tensors, "here")


def test_a_function_is_applied_to_each_tensor_of_several_records() -> None:
    total = map_record(torch.add, both(1.0), both(2.0))
    assert type(total) is Both
    assert all(bool((leaf == 3).all()) for leaf in leaves(total))


def test_records_of_different_shape_are_not_mapped_together() -> None:
    with pytest.raises(ValueError, match="shorter"):
        map_record(torch.add, both(), Empty())  # type: ignore[arg-type]


def test_stacking_and_taking_are_inverse() -> None:
    stacked = stack([both(0.0), both(1.0), both(2.0)])
    assert stacked.left.at.shape == (3, 3)
    assert stacked.left.velocity.shape == (3, 0)
    assert stacked.right.shape == (3,)
    assert all(map(torch.equal, leaves(take(stacked, 1)), leaves(both(1.0))))
    some = take(stacked, torch.tensor([2, 0]))
    assert some.right.tolist() == [2.0, 0.0]


def test_only_fields_declared_so_have_one_row_per_client() -> None:
    point = SGDState(torch.zeros(3), torch.zeros(3))
    assert row_fields(Down(torch.zeros(3), torch.zeros(5, 3), point)) == [
        False,
        True,
        False,
        False,
    ]
    assert row_fields(Empty()) == []


def test_bytes_are_counted_from_types() -> None:
    point = SGDState(torch.zeros(3, dtype=torch.float64), torch.zeros(0))
    down = Down(torch.zeros(3), torch.zeros(5, 7, dtype=torch.float16), point)
    # 3 floats, one client's row of 7 halves, 3 doubles, nothing.
    found = message_bytes(down, has_rows=row_fields(down))
    assert found == 3 * 4 + 7 * 2 + 3 * 8
    stacked = stack([both(), both()])
    # 3 floats, nothing, one double, 4 floats, one int64.
    assert message_bytes(stacked) == 3 * 4 + 8 + 4 * 4 + 8
    assert message_bytes(Empty()) == 0
