"""Peers beside Fedloom, without any of them installed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.bench.peers import comparison, environments, processes
from fedloom.bench.peers.comparison import Row, WorkCheck, measure, summarise
from fedloom.bench.peers.environments import SCRIPTS, NotInstalled, Peer, interpreter
from fedloom.bench.peers.processes import Failed, Outcome, run_script
from fedloom.bench.peers.workloads import WORKLOADS, Workload, write_workload
from fedloom.commands.bench import bench_peers
from fedloom.core.errors import ConfigError, ContractError
from fedloom.data import SOURCES, Dataset

TINY = Workload(
    name="tiny", about="a small one", data="stripes", clients=8, cohort=4,
    classes=5, rounds=4, test=20, scores_clients=True, tolerance=0.1,
)  # fmt: skip
PYTHON = Path(sys.executable)

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="memory is told by Linux only"
)


class Stripes:
    """Ten classes of images, each with a bright row of its own."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        draw = np.random.default_rng(seed)
        labels = np.arange(800) % 10
        images = draw.integers(0, 60, (800, 1, 28, 28), dtype=np.uint8)
        images[np.arange(800), 0, 2 * labels + 3] += 150
        return Dataset(
            name="stripes",
            inputs=(torch.from_numpy(images),),
            targets=torch.from_numpy(labels),
            classes=10,
            scale=255.0,
            fixed_test=np.arange(800) >= 600,
        )


@pytest.fixture(autouse=True)
def stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "stripes", Stripes)
    monkeypatch.setitem(WORKLOADS, "tiny", TINY)


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for scripts of peers that are made up, in place of the real ones."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    monkeypatch.setattr(environments, "SCRIPTS", folder)
    return folder


def write_fake(folder: Path, name: str, seconds: float, **claims: object) -> None:
    """A script that says what it is told to, after rounds of some length."""
    (folder / f"run_{name}.py").write_text(
        "import json, sys, time\n"
        "started = time.time()\n"
        f"ends = [started + 1 + n * {seconds} for n in range(4)]\n"
        f"claims = {claims!r}\n"
        "folder, result = sys.argv[1:]\n"
        "record = dict(version='1', round_ends=ends, client_accuracy=0.5, **claims)\n"
        "open(result, 'w').write(json.dumps(record))\n"
    )


def outcome(**changes: object) -> Outcome:
    start = Outcome(
        version="1", seconds=1.0, each_s=(1.0, 1.0), startup_s=2.0, memory_mib=100.0,
        accuracy=0.7,
        client_accuracy=0.7, gradients=300, scored=640,
    )  # fmt: skip
    return replace(start, **changes)


def row(peer: str, repeat: int, seconds: float, **changes: object) -> Row:
    done = outcome(seconds=seconds, startup_s=10.0 / repeat, **changes)
    return Row(workload="W1", peer=peer, repeat=repeat, outcome=done)


def arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(folder / name) as stored:
        return dict(stored)


def test_a_workload_is_the_same_whenever_it_is_written(tmp_path):
    counts = [write_workload(TINY, tmp_path / name, rounds=4) for name in "ab"]
    assert counts[0] == counts[1] > 0
    for file in ("clients.npz", "start.npz"):
        first, second = (arrays(tmp_path / name, file) for name in "ab")
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[key], second[key]) for key in first)


def test_clients_have_five_labels_unequal_sizes_and_tests_of_their_own_labels(tmp_path):
    gradients = write_workload(TINY, tmp_path / "w", rounds=4)
    clients = arrays(tmp_path / "w", "clients.npz")
    labels = np.load(tmp_path / "w" / "labels.npy")
    train = np.split(clients["train"], clients["train_ends"][:-1])
    test = np.split(clients["test"], clients["test_ends"][:-1])
    assert len(train) == len(test) == 8
    for own, tests in zip(train, test, strict=True):
        assert len(np.unique(labels[own])) == 5
        assert len(tests) == 20
        assert set(labels[tests]) <= set(labels[own])
        assert own.max() < 600 <= tests.min()
    sizes = np.array([len(own) for own in train])
    assert sizes.sum() == 600
    assert sizes.max() > 1.5 * sizes.min()
    assert clients["cohorts"].shape == (4, 4)
    assert gradients == sizes[clients["cohorts"]].sum()


def test_too_few_rounds_to_time_one_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="rounds must be at least 3, found 2"):
        write_workload(TINY, tmp_path / "w", rounds=2)


def test_ratios_are_those_of_the_same_repetition(tmp_path):
    rows = [
        *(row("fedloom", 1, 1.0), row("slow", 1, 4.0)),
        *(row("fedloom", 2, 2.0), row("slow", 2, 6.0, memory_mib=150.0)),
    ]
    ours, slow = summarise(rows)
    assert ours.ratio is not None
    assert (ours.ratio.least, ours.ratio.most) == (1.0, 1.0)
    assert slow.ratio is not None
    assert (slow.ratio.least, slow.ratio.middle, slow.ratio.most) == (3.0, 3.5, 4.0)
    assert (slow.first_startup_s, slow.later_startup_s) == (10.0, 5.0)
    assert slow.memory_mib == 150.0


def test_other_work_has_no_ratio():
    other = replace(
        row("cheat", 1, 0.1), problem="samples: found less", is_same_work=False
    )
    _, cheat = summarise([row("fedloom", 1, 1.0), other])
    assert cheat.ratio is None
    assert cheat.seconds is None
    assert cheat.problem == "samples: found less"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"gradients": 290}, "entered a gradient: expected 300, found 290"),
        ({"scored": 0}, "scored for clients: expected 640, found 0"),
        ({"accuracy": 0.55}, "accuracy: expected 0.700 within 0.1, found 0.550"),
    ],
)
def test_the_check_names_what_differs(changes, said):
    check = WorkCheck(TINY, gradients=300, rounds=4)
    assert check.problem(outcome()) == ""
    assert said in check.problem(outcome(**changes))
    assert bool(check.problem(outcome(**changes))) == bool(said)


def test_a_peer_that_does_other_work_is_caught(tmp_path, fakes, monkeypatch):
    gradients = write_workload(TINY, tmp_path / "w", rounds=4)
    right = {"gradients": gradients, "scored": 640, "accuracy": 0.7}
    write_fake(fakes, "fedloom", 0.2, **right)
    write_fake(fakes, "cheat", 0.1, **(right | {"gradients": gradients - 10}))
    peers = {name: Peer(name=name, about="") for name in ("fedloom", "cheat")}
    monkeypatch.setattr(comparison, "PEERS", peers)
    rows = list(measure(["tiny"], repeats=2))
    order = [(row.peer, row.repeat) for row in rows]
    assert order == [("fedloom", 1), ("cheat", 1), ("fedloom", 2), ("cheat", 2)]
    assert [row.is_same_work for row in rows] == [True, False, True, False]
    assert rows[0].outcome is not None
    assert rows[0].outcome.seconds == pytest.approx(0.2, abs=1e-3)
    assert rows[0].outcome.each_s == pytest.approx((0.2, 0.2), abs=1e-3)
    with pytest.raises(ContractError, match="cheat on tiny, samples that entered a gr"):
        bench_peers(workloads="tiny", repeats=1, to=tmp_path / "rows.json")
    document = json.loads((tmp_path / "rows.json").read_text())
    assert [r["peer"] for r in document["rows"]] == ["fedloom", "cheat"]


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_reported_and_the_others_go_on(
    tmp_path, fakes, monkeypatch
):
    gradients = write_workload(TINY, tmp_path / "w", rounds=4)
    write_fake(fakes, "fedloom", 0.2, gradients=gradients, scored=640, accuracy=0.7)
    absent = Peer(
        name="absent", about="", installs=(("--no-index", "fedloom-no-such-peer"),)
    )
    with pytest.raises(NotInstalled, match="No matching distribution"):
        interpreter(absent, tmp_path / "environments")
    peers = {"fedloom": Peer(name="fedloom", about=""), "absent": absent}
    monkeypatch.setattr(comparison, "PEERS", peers)
    rows = list(measure(["tiny"], repeats=1, environments=tmp_path / "environments"))
    assert rows[0].outcome is not None
    assert rows[1].outcome is None
    assert rows[1].problem.startswith("not installed: ERROR: No matching distribution")
    assert rows[1].is_same_work


def test_a_script_that_fails_is_told_by_its_last_line(tmp_path):
    script = tmp_path / "run_broken.py"
    script.write_text("raise RuntimeError('the peer is broken')\n")
    with pytest.raises(Failed, match="RuntimeError: the peer is broken"):
        run_script(PYTHON, script, tmp_path, tmp_path / "result.json")


@needs_proc
def test_a_script_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    script = tmp_path / "run_endless.py"
    script.write_text(
        "import subprocess, sys, time\n"
        "wait = 'import time; time.sleep(600)'\n"
        "command = [sys.executable, '-c', wait]\n"
        "child = subprocess.Popen(command, start_new_session=True)\n"
        "open('child', 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(Failed, match="not done after 2 s"):
        run_script(PYTHON, script, tmp_path, tmp_path / "r.json", timeout_s=2.0)
    child = Path("/proc", (tmp_path / "child").read_text(), "stat")
    # It is killed; when it is gone, the system decides.
    assert any(_is_gone(child) or time.sleep(0.1) for _ in range(100))


def _is_gone(stat: Path) -> bool:
    try:
        return "Z" in stat.read_text().split()[2]
    except OSError:
        return True


@needs_proc
def test_memory_of_the_children_is_counted(monkeypatch):
    monkeypatch.setattr(processes, "_EVERY_S", 0.05)
    hold = "import time; kept = bytearray(b'x' * 2**27); time.sleep(1.5)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    watch = processes.MemoryWatch("mark-of-a-test")
    environment = {"FEDLOOM_BENCH_MARK": "mark-of-a-test"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    watch.stop()
    assert watch.peak_mib is not None
    assert 128 < watch.peak_mib < 300


@pytest.mark.slow
def test_the_tuned_loop_and_fedloom_do_the_same_work(tmp_path):
    learning = replace(TINY, lr=0.05)
    gradients = write_workload(learning, tmp_path / "w", rounds=8)
    check = WorkCheck(learning, gradients, rounds=8)
    for name in ("loop", "fedloom"):
        script, result = SCRIPTS / f"run_{name}.py", tmp_path / f"{name}.json"
        done = run_script(PYTHON, script, tmp_path / "w", result)
        assert check.problem(done) == ""
        assert done.accuracy > 0.5
        assert done.client_accuracy == pytest.approx(done.accuracy, abs=0.1)


def test_the_tuned_loop_learns_and_says_how_much_it_did(tmp_path):
    learning = replace(TINY, lr=0.05)
    gradients = write_workload(learning, tmp_path / "w", rounds=8)
    done = run_script(
        PYTHON, SCRIPTS / "run_loop.py", tmp_path / "w", tmp_path / "r.json"
    )
    assert WorkCheck(learning, gradients, rounds=8).problem(done) == ""
    assert done.accuracy > 0.5
    assert done.startup_s > 0
