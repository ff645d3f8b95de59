"""A run whose clients are elsewhere: the server's half, and one client's."""

from fedloom.deploy.client import make_node, only_client, whole_dataset_as_client
from fedloom.deploy.server import serve

__all__ = ["make_node", "only_client", "serve", "whole_dataset_as_client"]
