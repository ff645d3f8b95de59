"""The clients, wherever they are: in this process, in others, on other machines."""

from fedloom.fleet.faults import Faults, FaultyFleet
from fedloom.fleet.local import LocalFleet
from fedloom.fleet.protocol import Fleet
from fedloom.fleet.ray import RayFleet
from fedloom.fleet.sharded import ShardedFleet
from fedloom.fleet.worker import WorkerFleet

__all__ = [
    "Faults",
    "FaultyFleet",
    "Fleet",
    "LocalFleet",
    "RayFleet",
    "ShardedFleet",
    "WorkerFleet",
]
