"""Runs in processes that may be killed, without the cost of importing each time.

One process imports everything and then forks a child for every run. A child can be told
to kill itself just before its n-th change to a file.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Nursery:
    """The tests' end: gives orders and hears what became of the child."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A forked child must not miss the threads of its parent.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def order(self, what: str, out: Path, **more: Any) -> dict[str, Any]:
        """Have a child run, resume or compare.

        Args:
            what: run, resume or compare.
            out: the directory.
            more: `tables`; `kill_at`, the number of a change to a file, from 0;
                `kill_after`, a number of seconds.

        Returns:
            `status` (done, killed, failed), `seconds`, and `changes`, how many changes
            a child that was done made to files.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"what": what, "out": str(out), **more}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it, and a child that hangs with it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


class _Changes:
    """Counts changes to files below a folder, and ends the process before one."""

    def __init__(self, folder: str, kill_at: int | None) -> None:
        self.folder, self.kill_at, self.count = folder, kill_at, 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            writes = event in _CHANGES
        if not writes or not str(arguments[0]).startswith(self.folder):
            return
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


def _work(order: dict[str, Any]) -> int:
    from fedloom.comparison import load_comparison, parse_comparison, run_comparison
    from fedloom.config import parse
    from fedloom.runs import resume, run_config

    out = Path(order["out"])
    changes = _Changes(order["out"], order.get("kill_at"))
    sys.addaudithook(changes)
    if order["what"] == "run":
        run_config(parse(order["tables"]), out=out)
    elif order["what"] == "resume":
        resume(out)
    elif "tables" in order:
        run_comparison(parse_comparison(order["tables"]), out, jobs=1)
    else:
        run_comparison(load_comparison(out), out, jobs=1)
    return changes.count


def _fork(order: dict[str, Any]) -> dict[str, Any]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(write_end, str(_work(order)).encode())
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write_end)
    began = time.monotonic()
    deadline = began + order.get("kill_after", math.inf)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            deadline = math.inf
        time.sleep(0.0005)
    answer: dict[str, Any] = {"changes": int(os.read(read_end, 20) or 0)}
    answer["seconds"] = time.monotonic() - began
    os.close(read_end)
    if os.WIFSIGNALED(status):
        answer["status"] = "killed"
    else:
        answer["status"] = "failed" if os.WEXITSTATUS(status) else "done"
    return answer


if __name__ == "__main__":
    import fedloom.comparison  # noqa: F401
    from fedloom.config import parse
    from fedloom.plan import make_clients, make_plan

    # Planning a run imports what importing Fedloom alone does not.
    make_plan(*make_clients(parse({})))
    for line in sys.stdin:
        print(json.dumps(_fork(json.loads(line))), flush=True)
