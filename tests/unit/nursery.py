"""Runs in processes that may be killed, without the cost of importing each time.

One process imports everything and then forks a child for every run. A child can be told
to kill itself just before its n-th change to a file, or to halt after a round.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
            # A forked child must not miss the threads of its parent.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def order(self, what: str, out: Path, **more: Any) -> dict[str, Any]:
        """Have a child run, resume or compare.

        Args:
            what: run, resume or compare.
            out: the directory.
            more: `tables`; `kill_at`, the number of a change to a file, from 0;
                `halt_at`, a round.

        Returns:
            `pid`, `status` (done, killed, halted, failed) and `changes`, how many
            changes a child that was done made to files.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"what": what, "out": str(out), **more}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


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


class _Halt:
    def __init__(self, round_: int) -> None:
        self._round = round_

    def start(self, *_: Any) -> None:
        pass

    def round(self, row: Any) -> None:
        if row.round == self._round:
            os.kill(os.getpid(), signal.SIGSTOP)


def _work(order: dict[str, Any]) -> int:
    from fedloom.comparison import compare, load_comparison, parse_comparison
    from fedloom.config import parse
    from fedloom.runs import resume, run_config

    out = Path(order["out"])
    changes = _Changes(order["out"], order.get("kill_at"))
    sys.addaudithook(changes)
    progress = _Halt(order["halt_at"]) if "halt_at" in order else None
    if order["what"] == "run":
        run_config(parse(order["tables"]), out=out, progress=progress)
    elif order["what"] == "resume":
        resume(out)
    elif "tables" in order:
        compare(parse_comparison(order["tables"]), out, jobs=1)
    else:
        compare(load_comparison(out), out, jobs=1)
    return changes.count


def _fork(order: dict[str, Any]) -> dict[str, Any]:
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(tell, str(_work(order)).encode())
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(tell)
    _, status = os.waitpid(pid, os.WUNTRACED)
    answer: dict[str, Any] = {"pid": pid}
    if os.WIFSTOPPED(status):
        answer["status"] = "halted"
    elif os.WIFSIGNALED(status):
        answer["status"] = "killed"
    else:
        answer["status"] = "failed" if os.WEXITSTATUS(status) else "done"
        answer["changes"] = int(os.read(told, 20) or 0)
    os.close(told)
    return answer


if __name__ == "__main__":
    import fedloom.comparison
    from fedloom.config import parse

    # Planning a run imports what importing Fedloom alone does not.
    fedloom.comparison.make_plan(*fedloom.comparison.make_clients(parse({})))
    for line in sys.stdin:
        print(json.dumps(_fork(json.loads(line))), flush=True)
