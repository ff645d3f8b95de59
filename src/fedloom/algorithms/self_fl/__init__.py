"""Self-FL: the method, its augmented and cluster-level variants, their mathematics."""

from __future__ import annotations

from fedloom.algorithms.self_fl.augmented import SelfFLAugmented
from fedloom.algorithms.self_fl.cluster import SelfFLCluster
from fedloom.algorithms.self_fl.self_fl import SelfFL

__all__ = ["SelfFL", "SelfFLAugmented", "SelfFLCluster"]
