"""Run directories with numbers of our own choosing, written by the real writers."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import fedloom
from fedloom.results.directory import RunDirectory
from fedloom.results.outcomes import Outcomes, RunOutcomes
from fedloom.results.rows import Round
from fedloom.results.scores import Scores

SAMPLES = 20


def clients(
    names: list[str],
    seed: int,
    *,
    is_same: bool,
    metric: str = "accuracy",
    group_size: int = 0,
    in_time: bool = False,
) -> fedloom.Federation:
    """Forty samples each, held by the same client in every seed or dealt anew."""
    count = 40 * len(names)
    x = np.zeros((count, 1), dtype=np.float32)
    y: Any = np.arange(count) % 3
    if metric == "mse":
        y = y.astype(np.float32) + 0.5
    who = np.repeat(np.array(names), 40)
    if not is_same:
        who = np.random.default_rng(seed).permutation(who)
    numbers = np.arange(count)
    return fedloom.federation(
        x,
        y,
        clients=who,
        test=0.5,
        seed=seed,
        groups=numbers // group_size if group_size else None,
        time=numbers if in_time else None,
    )


def scores(
    values: ArrayLike, part: str, kind: str = "personal", metric: str = "accuracy"
) -> Scores:
    score = np.asarray(values, dtype=float)
    error = np.abs(1 - score)
    numbers = {"loss": error, metric: score}
    if metric == "accuracy":
        numbers |= {"nll": error, "brier": error / 2, "ece": error / 4}
    return Scores(
        kind=kind,
        part=part,
        metric=metric,
        samples=np.where(np.isfinite(score), SAMPLES, 0),
        values=numbers,
    )


def write_run(
    path: Path,
    test: ArrayLike,
    validation: ArrayLike | None = None,
    *,
    algorithm: str = "ditto",
    seed: int = 0,
    names: list[str] | None = None,
    metric: str = "accuracy",
    planned: int | None = None,
    failure: str | None = None,
    settings: dict[str, Any] | None = None,
    is_same: bool = True,
    steps: int = 6,
    has_arrays: bool = False,
    has_test: bool = True,
    split: str | None = None,
    outcomes: bool = False,
    group_size: int = 0,
    in_time: bool = False,
) -> Path:
    """A run whose client scores are `test[round][client]`.

    With `outcomes`, the first samples of every client are the right ones, as many as
    its score says. With a `group_size`, so many consecutive samples are a group.
    """
    test_scores = np.asarray(test, dtype=float)
    rounds, count = test_scores.shape
    names = names or [f"c{n}" for n in range(count)]
    federation = clients(
        names,
        seed,
        is_same=is_same,
        metric=metric,
        group_size=group_size,
        in_time=in_time,
    )
    order = [names.index(name) for name in federation.names]
    path.mkdir(parents=True)
    directory = RunDirectory(path)
    lines = [f"rounds = {rounds - 1 if planned is None else planned}", f"seed = {seed}"]
    lines += ["[algorithm]", f'name = "{algorithm}"', "lr = 0.1"]
    lines += [f"{key} = {json.dumps(v)}" for key, v in (settings or {}).items()]
    config = "\n".join(lines) + "\n"
    directory.write_text(directory.config, config)
    federation.save(directory.split)
    directory.write_manifest(
        {
            "fedloom": "0.1.0",
            "algorithm": algorithm,
            "dataset": 'made <up> & "quoted"',
            "clients": count,
            "parameters": 1234,
            "metric": metric,
            "seed": seed,
            "device": "cpu",
            "split": split or federation.hash,
            "is_own": False,
            "torch": "2.0",
            "threads": 1,
            "config": tomllib.loads(config),
            "records": {"moved": "How far the client went; <b> & co."},
        }
    )
    for number in range(rounds):
        own = test_scores[number][order]
        parts = [scores(own, "test", metric=metric)] if has_test else []
        if validation is not None:
            own = np.asarray(validation, dtype=float)[number][order]
            parts.insert(0, scores(own, "validation", metric=metric))
        directory.rows.append_scores(number, federation.names, parts)
        summary = {s.part: s.summary(federation.sizes) for s in parts}
        if number:
            _write_log(directory, number, count, has_arrays=has_arrays)
        directory.rows.append(
            Round(
                round=number,
                participants=count if number else 0,
                train_loss=1.0 / (number + 1) if number else None,
                steps=steps * count if number else 0,
                bytes_down=100 * count if number and algorithm != "local" else 0,
                bytes_up=50 * count if number and algorithm != "local" else 0,
                seconds=0.25 if number else 0.0,
                server_log={"between": 0.5 / number} if number else {},
                scores={"personal": summary},
            )
        )
    if outcomes:
        own = outcomes_of(federation, test_scores[-1][order])
        directory.write_outcomes(rounds - 1, RunOutcomes({"test": own}))
    if failure is not None:
        directory.write_failure(failure, rounds - 1, 0)
    return path


def outcomes_of(federation: fedloom.Federation, shares: ArrayLike) -> Outcomes:
    """Test samples of every client, of which a share is right, those of low number."""
    rows = [np.sort(federation.test[n]) for n in range(len(federation.names))]
    right = [
        (np.arange(len(own)) < round(share * len(own))).astype(float)
        for own, share in zip(rows, np.asarray(shares, dtype=float), strict=True)
    ]
    clients = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
    return Outcomes(
        np.concatenate(rows), clients.astype(np.int32), np.concatenate(right)
    )


def _write_log(
    directory: RunDirectory, number: int, count: int, *, has_arrays: bool
) -> None:
    who = np.arange(count)
    columns = {
        "round": np.full(count, number, dtype=np.int32),
        "client": who.astype(np.int32),
        "train_loss": 1.0 / (number + who + 1),
        "steps": np.full(count, 6),
        "moved": np.where(who == 0, np.nan, who * 0.5),
    }
    directory.rows.append_client_log(columns)
    if has_arrays:
        weights = np.eye(count) * 0.5 + 0.5 / count
        directory.rows.append_arrays(number, 0, {"weights": weights, "clients": who})


def write_comparison(
    path: Path,
    methods: dict[str, list[list[list[float]]]],
    *,
    validation: dict[str, list[list[list[float]]]] | None = None,
    **options: Any,
) -> Path:
    """A comparison with `methods[name][seed][round][client]`."""
    path.mkdir(parents=True)
    seeds = range(len(next(iter(methods.values()))))
    lines = [f"seeds = {list(seeds)}"]
    for name, by_seed in methods.items():
        algorithm = "local" if name.startswith("local") else "ditto"
        lines += [f'[methods."{name}"]', f'name = "{algorithm}"']
        for seed, test in enumerate(by_seed):
            write_run(
                path / name / f"seed-{seed}",
                test,
                validation[name][seed] if validation is not None else None,
                algorithm=algorithm,
                seed=seed,
                **options,
            )
    (path / "compare.toml").write_text("\n".join(lines) + "\n")
    return path


def steady(*last: list[float], rounds: int = 2) -> list[list[list[float]]]:
    """Runs, one per seed, whose clients are at 0.1 until the last round."""
    return [[[0.1] * len(row)] * (rounds - 1) + [row] for row in last]
