"""Fedloom beside its peers: the same workloads through everybody's public interface.

Every peer trains in a process, and in an environment, of its own (`environments`), by
a script in `scripts`, which is no part of the package: it runs where Fedloom is not
installed. Repetitions alternate between peers, so that all meet the same machine.
"""
