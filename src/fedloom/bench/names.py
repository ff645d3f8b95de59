"""What the benchmarks can be asked for, by name: known before PyTorch is loaded."""

ENGINE_MODES = ("plain", "loop", "weave", "weave-compiled", "native")
METHOD_MODES = ("loop", "weave", "weave-compiled", "native")
SCALE_METHODS = ("fedavg", "self-fl", "ditto")
FEWEST = 10_000
"""Clients of the run that the others of `bench scale` are compared with, unless there
are fewer."""
PEERS = ("fedloom", "loop", "pfl", "flower", "blazefl", "fluke", "jax")
WORKLOADS = ("W1", "W2", "W3", "W4", "W5")
