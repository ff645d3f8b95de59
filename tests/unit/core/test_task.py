from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from fedloom.core import streams
from fedloom.core.errors import ContractError
from fedloom.core.streams import seeded
from fedloom.core.task import Batch, Task, scaling_of
from fedloom.core.watched import watch


class Branches(nn.Module):
    """Two inputs, two branches, and a head that is not declared last."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)
        self.left = nn.Linear(2, 2)
        self.right = nn.Embedding(4, 3)
        self.register_buffer("offset", torch.full((5,), 0.5))

    def forward(self, x: Tensor, token: Tensor) -> Tensor:
        both = torch.cat([self.left(x), self.right(token)], dim=1)
        return self.head(torch.tanh(both + self.offset))


def batch_of(
    *inputs: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    key: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Batch:
    zero = torch.tensor(0)
    return Batch(
        inputs=inputs,
        targets=targets,
        mask=torch.ones(len(targets), dtype=dtype) if mask is None else mask,
        key=torch.tensor(key),
        step=zero,
        ends_epoch=zero.bool(),
        round=zero,
    )


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def labels(count: int, classes: int = 3) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, classes, count))


def branches() -> Branches:
    with seeded(0, "model"):
        return Branches()


def mixed(count: int = 6) -> Batch:
    tokens = labels(count, 4)
    return batch_of(numbers(count, 2), tokens, targets=labels(count))


def test_a_vector_has_the_head_last() -> None:
    task = Task(branches(), head="head", dtype=torch.float64)
    assert [block.name for block in task.layout] == [
        "left.weight",
        "left.bias",
        "right.weight",
        "head.weight",
        "head.bias",
    ]
    assert (task.base_d, task.d) == (4 + 2 + 12, 4 + 2 + 12 + 15 + 3)
    assert task.head == slice(18, 36)
    assert task.layout[0].start == 0
    assert all(
        one.stop == two.start
        for one, two in zip(task.layout[:-1], task.layout[1:], strict=True)
    )


def test_the_head_is_by_default_the_last_linear_layer() -> None:
    task = Task(branches())
    assert task.head_name == "left"
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3), nn.Softmax(1))
    assert Task(model).head_name == "2"
    assert Task(model).head == slice(12, 27)


def test_a_model_that_is_one_layer_is_all_head() -> None:
    task = Task(nn.Linear(2, 3))
    assert (task.base_d, task.d) == (0, 9)


def test_a_model_without_a_linear_layer_has_no_head() -> None:
    task = Task(nn.Embedding(4, 3))
    assert (task.base_d, task.d, task.head) == (12, 12, slice(12, 12))


def test_a_head_may_be_a_module_of_several_layers() -> None:
    tail = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    model = nn.Sequential(nn.Linear(2, 4), tail)
    assert Task(model, head="1").head == slice(12, 12 + 20 + 15)


def test_a_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(ContractError, match=r"'tail'.*Modules: head, left, right"):
        Task(branches(), head="tail")


def test_a_name_that_begins_like_the_head_is_not_the_head() -> None:
    model = nn.ModuleDict({"head": nn.Linear(2, 2), "header": nn.Linear(2, 3)})
    assert Task(model, head="head").base_d == 9


def normalised() -> nn.Module:
    """Every kind of normalisation layer, one of them in the head, some without
    parameters."""
    return nn.Sequential(
        nn.LayerNorm(4),
        nn.Linear(4, 6),
        nn.GroupNorm(2, 6),
        nn.Unflatten(1, (2, 3)),
        nn.InstanceNorm1d(2, affine=True),
        nn.InstanceNorm1d(2),
        nn.LayerNorm(3, elementwise_affine=False),
        nn.Flatten(),
        nn.Sequential(nn.RMSNorm(6), nn.Linear(6, 3)),
    )


def test_normalisation_layers_are_found_by_their_type() -> None:
    task = Task(normalised(), head="8")
    found = [block.name for block in task.layout if block.is_normalisation]
    assert found == [
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
        "4.weight",
        "4.bias",
        "8.0.weight",
    ]
    assert task.ordinary_d == (4 * 6 + 6) + (6 * 3 + 3)
    assert task.d - task.ordinary_d == 8 + 12 + 4 + 6


def test_the_parameters_of_normalisation_are_taken_out_and_put_back() -> None:
    task = Task(normalised(), head="8", dtype=torch.float64)
    # Each parameter is its own position, so that the parts say where they came from.
    theta = torch.arange(task.d, dtype=torch.float64)
    rest, normal = task.split_normalisation(theta)
    expected = [
        torch.arange(block.start, block.stop)
        for block in task.layout
        if block.is_normalisation
    ]
    assert torch.equal(normal, torch.cat(expected).double())
    assert sorted(torch.cat([normal, rest]).tolist()) == theta.tolist()
    assert torch.equal(rest, rest.sort().values)
    assert torch.equal(task.join_normalisation(rest, normal), theta)


def test_the_parameters_of_normalisation_are_split_for_many_clients_at_once() -> None:
    task = Task(normalised(), head="8", dtype=torch.float64)
    thetas = numbers(3, task.d)
    parts = vmap(task.split_normalisation)(thetas)
    for found, expected in zip(parts, task.split_normalisation(thetas), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(vmap(task.join_normalisation)(*parts), thetas)
    # What comes down is one for all, what is kept is not.
    mixed = vmap(task.join_normalisation, in_dims=(None, 0))(parts[0][0], parts[1])
    assert torch.equal(
        mixed,
        torch.stack([task.join_normalisation(parts[0][0], own) for own in parts[1]]),
    )


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_model_may_have_no_parameters_of_normalisation(is_frozen: bool) -> None:
    between = [nn.LayerNorm(4).requires_grad_(False)] if is_frozen else []
    task = Task(nn.Sequential(nn.Linear(2, 4), *between, nn.Linear(4, 3)))
    assert task.ordinary_d == task.d
    ordinary, normalisation = task.split_normalisation(task.start)
    assert torch.equal(ordinary, task.start)
    assert normalisation.shape == (0,)
    assert torch.equal(task.join_normalisation(ordinary, normalisation), task.start)


def test_a_model_that_is_one_normalisation_layer_is_nothing_else() -> None:
    task = Task(nn.LayerNorm(3))
    assert (task.ordinary_d, task.d) == (0, 6)
    ordinary, normalisation = task.split_normalisation(task.start)
    assert ordinary.shape == (0,)
    assert torch.equal(task.join_normalisation(ordinary, normalisation), task.start)


def test_flattening_and_unflattening_are_inverse() -> None:
    task = Task(branches(), head="head", dtype=torch.float64)
    theta = torch.arange(task.d, dtype=torch.float64)
    params = task.unflatten(theta)
    assert params["right.weight"].shape == (4, 3)
    assert torch.equal(task.flatten(params), theta)
    base, head = task.split(theta)
    assert (len(base), len(head)) == (18, 18)
    assert torch.equal(task.join(base, head), theta)


def test_the_start_is_the_models_own_parameters() -> None:
    model = branches()
    task = Task(model, head="head")
    assert torch.equal(task.unflatten(task.start)["left.weight"], model.left.weight)
    assert torch.equal(task.initial(0, 0), task.start)


def test_the_model_is_copied_and_never_changed() -> None:
    model = branches().train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    task = Task(model, head="head", dtype=torch.float64)
    task.grad(task.start + 1, mixed())
    task.start.zero_()
    after = model.state_dict()
    assert model.training
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_further_starts_are_drawn_anew_and_repeat() -> None:
    task = Task(branches())
    state = torch.random.get_rng_state()
    one, two = task.initial(5, 1), task.initial(5, 2)
    assert torch.equal(one, task.initial(5, 1))
    assert not torch.equal(one, two)
    assert not torch.equal(one, task.initial(6, 1))
    assert not torch.equal(one, task.start)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_predictions_are_the_models() -> None:
    model = branches().double()
    task = Task(model, head="head", dtype=torch.float64)
    batch = mixed()
    torch.testing.assert_close(
        task.predict(task.start, batch.inputs), model(*batch.inputs)
    )


def test_buffers_are_kept() -> None:
    model = branches().double()
    task = Task(model, head="head", dtype=torch.float64)
    batch = mixed()
    before = task.predict(task.start, batch.inputs)
    model.offset.fill_(9.0)
    assert torch.equal(task.predict(task.start, batch.inputs), before)
    moved = Task(model, head="head", dtype=torch.float64)
    assert not torch.allclose(moved.predict(task.start, batch.inputs), before)


def test_the_gradient_is_that_of_autograd() -> None:
    model = branches().double()
    task = Task(model, head="head", dtype=torch.float64)
    batch = mixed()
    loss = F.cross_entropy(model(*batch.inputs), batch.targets)
    loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    found = task.grad(task.start, batch)
    torch.testing.assert_close(found, task.flatten(expected))  # type: ignore[arg-type]
    torch.testing.assert_close(task.loss(task.start, batch), loss.detach())


def test_padding_counts_for_nothing() -> None:
    task = Task(branches(), head="head", dtype=torch.float64)
    batch = mixed(6)
    some = Batch(
        tuple(x[:4] for x in batch.inputs),
        batch.targets[:4],
        batch.mask[:4],
        *batch[3:],
    )
    padded = batch._replace(mask=torch.tensor([1.0, 1, 1, 1, 0, 0]).double())
    torch.testing.assert_close(
        task.grad(task.start, padded), task.grad(task.start, some)
    )
    assert torch.equal(padded.total(torch.ones(6)), torch.tensor(4.0).double())


def test_an_empty_batch_has_no_loss_and_no_gradient() -> None:
    task = Task(branches(), head="head", dtype=torch.float64)
    empty = mixed()._replace(mask=torch.zeros(6).double())
    assert float(task.loss(task.start, empty)) == 0.0
    assert not task.grad(task.start, empty).any()


def test_a_model_in_two_parts_has_the_losses_of_the_whole() -> None:
    task = Task(branches(), head="head", dtype=torch.float64)
    expected = task.losses(task.start, mixed())
    found = task.losses_of(*task.split(task.start), mixed())
    assert torch.equal(found, expected)
    bare = task.losses_of(task.start[:0], task.start, mixed())
    assert torch.equal(bare, expected)


def test_the_gradient_of_any_function_is_taken() -> None:
    task = Task(branches())
    theta = torch.arange(3.0)
    gradient = task.grad_of(lambda t: t.square().sum(), theta, mixed())
    assert torch.equal(gradient, 2 * theta)


def test_a_watched_task_counts_the_samples_that_entered_a_gradient() -> None:
    task = Task(branches(), head="head", dtype=torch.float64)
    batch = mixed()
    samples = float(batch.mask.sum())
    watched = watch(task)
    assert float(watched.met_samples()) == 0.0
    watched.loss(task.start, batch)
    assert float(watched.met_samples()) == 0.0
    watched.grad(task.start, batch)
    assert float(watched.met_samples()) == samples
    watched.grad_of(lambda t: t.sum(), torch.zeros(2), batch, passes=5)
    assert float(watched.met_samples()) == 6 * samples


def test_a_watched_task_keeps_the_losses_that_its_gradients_met() -> None:
    task = Task(branches(), head="head", dtype=torch.float64)
    watched = watch(task)
    assert vars(task).keys() <= vars(watched).keys()
    assert float(watched.met_loss()) == 0.0
    assert not watched.has_met_loss
    one = task.loss(task.start, mixed())
    two = task.loss(task.start * 2, mixed())
    watched.grad(task.start, mixed())
    watched.grad(task.start * 2, mixed())
    torch.testing.assert_close(watched.met_loss(), (one + two) / 2)
    assert watched.has_met_loss
    assert float(watch(task).met_loss()) == 0.0


def test_bytes_are_scaled_and_whole_numbers_kept() -> None:
    task = Task(nn.Linear(2, 2), shift=10.0, scale=4.0, dtype=torch.float64)
    raw = torch.tensor([[12, 8]], dtype=torch.uint8)
    tokens = torch.tensor([3])
    ready = task.prepare((raw, tokens, torch.ones(1, dtype=torch.float32)))
    assert torch.equal(ready[0], torch.tensor([[0.5, -0.5]]).double())
    assert ready[1] is tokens
    assert ready[2].dtype == torch.float64


def test_bytes_are_scaled_channel_by_channel() -> None:
    rng = np.random.default_rng(0)
    raw = torch.from_numpy(rng.integers(0, 256, (5, 3, 4, 2), dtype=np.uint8))
    shift, scale = (125.3, 0.0, 7.0), (51.6, 255.0, 3.0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 2))
    task = Task(model, shift=shift, scale=scale, dtype=torch.float64)
    (ready,) = task.prepare((raw,))
    expected = [(raw[:, c].double() - shift[c]) / scale[c] for c in range(3)]
    torch.testing.assert_close(ready, torch.stack(expected, 1), rtol=0, atol=1e-13)
    alike = Task(model, shift=(9.0,) * 3, scale=(4.0,) * 3).prepare((raw,))[0]
    assert torch.equal(alike, Task(model, shift=9.0, scale=4.0).prepare((raw,))[0])
    flat = task.prepare((raw[:, :, 0, 0],))[0]
    assert torch.equal(flat, ready[:, :, 0, 0])


def test_channels_are_scaled_for_many_clients_at_once() -> None:
    raw = torch.arange(2 * 3 * 2 * 1 * 2).reshape(2, 3, 2, 1, 2).to(torch.uint8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    task = Task(model, shift=(1.0, 2.0), scale=(3.0, 4.0))
    together = torch.func.vmap(lambda x: watch(task).prepare((x,))[0])(raw)
    alone = torch.stack([task.prepare((x,))[0] for x in raw])
    assert torch.equal(together, alone)


def test_numbers_are_learned_standardised_and_predicted_in_their_own_units() -> None:
    with seeded(0, "model"):
        model = nn.Linear(3, 2)
    shift, scale = torch.tensor([100.0, -5.0]), torch.tensor([20.0, 0.1])
    plain = Task(model, "squared-error", dtype=torch.float64)
    task = Task(
        model,
        "squared-error",
        target_shift=shift,
        target_scale=scale,
        dtype=torch.float64,
    )
    x, y = torch.randn(4, 3).double(), torch.randn(4, 2).double() * scale + shift
    batch = mixed()._replace(inputs=(x,), targets=y, mask=torch.ones(4).double())
    learned = batch._replace(targets=(y - shift) / scale)
    torch.testing.assert_close(
        task.grad(task.start, batch), plain.grad(task.start, learned)
    )
    said = plain.predict(task.start, (x,)) * scale + shift
    torch.testing.assert_close(task.predict(task.start, (x,)), said)
    torch.testing.assert_close(task.ordinary_module(task.start)(x), said)
    outcome = task.measure(task.start, (x,), y)
    torch.testing.assert_close(outcome.errors, said - y)
    torch.testing.assert_close(outcome.loss, plain.losses(task.start, learned))
    twice = torch.stack([task.start, 2 * task.start])
    torch.testing.assert_close(
        task.predict_average(twice, (x,)),
        (said + task.predict(2 * task.start, (x,))) / 2,
    )


def test_tasks_are_alike_if_their_scaling_is_of_the_same_kind() -> None:
    model = nn.Linear(2, 1)

    def scaled(*levels: float) -> Task:
        shift = torch.tensor(levels)
        return Task(model, "squared-error", shift=shift, scale=1 + shift)

    assert scaled(1.0, 2.0).has_constants_of(scaled(3.0, 4.0))
    assert not scaled(1.0, 2.0).has_constants_of(Task(model, "squared-error"))
    numbers = Task(
        model,
        "squared-error",
        target_shift=torch.tensor(1.0),
        target_scale=torch.tensor(2.0),
    )
    assert not numbers.has_constants_of(Task(model, "squared-error"))
    assert scaling_of([scaled(1.0, 2.0), scaled(1.0, 2.0)]) is None
    several = scaling_of([scaled(1.0, 2.0), scaled(3.0, 4.0)])
    assert several is not None
    assert torch.equal(several.shift, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


def noisy(p: float = 0.5) -> Task:
    with seeded(0, "model"):
        model = nn.Sequential(
            nn.Linear(4, 16), nn.Dropout(p), nn.Linear(16, 16), nn.Dropout(p)
        )
    return Task(nn.Sequential(*model, nn.Linear(16, 3)), dtype=torch.float64)


def steady(key: int, count: int = 8) -> Batch:
    return batch_of(numbers(count, 4), targets=labels(count), key=key)


def test_dropout_depends_on_the_key_alone() -> None:
    task = noisy()
    one = task.losses(task.start, steady(1))
    torch.rand(3)
    assert torch.equal(task.losses(task.start, steady(1)), one)
    assert not torch.allclose(task.losses(task.start, steady(2)), one)


def test_dropout_leaves_the_global_generator_alone() -> None:
    task = noisy()
    state = torch.random.get_rng_state()
    task.grad(task.start, steady(1))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_dropout_is_off_in_prediction() -> None:
    task = noisy()
    batch = steady(1)
    plain = noisy(0.0)
    found = task.predict(task.start, batch.inputs)
    assert torch.equal(found, plain.predict(task.start, batch.inputs))
    assert torch.equal(found, task.predict(task.start, batch.inputs))


def test_dropout_of_nothing_is_no_dropout() -> None:
    task = noisy(0.0)
    losses = task.measure(task.start, steady(1).inputs, steady(1).targets).loss
    torch.testing.assert_close(task.losses(task.start, steady(1)), losses)


def test_dropout_of_padded_batches_is_that_of_tight_ones() -> None:
    task = noisy()
    wide = task.losses(task.start, steady(1, 8))
    tight = Batch(
        (steady(1).inputs[0][:5],),
        steady(1).targets[:5],
        steady(1).mask[:5],
        *steady(1)[3:],
    )
    torch.testing.assert_close(task.losses(task.start, tight), wide[:5])


def test_dropout_keeps_the_mean_and_drops_the_given_share() -> None:
    with seeded(0, "model"):
        model = nn.Sequential(nn.Dropout(0.3), nn.Linear(1000, 1, bias=False))
    nn.init.constant_(model[1].weight, 1.0 / 1000)
    task = Task(model, lambda out, _: out[:, 0], dtype=torch.float64)
    ones = batch_of(torch.ones(200, 1000), targets=torch.zeros(200), key=4)
    means = task.losses(task.start, ones)
    assert abs(float(means.mean()) - 1.0) < 0.01
    # One value is 0 or 1 / 0.7: its standard deviation is sqrt(0.3 / 0.7).
    assert float(means.std()) == pytest.approx(math.sqrt(0.3 / 0.7 / 1000), rel=0.2)


def test_clients_drop_different_values_in_one_pass() -> None:
    task = noisy()
    batches = [steady(key) for key in (1, 2, 3)]
    keys = torch.stack([b.key for b in batches])
    together = vmap(lambda key: task.losses(task.start, batches[0]._replace(key=key)))(
        keys
    )
    for n, batch in enumerate(batches):
        torch.testing.assert_close(together[n], task.losses(task.start, batch))


def test_two_dropouts_of_a_model_drop_different_values() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(2000, 1))
    nn.init.constant_(model[2].weight, 1.0)
    nn.init.zeros_(model[2].bias)
    task = Task(model, lambda out, _: out[:, 0])
    ones = batch_of(torch.ones(1, 2000), targets=torch.zeros(1), dtype=torch.float32)
    kept = float(task.losses(task.start, ones)) / 4
    # A quarter survives both; a half would survive the same mask twice.
    assert 400 < kept < 600


def test_a_dropout_used_in_two_places_is_keyed_in_both() -> None:
    drop = nn.Dropout(0.5)
    with seeded(0, "model"):
        model = nn.Sequential(
            nn.Linear(4, 16), drop, nn.Linear(16, 16), drop, nn.Linear(16, 3)
        )
    task = Task(model, dtype=torch.float64)
    state = torch.random.get_rng_state()
    one = task.losses(task.start, steady(1))
    assert torch.equal(task.losses(task.start, steady(1)), one)
    assert torch.equal(torch.random.get_rng_state(), state)
    plain = Task(
        nn.Sequential(
            nn.Linear(4, 16),
            nn.Dropout(0.5),
            nn.Linear(16, 16),
            nn.Dropout(0.5),
            nn.Linear(16, 3),
        ),
        dtype=torch.float64,
    )
    assert torch.equal(plain.losses(task.start, steady(1)), one)


def test_a_block_used_in_two_places_has_its_dropout_keyed() -> None:
    with seeded(0, "model"):
        block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        model = nn.Sequential(block, nn.Tanh(), block, nn.Linear(4, 3))
    task = Task(model, dtype=torch.float64)
    state = torch.random.get_rng_state()
    one = task.losses(task.start, steady(1))
    assert torch.equal(task.losses(task.start, steady(1)), one)
    assert not torch.equal(task.losses(task.start, steady(2)), one)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (nn.BatchNorm1d(48), "BatchNorm1d"),
        (nn.BatchNorm2d(48), "BatchNorm2d"),
        (nn.SyncBatchNorm(48), "SyncBatchNorm"),
    ],
)
def test_batch_norm_is_refused_with_a_way_out(part: nn.Module, name: str) -> None:
    model = nn.Sequential(nn.Linear(2, 48), part, nn.Linear(48, 2))
    with pytest.raises(
        ContractError, match=rf"model: 1 is {name}.*nn\.GroupNorm\(16, 48\)"
    ):
        Task(model)


@pytest.mark.parametrize("part", [nn.LSTM(2, 2), nn.GRU(2, 2), nn.RNN(2, 2)])
def test_recurrent_layers_are_refused_with_a_way_out(part: nn.Module) -> None:
    with pytest.raises(ContractError, match=r"model: inner is .*nn\.LSTMCell"):
        Task(nn.ModuleDict({"inner": part}))


def test_a_recurrent_cell_is_welcome() -> None:
    assert Task(nn.LSTMCell(2, 3)).d == 4 * 3 * (2 + 3 + 2)


@pytest.mark.parametrize("part", [nn.Dropout2d(), nn.AlphaDropout(), nn.Dropout1d()])
def test_dropout_that_cannot_be_keyed_is_refused(part: nn.Module) -> None:
    with pytest.raises(ContractError, match=r"model: 0 is .*nn\.Dropout"):
        Task(nn.Sequential(part, nn.Linear(2, 2)))


def test_dropout_that_drops_nothing_need_not_be_keyed() -> None:
    assert Task(nn.Sequential(nn.Dropout2d(0.0), nn.Linear(2, 2))).d == 6


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ContractError, match="no parameters"):
        Task(nn.ReLU())


def test_a_loss_of_the_users_own_is_used() -> None:
    task = Task(
        branches(),
        lambda out, y: 2 * F.cross_entropy(out, y, reduction="none"),
        head="head",
        dtype=torch.float64,
    )
    plain = Task(branches(), head="head", dtype=torch.float64)
    torch.testing.assert_close(
        task.loss(task.start, mixed()), 2 * plain.loss(task.start, mixed())
    )
    assert task.metric == "accuracy"


@pytest.mark.parametrize("count", [1, 6])
def test_a_loss_that_is_averaged_already_is_refused(count: int) -> None:
    task = Task(branches(), F.cross_entropy, head="head", dtype=torch.float64)
    with pytest.raises(ContractError, match=r"one value per sample.*reduction='none'"):
        task.grad(task.start, mixed(count))


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(ContractError, match="found 'hinge'"):
        Task(branches(), "hinge")


@pytest.mark.parametrize(
    "shape", [(5,), (5, 1)], ids=["one number per sample", "a column"]
)
def test_a_regression_takes_targets_with_or_without_a_column(
    shape: tuple[int, ...],
) -> None:
    model = nn.Linear(2, 1).double()
    task = Task(model, "squared-error", dtype=torch.float64)
    x, y = numbers(5, 2), numbers(*shape, seed=3)
    expected = (model(x)[:, 0] - y.reshape(5)).square().detach()
    found = task.losses(task.start, batch_of(x, targets=y))
    torch.testing.assert_close(found, expected)
    outcome = task.measure(task.start, (x,), y)
    torch.testing.assert_close(outcome.loss, expected)
    torch.testing.assert_close(outcome.over_outputs(outcome.errors**2), expected)
    assert task.metric == "mse"


def test_a_regression_of_several_numbers_is_averaged_over_them() -> None:
    model = nn.Linear(2, 3).double()
    task = Task(model, "squared-error", dtype=torch.float64)
    x, y = numbers(5, 2), numbers(5, 3, seed=3)
    expected = F.mse_loss(model(x), y, reduction="none").mean(1)
    torch.testing.assert_close(
        task.losses(task.start, batch_of(x, targets=y)), expected.detach()
    )


def test_whole_number_targets_of_a_regression_are_cast() -> None:
    task = Task(nn.Linear(2, 1), "squared-error", dtype=torch.float64)
    y = numbers(5, seed=3).float()
    assert task.losses(task.start, batch_of(numbers(5, 2), targets=y)).dtype == (
        torch.float64
    )


def test_accuracy_is_scored_for_classes() -> None:
    task = Task(nn.Linear(3, 3, bias=False), dtype=torch.float64)
    theta = torch.eye(3).double().reshape(-1)
    scores = task.measure(theta, (torch.eye(3),), torch.tensor([0, 1, 1])).is_right
    assert scores.tolist() == [1.0, 1.0, 0.0]


def test_keyed_dropout_folds_the_place_of_each_layer_into_the_key() -> None:
    """Pins which stream the first layer takes: a change is a change of Numerics."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 1, bias=False))
    nn.init.constant_(model[1].weight, 1.0)
    task = Task(model, lambda out, _: out[:, 0])
    ones = batch_of(
        torch.ones(2, 6), targets=torch.zeros(2), key=9, dtype=torch.float32
    )
    kept = streams.uniform(streams.fold(torch.tensor(9), 0), (2, 6)) >= 0.5
    assert torch.equal(task.losses(task.start, ones), 2.0 * kept.sum(1))
