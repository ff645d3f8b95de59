"""Flower's SuperNode, whose processes for messages begin with Flower imported.

Flower starts a program for every message, which imports Flower first: more than a
second of one core each time. Here each is a copy of a process that has done so already;
it ends when its message is answered, as Flower's does.

This module stands outside of the package, whose import takes seconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supernode.cli import flower_supernode
from flwr.supernode.runtime.run_clientapp import run_clientapp

import fedloom_flower_client  # noqa: F401 (so that every copy has it)

_POLL_S = "0.25"
"""Time between two looks for a message at the SuperNode, on the same machine."""


class CopyExecutor(SubprocessExecutor):
    """Answers each message in a copy of this process."""

    def __init__(self) -> None:
        self._copies: set[int] = set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start to answer a message; what is none starts as Flower starts it."""
        if spec.task_type != TaskType.CLIENT_APP:
            return super().launch(spec)
        copy = os.fork()
        if not copy:
            _answer(spec)
        self._copies.add(copy)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Forget the copies that have ended."""
        self._copies -= {c for c in self._copies if os.waitpid(c, os.WNOHANG)[0]}


def _answer(spec: ExecutionSpec) -> None:
    """Answer a message, and end this process."""
    code: Any = 1
    try:
        # How the process ends that this is a copy of is not the copy's business.
        exit_handler.registered_exit_handlers.clear()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        run_clientapp(
            runtime_api_address=spec.runtime_api_address,
            token=spec.token,
            insecure=spec.insecure,
            parent_pid=spec.parent_pid,
        )
    except SystemExit as error:
        code = error.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    """Run the SuperNode, with the arguments of `flower-supernode`."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--port", required=True)
    port = parser.parse_known_args()[0].port
    supernode = os.getpid()
    if os.fork():
        sys.argv += ["--isolation", "process"]  # which is the one below
        flower_supernode()
        return
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", _POLL_S)
    replaced: Any = run_superexec
    replaced.get_executor = lambda *_, **__: CopyExecutor()
    run_superexec.run_superexec(
        runtime_api_address=f"127.0.0.1:{port}", insecure=True, parent_pid=supernode
    )


if __name__ == "__main__":
    main()
