"""A page on this machine only, which follows runs while they go on."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from fedloom.core.errors import ConfigError, FedloomError
from fedloom.reports.collect import collect
from fedloom.reports.findings import work_out
from fedloom.reports.page import asset, page
from fedloom.reports.runs import KIND, arm_of, find_runs
from fedloom.results.scores import ERRORS

HOST = "127.0.0.1"
"""Nobody else can reach it."""

_PATIENCE_S = 120.0
"""A run that has not written for so long, and for some rounds' time, was stopped."""

_PLACES = 400
"""Most places of a curve that is sent."""

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@dataclass
class Tail:
    """The whole lines of a growing file; a line that is still being written waits."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    _offset: int = 0
    _inode: int = -1

    def read(self) -> list[dict[str, Any]]:
        """All rows so far. A file that was replaced or shortened is read anew."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._offset:
                    self.rows, self._offset, self._inode = [], 0, found.st_ino
                file.seek(self._offset)
                text = file.read()
        except OSError:
            return self.rows
        whole = text[: text.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                self.rows.append(json.loads(line))
            except ValueError:
                continue  # cut short by a crash; the run that went on wrote it again
        self._offset += len(whole)
        return self.rows


class Watch:
    """What there is to see below some directories, as of now.

    Args:
        paths: comparisons, run directories, or folders that hold such.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._tails: dict[Path, Tail] = {}
        self._lock = Lock()

    def state(self) -> dict[str, Any]:
        """Every run with how far it is and its curves, ready for JSON."""
        with self._lock:
            runs = []
            for path in dict.fromkeys(d for p in self.paths for d in find_runs(p)):
                run = self._run(path)
                if run is not None:
                    runs.append(run)
        return {"time": time.time(), "runs": runs}

    def report(self) -> str:
        """The report of what there is so far."""
        return page(work_out(collect(self.paths)))

    def _run(self, path: Path) -> dict[str, Any] | None:
        try:
            manifest = json.loads((path / "manifest.json").read_text())
            planned = _planned(path / "config.toml")
            metric, seed = str(manifest["metric"]), int(manifest["seed"])
            algorithm = str(manifest["algorithm"])
            written = (path / "rounds.jsonl").stat().st_mtime
        except FileNotFoundError:
            return None  # the first row is not there yet
        except (OSError, ValueError, KeyError):
            return None  # being written, or not a run
        rows = self._tails.setdefault(path, Tail(path / "rounds.jsonl")).read()
        if not rows:
            return None
        last = rows[-1]
        pace = _pace(rows)
        return {
            "path": str(path),
            "method": arm_of(path) or algorithm,
            "seed": seed,
            "dataset": str(manifest["dataset"]),
            "metric": metric,
            "is_error": metric in ERRORS,
            "round": last["round"],
            "planned": planned,
            "state": _state(path, last["round"], planned, written, pace),
            "seconds_left": pace * max(planned - last["round"], 0),
            "train_loss": _finite(last.get("train_loss")),
            "curves": _curves(rows, metric),
        }


def _planned(path: Path) -> int:
    """`rounds` of a config, which is written whole before the manifest."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "rounds":
            return int(value)
    return 0


def _pace(rows: list[dict[str, Any]]) -> float:
    """Seconds of training that a round takes, by the last ten."""
    seconds = [float(row.get("seconds", 0.0)) for row in rows if row["round"] > 0][-10:]
    return sum(seconds) / len(seconds) if seconds else 0.0


def _state(path: Path, done: int, planned: int, written: float, pace: float) -> str:
    if (path / "failure.json").is_file():
        return "failed"
    if done >= planned:
        return "finished"
    quiet = time.time() - written
    return "going on" if quiet < max(_PATIENCE_S, 5 * pace) else "stopped"


def _curves(rows: list[dict[str, Any]], metric: str) -> dict[str, list[list[float]]]:
    """Curves by name: every kind and part of the metric, and the training loss."""
    found: dict[str, list[list[float]]] = {}
    for row in rows:
        for kind, parts in row.get("scores", {}).items():
            for part, numbers in parts.items():
                value = _finite(numbers.get(metric))
                if value is not None:
                    name = f"{kind} {part} {metric}"
                    found.setdefault(name, []).append([row["round"], value])
        loss = _finite(row.get("train_loss"))
        if loss is not None:
            found.setdefault("training loss", []).append([row["round"], loss])
    first = f"{KIND} test {metric}"
    order = sorted(
        found, key=lambda name: (name != first, name == "training loss", name)
    )
    return {name: _thin(found[name]) for name in order}


def _thin(places: list[list[float]]) -> list[list[float]]:
    if len(places) <= _PLACES:
        return places
    stride = math.ceil(len(places) / _PLACES)
    kept = places[::stride]
    return kept if kept[-1] == places[-1] else [*kept, places[-1]]


def _finite(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else None


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
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"view: cannot listen on port {port} ({error}). Leave --port away to "
                "get a free one."
            ) from error

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

    def do_GET(self) -> None:
        # A name that leads here by a foreign DNS answer must not open the door.
        if self.headers.get("Host", "") not in self.server.hosts:
            self._send("Only for this machine.", "text/plain", HTTPStatus.FORBIDDEN)
            return
        try:
            if self.path == "/":
                self._send(_live_page(), "text/html")
            elif self.path == "/state":
                text = json.dumps(self.server.watch.state(), allow_nan=False)
                self._send(text, "application/json")
            elif self.path == "/report":
                self._send(self.server.watch.report(), "text/html")
            else:
                self._send("Nothing here.", "text/plain", HTTPStatus.NOT_FOUND)
        except FedloomError as error:
            self._send(str(error), "text/plain", HTTPStatus.CONFLICT)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the reader went away

    def _send(self, text: str, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of every request."""


def _live_page() -> str:
    text = asset("live.html")
    return text.replace("/*style*/", asset("page.css") + asset("live.css")).replace(
        "/*script*/", asset("live.js")
    )
