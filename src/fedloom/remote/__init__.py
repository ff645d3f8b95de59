"""Clients elsewhere: what crosses as checked bytes, and each client's own home."""

from fedloom.core.policy import Policy
from fedloom.remote.channel import Channel, InProcessChannel
from fedloom.remote.enrolment import Enrolled, enrol
from fedloom.remote.fleet import RemoteFleet, greeting_for
from fedloom.remote.node import Node
from fedloom.remote.wire import Header, WireMessage

__all__ = [
    "Channel",
    "Enrolled",
    "Header",
    "InProcessChannel",
    "Node",
    "Policy",
    "RemoteFleet",
    "WireMessage",
    "enrol",
    "greeting_for",
]
