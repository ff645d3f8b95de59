"""A page on this machine only, which follows runs while they go on."""

from __future__ import annotations

import json
import math
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Timer
from typing import Any

from fedloom.core.errors import ConfigError, FedloomError
from fedloom.reports.collect import collect
from fedloom.reports.findings import work_out
from fedloom.reports.markup import content_policy, render
from fedloom.reports.page import ASSETS, page
from fedloom.reports.runs import KIND, Run, run_of
from fedloom.results.reader import RunReader, arm_of, find_runs, thin
from fedloom.results.statistics import is_error

HOST = "127.0.0.1"
"""Nobody else can reach it."""

_PATIENCE_S = 120.0
"""A run that has not written for so long, and for some rounds' time, was stopped."""

_LONGEST_S = 1e9
"""A round that took longer than 30 years is a damaged row."""

_PLACES = 400
"""Most places of a curve that is sent."""

_ASSETS = ("page.css", "live.css", "charts.js", "page.js", "live.js")
"""The style sheets and scripts of all pages here."""

_TIMEOUT_S = 30.0
"""A reader who has not asked, or not taken what it asked for, by then is cut off."""


class Watch:
    """What there is to see below some directories, as of now.

    Args:
        paths: comparisons, run directories, or folders that hold such.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._readers: dict[Path, RunReader] = {}
        self._lock = Lock()

    def state(self) -> dict[str, Any]:
        """Every run with how far it is and its curves, ready for JSON."""
        with self._lock:
            paths = dict.fromkeys(d for p in self.paths for d in find_runs(p))
            runs: list[dict[str, Any]] = []
            problems: list[str] = []
            for path in paths:
                try:
                    runs += self._run(path)
                except (FedloomError, OSError) as error:
                    problems.append(str(error))
        return {"time": time.time(), "runs": runs, "problems": problems}

    def report(self) -> str:
        """The report of what there is so far."""
        return page(work_out(collect(self.paths)))

    def _run(self, path: Path) -> list[dict[str, Any]]:
        reader = self._readers.setdefault(path, RunReader(path))
        run = run_of(reader, arm_of(path))
        if not run.rounds:
            return []  # the first row is not there yet
        written, pace = reader.last_written(), _pace(run)
        about = {
            "path": str(path),
            "method": run.method,
            "seed": run.seed,
            "dataset": str(run.manifest["dataset"]),
            "metric": run.metric,
            "is_error": is_error(run.metric),
            "round": run.reached,
            "planned": run.planned,
            "state": _state(run, written, pace),
            "seconds_left": pace * max(run.planned - run.reached, 0),
            "train_loss": _finite(run.rounds[-1].train_loss),
            "curves": _curves(run),
        }
        return [about]


def _pace(run: Run) -> float:
    """Seconds of training that a round takes, by the last ten."""
    seconds = [row.seconds for row in run.rounds if row.round > 0][-10:]
    pace = sum(seconds) / len(seconds) if seconds else 0.0
    return pace if 0 <= pace < _LONGEST_S else 0.0


def _state(run: Run, written: float, pace: float) -> str:
    if run.state != "unfinished":
        return run.state
    is_quiet = time.time() - written >= max(_PATIENCE_S, 5 * pace)
    return "stopped" if is_quiet else "going on"


def _curves(run: Run) -> dict[str, list[tuple[int, float]]]:
    """Curves by name: every kind and part of the metric, and the training loss."""
    loss_name, first = "training loss", f"{KIND} test {run.metric}"
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in run.rounds:
        values = {
            f"{kind} {part} {run.metric}": numbers.get(run.metric)
            for kind, parts in row.scores.items()
            for part, numbers in parts.items()
        }
        for name, value in (values | {loss_name: row.train_loss}).items():
            finite = _finite(value)
            if finite is not None:
                curves[name].append((row.round, finite))
    order = sorted(curves, key=lambda name: (name != first, name == loss_name, name))
    return {name: thin(curves[name], _PLACES) for name in order}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


class Server(ThreadingHTTPServer):
    """Serves one `Watch` on the loopback address.

    Args:
        watch: what to show.
        port: 0 picks a free one.

    Raises:
        ConfigError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, watch: Watch, port: int = 0) -> None:
        self.watch = watch
        policy = content_policy(*_ASSETS)
        self.policy = f"{policy}; connect-src 'self'; frame-ancestors 'none'"
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"view: cannot listen on port {port} ({error}). Leave --port away to "
                "get a free one."
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a reader who went away; anything else is a fault of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"

    @property
    def hosts(self) -> frozenset[str]:
        """What a browser on this machine calls us; a page elsewhere says otherwise."""
        return frozenset(
            {f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"}
        )


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "fedloom", ""
    timeout = _TIMEOUT_S

    def setup(self) -> None:
        super().setup()
        # Bytes that trickle in would each begin the time anew.
        self._patience = Timer(_TIMEOUT_S, self._hang_up)
        self._patience.daemon = True
        self._patience.start()

    def finish(self) -> None:
        self._patience.cancel()
        super().finish()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._patience.cancel()
        # A name that leads here by a foreign DNS answer must not open the door.
        if self.headers.get("Host", "") not in self.server.hosts:
            self._send("Only for this machine.", "text/plain", HTTPStatus.FORBIDDEN)
            return
        watch = self.server.watch
        try:
            if self.path == "/":
                self._send(render("live.html"), "text/html")
            elif self.path == "/state":
                text = json.dumps(watch.state(), allow_nan=False)
                self._send(text, "application/json")
            elif self.path == "/report":
                self._send(watch.report(), "text/html")
            else:
                self._send("Nothing here.", "text/plain", HTTPStatus.NOT_FOUND)
        except FedloomError as error:
            self._send(str(error), "text/plain", HTTPStatus.CONFLICT)

    def _send(self, text: str, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = text.encode()
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of every request."""
