"""Rules that hold against clients who lie, and the attacks that try them."""

from fedloom.robust.attack import Attack
from fedloom.robust.method import around, refuse_with_privacy
from fedloom.robust.settings import Robust

__all__ = ["Attack", "Robust", "around", "refuse_with_privacy"]
