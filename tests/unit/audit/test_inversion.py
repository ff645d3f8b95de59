from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_runs
import torch
from torch import nn

import fedloom
from fedloom.audit import inversion
from fedloom.audit.inversion import invert, refusal
from fedloom.results.audit import EXACT


@pytest.mark.parametrize("standardise", [False, True])
def test_one_sample_is_read_off_a_linear_layer(
    tmp_path: Path, standardise: bool
) -> None:
    federation = small_runs.clients(standardise=standardise)
    subject = small_runs.trained(tmp_path, fedloom.FedAvg(), federation, rounds=1)
    found = invert(subject, 2, seed=0)
    alone, batch, total = found.cases
    assert (alone.clients, alone.batch, alone.how) == (1, 1, "closed form")
    assert alone.psnr > 60.0
    assert found.guess < batch.psnr < alone.psnr
    assert (total.clients, total.batch) == (8, 2)
    assert total.psnr < batch.psnr
    np.testing.assert_allclose(alone.guesses[0], found.truth[0], atol=1e-3)


def test_a_hidden_layer_gives_whole_batches_away(tmp_path: Path) -> None:
    model = fedloom.models.MLP(hidden=(64,))
    subject = small_runs.trained(
        tmp_path, fedloom.Ditto(), small_runs.clients(), rounds=1, model=model
    )
    found = invert(subject, 4, seed=0)
    assert found.cases[1].best > 60.0
    assert found.cases[0].psnr <= EXACT


def test_pictures_are_sought_by_the_direction_of_their_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inversion, "_STEPS", 120)
    draw = torch.Generator().manual_seed(0)
    # Two levels: what is dark on the left or on the right.
    y = torch.randint(0, 2, (24,), generator=draw)
    x = torch.rand(24, 1, 6, 6, generator=draw) * 0.1
    x[y == 0, :, :, :3] += 0.9
    x[y == 1, :, :, 3:] += 0.9
    federation = fedloom.federation(x, y, clients=np.arange(24) % 3)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(216, 2)
        )
    subject = small_runs.trained(
        tmp_path, fedloom.FedAvg(), federation, rounds=1, model=net
    )
    found = invert(subject, 1, seed=0)
    assert found.shape == (1, 6, 6)
    assert found.is_picture
    assert found.cases[0].how == "cosine"
    assert found.cases[0].psnr > found.guess + 3.0


def test_tokens_and_methods_without_a_shared_model_are_left_out(tmp_path: Path) -> None:
    subject = small_runs.trained(
        tmp_path, fedloom.Local(), small_runs.clients(), rounds=1
    )
    assert "no shared model" in str(refusal(subject))
