from __future__ import annotations

from typing import Annotated, NamedTuple

import pytest
import torch
from torch import Tensor

from fedloom.core.errors import ContractError, MessageError
from fedloom.core.records import (
    Empty,
    PerClient,
    PerPair,
    PerTeam,
    WholeNumbers,
    add_place,
    client_dims,
    declared_ranges,
    from_named,
    leaves,
    map_record,
    message_bytes,
    named,
    own_names,
    rebuild,
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
    own: PerClient[Tensor]
    point: SGDState


def both(value: float = 0.0) -> Both:
    return Both(
        left=SGDState(torch.full((3,), value), torch.full((0,), value)),
        right=torch.full((), value, dtype=torch.float64),
        pair=(torch.full((2, 2), value), torch.full((1,), int(value))),
    )


class TeamDown(NamedTuple):
    shared: Tensor
    team: PerTeam[SGDState]
    own: PerClient[Tensor]


def test_what_a_team_has_alike_is_a_row_and_not_a_clients_own() -> None:
    rows = torch.zeros(3, 2)
    down = TeamDown(rows[0], SGDState(rows, rows), rows)
    assert client_dims(down) == [0, 1, 1, 1]
    assert own_names(down, in_team=True) == {"own"}
    assert own_names(down, in_team=False) == {"team.at", "team.velocity", "own"}
    assert own_names(Empty(), in_team=False) == set()


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


class Wrapped(NamedTuple):
    inner: Down
    extra: PerClient[SGDState]
    pairs: PerPair[Tensor]


def down() -> Down:
    state = SGDState(torch.zeros(3), torch.zeros(3))
    return Down(torch.zeros(3), torch.zeros(5, 3), state)


def test_only_fields_declared_so_have_one_row_per_client() -> None:
    assert client_dims(down()) == [0, 1, 0, 0]
    assert client_dims(Empty()) == []


def test_marks_are_found_in_nested_records_and_hold_for_all_below_them() -> None:
    state = SGDState(torch.zeros(5), torch.zeros(5))
    wrapped = Wrapped(down(), state, torch.zeros(5, 5))
    assert client_dims(wrapped) == [0, 1, 0, 0, 1, 1, 2]
    assert client_dims((wrapped, torch.zeros(5))) == [0, 1, 0, 0, 1, 1, 2, 0]


class Numbered(NamedTuple):
    place: Annotated[Tensor, WholeNumbers(below=3)]
    free: Tensor


class Nested(NamedTuple):
    inner: Numbered
    seen: Annotated[Tensor, WholeNumbers(least=1)]


def test_whole_numbers_are_found_in_nested_records() -> None:
    ranges = declared_ranges(Nested)
    assert ranges == {"inner.place": (0, 3), "seen": (1, None)}


def test_a_place_is_added_to_what_has_one_per_client_and_to_nothing_else() -> None:
    def wrapped(count: int, value: float) -> Wrapped:
        state = SGDState(torch.full((count,), value), torch.full((count, 2), value))
        inner = Down(torch.full((5,), value), torch.full((count, 3), value), state)
        inner = inner._replace(point=SGDState(torch.zeros(2), torch.zeros(0)))
        return Wrapped(inner, state, torch.full((count, count), value))

    larger = add_place(wrapped(5, 1.0), wrapped(6, 7.0), "here")
    assert larger.extra.at.tolist() == [1.0] * 5 + [7.0]
    assert larger.inner.own[:, 0].tolist() == [1.0] * 5 + [7.0]
    assert larger.inner.shared.tolist() == [1.0] * 5  # five numbers, no clients
    assert larger.pairs[5].tolist() == [7.0] * 6
    assert larger.pairs[:5, :5].unique().tolist() == [1.0]
    with pytest.raises(ContractError, match="Mark what has a place per client"):
        add_place(wrapped(5, 1.0), wrapped(7, 7.0), "here")


def test_bytes_are_counted_from_types() -> None:
    point = SGDState(torch.zeros(3, dtype=torch.float64), torch.zeros(0))
    down = Down(torch.zeros(3), torch.zeros(5, 7, dtype=torch.float16), point)
    # 3 floats, one client's row of 7 halves, 3 doubles, nothing.
    has_rows = [dims > 0 for dims in client_dims(down)]
    found = message_bytes(down, has_rows=has_rows)
    assert found == 3 * 4 + 7 * 2 + 3 * 8
    stacked = stack([both(), both()])
    # 3 floats, nothing, one double, 4 floats, one int64.
    assert message_bytes(stacked) == 3 * 4 + 8 + 4 * 4 + 8
    assert message_bytes(Empty()) == 0
