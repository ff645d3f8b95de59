from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError, DataError
from fedloom.data import Dataset, from_arrays
from fedloom.data.dataset import read_targets


def test_lengths_that_differ_are_named() -> None:
    with pytest.raises(DataError, match=r"inputs\[0\] has 3, targets has 2"):
        Dataset("toy", (torch.zeros(3, 2),), torch.zeros(2))


def test_an_owner_for_each_sample_is_required() -> None:
    with pytest.raises(DataError, match=r"lengths differ.*owner has 1"):
        from_arrays(np.zeros((2, 1)), [0, 1], clients=[7])


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="no samples"):
        Dataset("toy", (torch.zeros(0, 2),), torch.zeros(0))
    with pytest.raises(DataError, match="at least one tensor"):
        Dataset("toy", (), torch.zeros(2))


def test_a_scalar_in_place_of_samples_is_refused() -> None:
    with pytest.raises(DataError, match=r"inputs\[0\] is a single value"):
        Dataset("toy", (torch.tensor(1.0),), torch.zeros(2))


def test_values_that_are_not_finite_are_counted_and_located() -> None:
    x = np.zeros((5, 2))
    x[3] = np.nan
    x[4, 0] = np.inf
    with pytest.raises(DataError, match=r"inputs\[1\]: 3 values .* row 3"):
        from_arrays((np.zeros(5), x), np.zeros(5))
    with pytest.raises(
        DataError, match=r"targets: the value in row 1 is nan or infinite"
    ):
        from_arrays(np.zeros(2), np.array([0.0, -np.inf]))


def test_labels_outside_the_classes_are_located_with_a_remedy() -> None:
    with pytest.raises(DataError, match=r"0\.\.2, found 1\.\.3; row 1 .*np\.unique"):
        from_arrays(np.zeros(3), [1, 3, 2], classes=3)
    with pytest.raises(DataError, match=r"found -1\.\.1; row 0 has -1"):
        from_arrays(np.zeros(2), [-1, 1])


def test_labels_that_are_not_whole_are_refused() -> None:
    with pytest.raises(DataError, match=r"must be int64 labels.*float32"):
        Dataset("toy", (torch.zeros(2),), torch.zeros(2), classes=2)
    with pytest.raises(DataError, match=r"whole numbers, row 1 has 0\.5"):
        from_arrays(np.zeros(2), [1.0, 0.5], classes=2)


def test_a_regression_with_whole_targets_is_refused() -> None:
    with pytest.raises(DataError, match=r"must be floating.*classes"):
        Dataset("toy", (torch.zeros(2),), torch.zeros(2, dtype=torch.int64))


def test_other_types_and_shapes_are_refused() -> None:
    with pytest.raises(DataError, match=r"inputs\[0\] must be uint8, int64 or float"):
        Dataset("toy", (torch.zeros(2, dtype=torch.int32),), torch.zeros(2))
    with pytest.raises(DataError, match=r"inputs\[0\]: expected numbers"):
        from_arrays(np.array(["a", "b"]), [0, 1])
    with pytest.raises(DataError, match="expected numbers or text, found complex"):
        from_arrays(np.zeros(2), np.array([1j, 0]))
    with pytest.raises(DataError, match="owner must be"):
        from_arrays(np.zeros(2), [0, 1], clients=[0.5, 1.5])
    with pytest.raises(DataError, match="fixed_test must be boolean"):
        Dataset("t", (torch.zeros(2),), torch.zeros(2), fixed_test=np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="scale above 0"):
        from_arrays(np.zeros(2), [0, 1], scale=0.0)
    y = torch.tensor([0, 1])
    with pytest.raises(DataError, match="1 class names for 2 classes"):
        Dataset("t", (torch.zeros(2),), y, classes=2, class_names=("a",))


def test_there_may_be_a_level_for_each_number_of_a_sample() -> None:
    images = np.zeros((2, 3, 4, 4), np.uint8)
    each = tuple(map(float, range(48)))
    assert from_arrays(images, [0, 1], shift=each).shift == each
    with pytest.raises(DataError, match="one for each number of a sample where there"):
        from_arrays((images, images), [0, 1], shift=each)


def test_levels_per_channel_must_match_the_channels() -> None:
    images = np.zeros((2, 3, 4, 4), np.uint8)
    dataset = from_arrays(images, [0, 1], shift=(1.0, 2.0, 3.0), scale=255.0)
    assert dataset.shift == (1.0, 2.0, 3.0)
    with pytest.raises(DataError, match=r"scale has 2 values, but inputs\[0\] has 3"):
        from_arrays(images, [0, 1], scale=(1.0, 2.0))
    with pytest.raises(DataError, match=r"shift has 1 values, but inputs\[0\] has 0"):
        from_arrays(np.zeros(2, np.uint8), [0, 1], shift=(1.0,))
    with pytest.raises(DataError, match="scale above 0"):
        from_arrays(images, [0, 1], scale=(1.0, 0.0, 1.0))
    with pytest.raises(DataError, match="shift must be finite"):
        from_arrays(images, [0, 1], shift=(1.0, float("nan"), 1.0))


def test_a_subclass_for_each_sample_is_required() -> None:
    x, y = (torch.zeros(3, 1),), torch.tensor([0, 1, 1])
    dataset = Dataset("t", x, y, classes=2, subclass=np.array([4, 0, 7]))
    assert dataset.subclass is not None
    with pytest.raises(DataError, match=r"lengths differ.*subclass has 2"):
        Dataset("t", x, y, classes=2, subclass=np.array([4, 0]))
    with pytest.raises(DataError, match="subclass must be one int64 number"):
        Dataset("t", x, y, classes=2, subclass=np.array([0.5, 1.0, 2.0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", ">i4", "bool"])
def test_whole_targets_become_labels(dtype: str) -> None:
    dataset = from_arrays(np.zeros((2, 3)), np.array([0, 1]).astype(dtype))
    assert dataset.classes == 2
    assert dataset.targets.dtype == torch.int64
    assert dataset.targets.tolist() == [0, 1]
    assert dataset.outputs == 2
    assert dataset.input_shape == (3,)


def test_floating_targets_mean_regression_unless_classes_are_given() -> None:
    x, y = torch.zeros(3, 2), torch.tensor([0.0, 1.0, 1.0])
    assert from_arrays(x, y).classes is None
    assert from_arrays(x, y).outputs == 1
    assert from_arrays(x, y, classes=2).targets.dtype == torch.int64
    assert from_arrays(x, y[:, None].repeat(1, 4)).outputs == 4


def test_text_targets_become_labels_in_sorted_order() -> None:
    dataset = from_arrays(np.zeros(3), ["dog", "cat", "dog"])
    assert dataset.targets.tolist() == [1, 0, 1]
    assert dataset.class_names == ("cat", "dog")
    with pytest.raises(DataError, match="2 different texts for 3 classes"):
        from_arrays(np.zeros(2), ["a", "b"], classes=3)


def test_large_whole_targets_are_not_taken_for_classes() -> None:
    with pytest.raises(DataError, match="look like a quantity"):
        from_arrays(np.zeros(2), [10, 250_000])
    assert from_arrays(np.zeros(2), [0, 5000], classes=5001).classes == 5001


def test_input_types_are_kept_where_a_dataset_holds_them() -> None:
    parts = tuple(
        np.zeros((2, 1), dtype=kind) for kind in ("u1", "f4", "f8", "i4", "?", ">f4")
    )
    kinds = [x.dtype for x in from_arrays(parts, [0, 1]).inputs]
    assert kinds == [
        torch.uint8,
        torch.float32,
        torch.float64,
        torch.int64,
        torch.uint8,
        torch.float32,
    ]
    tensors = (torch.zeros(2, dtype=torch.int16), torch.zeros(2, dtype=torch.bfloat16))
    kinds = [x.dtype for x in from_arrays(tensors, torch.zeros(2)).inputs]
    assert kinds == [torch.int64, torch.bfloat16]


def test_a_read_only_or_reversed_array_is_accepted() -> None:
    x = np.arange(4.0)
    x.flags.writeable = False
    assert from_arrays(x[::-1], [0, 1, 0, 1]).inputs[0].tolist() == [3, 2, 1, 0]
    assert from_arrays(x, [0, 1, 0, 1]).inputs[0].tolist() == [0, 1, 2, 3]


def test_a_regression_has_no_classes() -> None:
    with pytest.raises(ConfigError, match="no classes"):
        read_targets([0.5], task="regression", classes=2)


def test_subclasses_are_one_whole_number_per_sample() -> None:
    y = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(DataError, match=r"lengths differ.*subclass has 1"):
        Dataset("t", (torch.zeros(2),), y, classes=1, subclass=np.array([1]))
    with pytest.raises(DataError, match="subclass must be one int64 number"):
        Dataset("t", (torch.zeros(2),), y, classes=1, subclass=np.zeros(2))  # type: ignore[arg-type]


TOKENS = torch.tensor([[1, 2, 0], [3, 0, 0]])


def test_sequences_of_whole_numbers_are_tokens() -> None:
    labels = torch.tensor([0, 1])
    assert Dataset("toy", (TOKENS,), labels, 2).tokens == 4
    vectors = torch.zeros(9, 5)
    assert Dataset("toy", (TOKENS,), labels, 2, vectors=vectors).tokens == 9
    assert Dataset("toy", (TOKENS.float(),), labels, 2).tokens is None
    assert Dataset("toy", (TOKENS[:, 0],), labels, 2).tokens is None


@pytest.mark.parametrize(
    ("x", "vectors", "message"),
    [
        (TOKENS, torch.zeros(3, 5), r"3 vectors need .*tokens 0\.\.2.*0\.\.3"),
        (TOKENS - 1, torch.zeros(9, 5), r"values -1\.\.2"),
        (TOKENS.float(), torch.zeros(9, 5), "found torch.float32"),
        (TOKENS, torch.zeros(9), r"one row per token, found torch.float32 \(9,\)"),
        (TOKENS, torch.zeros(9, 5).long(), "vectors must be floating"),
        (TOKENS, torch.full((9, 5), torch.nan), "vectors: 45 values are nan"),
    ],
)
def test_vectors_that_do_not_fit_the_tokens_are_refused(
    x: torch.Tensor, vectors: torch.Tensor, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Dataset("toy", (x,), torch.tensor([0, 1]), 2, vectors=vectors)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.arange(60) % 21, "21 different whole numbers"),
        (np.tile([0.0, 1.0], 10), r"all whole, 2 different ones \(0, 1\), which"),
        (np.tile([1.0, 2.0, 5.0], 10), "all whole, 3 different ones"),
    ],
)
def test_numbers_that_may_be_labels_or_a_quantity_are_asked_about(
    values: np.ndarray, kind: str
) -> None:
    with pytest.raises(DataError, match=kind) as refusal:
        read_targets(values)
    for task in ("classification", "regression"):
        assert f'data.task = "{task}"' in str(refusal.value)
        is_regression = read_targets(values, task=task).classes is None  # type: ignore[arg-type]
        assert is_regression == (task == "regression")
    with pytest.raises(DataError, match='Set task = "classification"'):
        from_arrays(np.zeros(len(values)), values)
    x = np.zeros(len(values))
    assert from_arrays(x, values, task="regression").classes is None
    assert from_arrays(x, values, classes=21).classes == 21


@pytest.mark.parametrize(
    "values",
    [
        np.arange(60) % 20,
        np.tile([True, False], 10),
        np.arange(40.0),
        np.tile([0.5, 1.5], 10),
        np.zeros(10),
        np.array([1.0, 2.0, 3.0]),
    ],
)
def test_numbers_that_can_be_told_are_not_asked_about(values: np.ndarray) -> None:
    assert (read_targets(values).classes is None) == (values.dtype.kind == "f")


def test_tags_need_one_value_per_sample() -> None:
    x, y = (torch.zeros(3, 2),), torch.zeros(3)
    tagged = Dataset("toy", x, y, groups={"device": np.array(["a", "b", "a"])})
    assert tagged.groups["device"].tolist() == ["a", "b", "a"]
    assert Dataset("toy", x, y).groups == {}
    with pytest.raises(DataError, match=r"lengths differ.*groups\['device'\] has 2"):
        Dataset("toy", x, y, groups={"device": np.array([0, 1])})
    with pytest.raises(DataError, match=r"groups\['device'\] must be one number, date"):
        Dataset("toy", x, y, groups={"device": np.zeros((3, 1))})


def test_the_hash_sees_every_value_its_type_its_shape_and_its_scale() -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 3
    nudged = x.copy()
    nudged[5, 1] = np.nextafter(11.0, 12.0)
    others = [
        from_arrays(nudged, y),
        from_arrays(x, (y + 1) % 3),
        from_arrays(x.astype("float32"), y),
        from_arrays(x.reshape(6, 1, 2), y),
        from_arrays((x, x), y),
        from_arrays(x, y, scale=2.0),
        from_arrays(x[::-1], y),
    ]
    same = from_arrays(np.asfortranarray(x), y, name="another name")
    assert same.hash == from_arrays(x, y).hash
    assert len({data.hash for data in (*others, same)}) == len(others) + 1
