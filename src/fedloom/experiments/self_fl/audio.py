"""The wake-word study of Self-FL: Tables 2, 4, 5 and 6 on a stand-in for its corpus.

    FEDLOOM_DATA=... fedloom reproduce self_fl/audio

The paper's corpus is private. Here the wake word is a spoken digit and the five types
of device are simulated (`wake-word`, which needs `fsdd/`), so the numbers cannot be the
paper's; the protocol can. A network is trained on pooled recordings of all types. From
it every method goes on with the clients' own recordings. A method's model is compared
with that start at equal false rejects: below 1 means fewer false accepts than before.

`self_fl/audio` is small, for two cores; `self_fl/audio-full` has the paper's 3e6
parameters and wants a GPU. Writes `audio.csv` and `audio.md` under DIR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedloom.algorithms import (
    Ditto,
    FedAvg,
    PerFedAvg,
    SelfFL,
    SelfFLAugmented,
    SelfFLCluster,
)
from fedloom.clients import BlockTeams, Federation, Natural, Sampling, Split, divide
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.data.devices import DEVICES, STATES
from fedloom.data.wake_word import WakeWord
from fedloom.engine.choice import EngineSettings
from fedloom.experiments.self_fl.audio_tables import Row, to_markdown
from fedloom.experiments.tables import write
from fedloom.models import AudioCNN
from fedloom.results.detection import match, threshold_at
from fedloom.runs import Result, run

REJECTS = 0.05
"""Share of the wake words, over all types in their normal state, that the start
rejects. It sets the start's threshold, and with it what every cell is compared at."""
BATCH, STEPS = 16, 20
"""Local work of a round, the same for all: Self-FL's own steps are capped here too.
Only Algorithm 2 does more, up to three epochs. The paper does not say what it used."""
ENGINE = EngineSettings(compile="off")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the study is."""

    width: int
    """Filters of the network's first stage."""
    bands: int
    hop_s: float
    copies: int
    """How often a training recording is played."""
    pretraining: int
    """Epochs on the pooled recordings."""
    rounds: int
    seeds: int
    lr: float = 0.01
    """Learning rate of every method, and of the pre-training with momentum."""


SMALL = Scale(
    width=6, bands=24, hop_s=0.032, copies=1, pretraining=10, rounds=5, seeds=1
)
FULL = Scale(
    width=52, bands=40, hop_s=0.016, copies=4, pretraining=20, rounds=20, seeds=3
)


class Arm(NamedTuple):
    """One run: a method, and how many take part."""

    method: AnyAlgorithm
    homes: int = 1
    """Clients of each type."""
    rate: float = 1.0


_PAPER: dict[str, Any] = {
    "most_steps": STEPS,
    "least_steps": 1,
    "stale_init": "correct",
    "target": "paper",
}
"""The step rule and the start as the paper has them."""
_SMOOTHED = SelfFL(smoothing="activity", **_PAPER)
ARMS = {
    "Self-FL": Arm(SelfFL(**_PAPER)),
    "Self-FL (Algorithm 2)": Arm(SelfFLAugmented(extra_epochs=3, **_PAPER)),
    "FedAvg-w": Arm(FedAvg(weights="size", tuning=1)),
    "FedAvg-e": Arm(FedAvg(weights="equal", tuning=1)),
    "PerFedAvg": Arm(PerFedAvg(weights="equal")),
    "DITTO-w": Arm(Ditto(weights="size")),
    "DITTO-e": Arm(Ditto(weights="equal")),
    "client-level, C = 0.25": Arm(_SMOOTHED, 4, 0.25),
    "client-level, C = 0.1": Arm(_SMOOTHED, 4, 0.1),
    "cluster-level": Arm(SelfFLCluster(clusters="teams", **_PAPER), 4, 0.25),
}
"""Every run of the tables. Under sampling the paper smooths by C."""


def study(scale: Scale, seed: int, data_dir: Path | None = None) -> Iterator[Row]:
    """Every method with one seed, from the same start."""
    source = WakeWord(bands=scale.bands, hop_s=scale.hop_s, copies=scale.copies)
    start = pretrain(scale, replace(source, part="pooled"), seed, data_dir)
    split, teams = Split(fixed=True), BlockTeams(teams=len(DEVICES))
    federations = {}
    for homes in {arm.homes for arm in ARMS.values()}:
        dataset = replace(source, clients=homes).load(data_dir, seed)
        federations[homes] = divide(dataset, Natural(), split, teams, seed=seed)
    for name, arm in ARMS.items():
        result = run(
            # The paper clips nothing.
            replace(arm.method, lr=scale.lr, batch_size=BATCH, steps=STEPS, clip=None),
            start,
            federations[arm.homes],
            rounds=scale.rounds,
            seed=seed,
            sampling=Sampling(rate=arm.rate),
            engine=ENGINE,
            evaluate_every=scale.rounds,
        )
        yield from compare(name, result, start, seed)


def pretrain(
    scale: Scale, pooled: WakeWord, seed: int, data_dir: Path | None
) -> nn.Module:
    """The start: SGD on the pooled recordings, which is FedAvg with one client."""
    dataset = pooled.load(data_dir, seed)
    alone = divide(dataset, Natural(), Split(test=0.1), seed=seed)
    result = run(
        FedAvg(lr=scale.lr, batch_size=BATCH, momentum=0.9, clip=None),
        lambda: AudioCNN(width=scale.width).build(dataset.input_shape, 2),
        alone,
        rounds=scale.pretraining,
        seed=seed,
        engine=ENGINE,
        evaluate_every=scale.pretraining,
    )
    start = result.shared_model()
    assert start is not None
    return start


def compare(name: str, result: Result, start: nn.Module, seed: int) -> Iterator[Row]:
    """A run's models against the start, for every type of device and state."""
    clients = result.federation
    data, shared = clients.dataset, result.shared_model()
    assert shared is not None
    test = np.sort(clients.test.indices)
    is_wake = data.targets.numpy()[test] == 1
    device, state = data.groups["device"][test], data.groups["state"][test]
    baseline = score(start, clients, test)
    is_normal = state == STATES[0]
    threshold = threshold_at(baseline[is_normal], is_wake[is_normal], REJECTS)
    by_model = {"shared": score(shared, clients, test), "personal": np.empty(len(test))}
    for client in range(clients.count):
        held = clients.test[client]
        own = score(result.model(client), clients, held)
        by_model["personal"][np.searchsorted(test, held)] = own
    for (model, scores), kind, doing in product(by_model.items(), DEVICES, STATES):
        cell = (device == kind) & (state == doing)
        if cell.any():
            pair = match(scores[cell], baseline[cell], is_wake[cell], threshold)
            yield Row(name, model, doing, kind, seed, *pair)


def score(
    model: nn.Module, clients: Federation, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """How much more a model believes in the wake word than in anything else."""
    data, device = clients.dataset, next(model.parameters()).device
    margins = []
    for some in torch.split(data.inputs[0][torch.from_numpy(rows)], 512):
        shift, scale = torch.as_tensor(data.shift), torch.as_tensor(data.scale)
        inputs = (some.to(device).float() - shift) / scale
        with torch.no_grad():
            outputs = model(inputs)
        margins.append((outputs[:, 1] - outputs[:, 0]).double().cpu())
    return torch.cat(margins).numpy()


def reproduce(out: Path, seed: int, scale: Scale = SMALL) -> str:
    """Run the study for every seed, write the rows and the tables."""
    seeds = range(seed, seed + scale.seeds)
    rows = [row for s in seeds for row in study(scale, s)]
    flat = (row.flat() for row in rows)
    return write(out, "audio", Row.columns(), flat, to_markdown(rows))


def reproduce_full(out: Path, seed: int) -> str:
    """The same with the paper's size of network."""
    return reproduce(out, seed, FULL)
