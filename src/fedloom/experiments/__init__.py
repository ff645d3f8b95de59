"""Experiments: the papers' tables and figures as files, and studies as functions."""

from __future__ import annotations

from collections.abc import Callable

from fedloom.experiments import audited, digits, private, robust
from fedloom.experiments.pfedvem import fmnist
from fedloom.experiments.self_fl import audio, gaussian
from fedloom.experiments.worlds import study

EXPERIMENTS: dict[str, Callable[..., str]] = {
    "digits": digits.reproduce,
    "pfedvem/fmnist": fmnist.reproduce,
    "pfedvem/fmnist-rates": fmnist.search,
    "private/audit": audited.reproduce,
    "private/cifar10": private.reproduce_cifar10,
    "private/heart": private.reproduce_heart,
    "private/letters": private.reproduce_letters,
    "robust": robust.reproduce,
    "self_fl/audio": audio.reproduce,
    "self_fl/audio-full": audio.reproduce_full,
    "self_fl/gaussian": gaussian.reproduce,
    "worlds": study.reproduce,
    "worlds-in-groups": study.reproduce_groups,
}
"""Studies that are functions, by name: `(folder, seed) -> the table in words`.
Some take `jobs` too, processes that share the work."""
