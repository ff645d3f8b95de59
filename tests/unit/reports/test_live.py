"""The live view's server: what it tells, to whom, and of half-written files."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from made_runs import steady, write_comparison, write_run

from fedloom.core.errors import ConfigError
from fedloom.reports import live
from fedloom.reports import watch as watching
from fedloom.reports.live import Server
from fedloom.reports.units import NOTHING
from fedloom.reports.watch import Watch
from fedloom.results.directory import RunDirectory


def ask(server: Server, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    write_comparison(tmp_path / "c", {"local": steady([0.5]), "a": steady([0.7])})
    with Server(Watch([tmp_path])) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_runs_are_listed_with_their_curves(server: Server) -> None:
    status, text = ask(server, "/state")
    assert status == 200
    runs = json.loads(text)["runs"]
    assert [(run["method"], run["state"]) for run in runs] == [
        ("a", "finished"),
        ("local", "finished"),
    ]
    assert runs[0]["curves"]["personal test accuracy"] == [[0, 0.1], [1, 0.7]]
    assert next(iter(runs[0]["curves"])) == "personal test accuracy"


def test_pages_are_served_and_nothing_else(server: Server, tmp_path: Path) -> None:
    status, text = ask(server, "/")
    assert (status, text.startswith("<!doctype html>")) == (200, True)
    assert "--accent" in text
    assert "fetch(" in text
    assert "{{" not in text
    status, text = ask(server, "/report")
    assert status == 200
    assert "Not shown: a is 20.0 points ahead of training alone" in text
    for path in ("/c/compare.toml", "/../../etc/passwd", "/state?x", "/favicon.ico"):
        assert ask(server, path)[0] == 404


def test_other_hosts_are_refused(server: Server) -> None:
    for host in (
        "evil.example",
        "evil.example:80",
        f"0.0.0.0:{server.server_port}",
        "",
    ):
        status, text = ask(server, "/state", Host=host)
        assert status == 403
        assert "runs" not in text
    assert ask(server, "/state", Host=f"localhost:{server.server_port}")[0] == 200
    assert server.server_address[0] == "127.0.0.1"


def test_a_report_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with Server(Watch([tmp_path / "empty"])) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        assert json.loads(ask(server, "/state")[1])["runs"] == []
        status, text = ask(server, "/report")
        server.shutdown()
        thread.join()
    assert status == 409
    assert "no run there" in text


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with (
        Server(Watch([tmp_path])) as server,
        pytest.raises(ConfigError, match="cannot listen"),
    ):
        Server(Watch([tmp_path]), server.server_port)


def test_a_run_is_going_on_stopped_or_failed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [[0.1], [0.5]], planned=9)
    watch = Watch([tmp_path])
    run = watch.state()["runs"][0]
    assert (run["state"], run["round"], run["planned"]) == ("going on", 1, 9)
    assert run["seconds_left"] == pytest.approx(8 * 0.25)
    long_ago = time.time() - 3600
    os.utime(path / "rounds.jsonl", (long_ago, long_ago))
    assert watch.state()["runs"][0]["state"] == "stopped"
    RunDirectory(path).write_failure("x", 1, 0)
    assert watch.state()["runs"][0]["state"] == "failed"


def test_time_left_of_all_runs_is_measured_while_they_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four rounds in ten seconds; another run, as long, has not begun."""
    path = tmp_path / "c"
    path.mkdir()
    text = 'seeds = [0, 1]\n[methods.a]\nname = "ditto"\n'
    (path / "compare.toml").write_text(text)
    run = write_run(path / "a" / "seed-0", [[0.1], [0.5]], planned=4)
    began, rows = time.time(), run / "rounds.jsonl"
    watch = Watch([path])
    first = watch.state()["totals"]
    assert first["states"] == {"going on": 1, "not begun": 1}
    assert (first["runs"], first["rounds"], first["planned"]) == (2, 1, 8)
    assert first["seconds_left"] is None
    last = json.loads(rows.read_text().splitlines()[-1])
    with rows.open("a") as file:
        file.write(json.dumps(last | {"round": 2}) + "\n")
    monkeypatch.setattr(watching.time, "time", lambda: began + 10)
    state = watch.state()
    # A round takes 10 s: two are left of this run, four of the other.
    assert state["totals"]["seconds_left"] == pytest.approx(60, abs=3)
    assert state["runs"][0]["seconds_left"] == pytest.approx(20, abs=1)


def test_only_settings_that_differ_between_runs_are_listed(tmp_path: Path) -> None:
    for name, pull in (("a", 0.5), ("b", 2.0)):
        write_run(tmp_path / name, [[0.1], [0.5]], settings={"pull": pull})
    write_run(tmp_path / "c", [[0.1], [0.5]], seed=1, settings={"pull": 2.0, "odd": 1})
    settings = Watch([tmp_path]).state()["settings"]
    listed = {row[0]: row[1:] for row in settings["rows"]}
    assert "seed" not in listed
    assert "algorithm.lr" not in listed
    assert set(listed["algorithm.pull"]) == {"0.5", "2.0"}
    assert [line[1] for line in settings["own"]] == ["algorithm.odd = 1"]


def test_numbers_that_json_cannot_say_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[0.1], [0.5]])
    rows = tmp_path / "a" / "rounds.jsonl"
    lines = rows.read_text().splitlines()
    row = json.loads(lines[1])
    row["train_loss"] = float("nan")
    row["scores"]["personal"]["test"]["accuracy"] = float("inf")
    rows.write_text(lines[0] + "\n" + json.dumps(row) + "\n")
    state = Watch([tmp_path]).state()
    json.dumps(state, allow_nan=False)
    assert state["runs"][0]["train_loss"] == NOTHING
    assert len(state["runs"][0]["curves"]["personal test accuracy"]) == 1


def test_a_reader_that_goes_away_leaves_no_traceback(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    reset = struct.pack("ii", 1, 0)  # closing sends a reset
    for request in (b"", b"GET /sta", b"GET /report HTTP/1.0\r\n\r\n"):
        with socket.create_connection(server.server_address) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            reader.sendall(request)
    assert ask(server, "/state")[0] == 200
    time.sleep(0.2)
    assert capfd.readouterr().err == ""


def test_silent_and_slow_readers_are_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(live._Handler, "timeout", 0.2)
    began = time.monotonic()
    with socket.create_connection(server.server_address, timeout=10) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection(server.server_address, timeout=0.03) as slow:
        is_open = True
        while is_open:  # a letter is never late, the request is
            slow.sendall(b"G")
            with suppress(TimeoutError):
                is_open = slow.recv(1) != b""
    assert time.monotonic() - began < 8
    assert ask(server, "/state")[0] == 200
