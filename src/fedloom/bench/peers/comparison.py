"""Who takes how long: repetitions that alternate between peers, and their ratios."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from fedloom.bench.engine import check_counts, check_names, device_name
from fedloom.bench.peers.environments import (
    PEERS,
    NotInstalled,
    Peer,
    default_folder,
    interpreter,
)
from fedloom.bench.peers.processes import Failed, Outcome, run_script
from fedloom.bench.peers.workloads import (
    WORKLOADS,
    Workload,
    check_rounds,
    write_workload,
)

OURS = "fedloom"
"""Whom ratios refer to."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One peer on one workload, once."""

    workload: str
    peer: str
    repeat: int
    """Number of the repetition, from 1."""
    outcome: Outcome | None
    """What came of it, if it could be done."""
    problem: str = ""
    """Why it could not be done, or in what it is not the same work."""
    is_same_work: bool = True
    """False if it was done, but is something else."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A number over repetitions."""

    middle: float
    """Median."""
    least: float
    most: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """The spread of some numbers, at least one."""
        return cls(middle=median(numbers), least=min(numbers), most=max(numbers))


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One peer on one workload, all repetitions together."""

    workload: str
    peer: str
    version: str = ""
    seconds: Spread | None = None
    """Of a round; None if it could not be timed."""
    ratio: Spread | None = None
    """Its seconds over Fedloom's of the same repetition."""
    first_startup_s: float | None = None
    """Start-up of the first repetition: nothing is compiled yet."""
    later_startup_s: float | None = None
    """Median start-up of the other repetitions."""
    memory_mib: float | None = None
    """Most memory of all processes together, over repetitions."""
    accuracy: Spread | None = None
    problem: str = ""


def measure(
    workloads: Sequence[str] = (),
    peers: Sequence[str] = (),
    *,
    rounds: int | None = None,
    repeats: int = 3,
    device: str = "cpu",
    processes: int = 2,
    environments: Path | None = None,
    data_dir: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Time peers on workloads.

    Args:
        workloads: some of `WORKLOADS`; all by default.
        peers: some of `PEERS`; all that can run on the device by default. Fedloom is
            always among them.
        rounds: rounds of every workload; by default what each says.
        repeats: how often everybody does everything.
        device: cpu or cuda.
        processes: how many processes, or threads, a peer may keep busy on a CPU.
        environments: where the environments of peers are kept.
        data_dir: where the files of datasets lie.
        say: told what is being done.

    Raises:
        ConfigError: A name is unknown, or there are too few rounds or repetitions.
    """
    check_names("workload", workloads, WORKLOADS)
    check_names("peer", peers, PEERS)
    check_counts(repeats=repeats, processes=processes)
    if rounds is not None:
        check_rounds(rounds)
    chosen = [
        peer
        for name, peer in PEERS.items()
        if name == OURS
        or name in peers
        or (not peers and (device != "cpu" or not peer.needs_gpu))
    ]
    pythons: dict[str, Path] = {}
    reasons: dict[str, str] = {}
    for peer in chosen:
        say(f"{peer.name}: looking for its environment")
        try:
            pythons[peer.name] = interpreter(peer, environments or default_folder())
        except NotInstalled as error:
            reasons[peer.name] = f"not installed: {error}"
    for name in workloads or WORKLOADS:
        workload = WORKLOADS[name]
        with tempfile.TemporaryDirectory(prefix="fedloom-peers-") as scratch:
            folder = Path(scratch, "workload")
            gradients = write_workload(
                workload,
                folder,
                rounds=workload.rounds if rounds is None else rounds,
                device=device,
                processes=processes,
                data_dir=data_dir,
            )
            count = workload.rounds if rounds is None else rounds
            check = WorkCheck(workload, gradients, count)
            for repeat in range(1, repeats + 1):
                for peer in chosen:
                    row = Row(
                        workload=name,
                        peer=peer.name,
                        repeat=repeat,
                        outcome=None,
                        problem=reasons.get(peer.name, ""),
                    )
                    if peer.name in pythons:
                        row = _run(row, peer, pythons[peer.name], folder, check)
                        if row.outcome is None:
                            # What failed once is not tried again.
                            reasons[peer.name] = row.problem
                            del pythons[peer.name]
                    yield row


class WorkCheck:
    """Finds those who did other work than everybody.

    Args:
        workload: what was to be done.
        gradients: samples that enter a gradient in all rounds together.
        rounds: how many.
    """

    def __init__(self, workload: Workload, gradients: int, rounds: int) -> None:
        self._gradients, self._tolerance = gradients, workload.tolerance
        scored = workload.clients * workload.test * rounds
        self._scored = scored if workload.scores_clients else 0
        self._accuracy: float | None = None

    def problem(self, outcome: Outcome) -> str:
        """In what an outcome is not the same work; empty if it is.

        Accuracies are held against that of the first who did the same work.
        """
        for what, found, expected in (
            ("samples that entered a gradient", outcome.gradients, self._gradients),
            ("test samples scored for clients", outcome.scored, self._scored),
        ):
            if found != expected:
                return f"{what}: expected {expected}, found {found}"
        if self._accuracy is None:
            self._accuracy = outcome.accuracy
        if abs(outcome.accuracy - self._accuracy) > self._tolerance:
            return (
                f"accuracy: expected {self._accuracy:.3f} within {self._tolerance:g}, "
                f"found {outcome.accuracy:.3f}"
            )
        return ""


def _run(row: Row, peer: Peer, python: Path, folder: Path, check: WorkCheck) -> Row:
    """The row with what came of it."""
    scratch = folder.parent
    variables = {
        # Empty at first and kept for the later repetitions: cold, then warm.
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "compiled" / peer.name),
    }
    result = scratch / f"{peer.name}-{row.repeat}.json"
    outcome: Outcome | None = None
    try:
        outcome = run_script(python, peer.script, folder, result, variables=variables)
        problem = check.problem(outcome)
    except Failed as error:
        problem = f"failed: {error}"
    return Row(
        workload=row.workload,
        peer=row.peer,
        repeat=row.repeat,
        outcome=outcome,
        problem=problem,
        is_same_work=outcome is None or not problem,
    )


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """One summary for each workload and peer, in the order of the rows."""
    summaries = []
    for workload, peer in dict.fromkeys((row.workload, row.peer) for row in rows):
        own = [row for row in rows if (row.workload, row.peer) == (workload, peer)]
        done = {r.repeat: r.outcome for r in own if r.outcome and r.is_same_work}
        problem = next((row.problem for row in own if row.problem), "")
        if not done:
            summaries.append(Summary(workload=workload, peer=peer, problem=problem))
            continue
        ours = {
            row.repeat: row.outcome.seconds
            for row in rows
            if (row.workload, row.peer) == (workload, OURS) and row.outcome
        }
        ratios = [o.seconds / ours[n] for n, o in done.items() if n in ours]
        sizes = [o.memory_mib for o in done.values() if o.memory_mib is not None]
        later = [o.startup_s for n, o in done.items() if n > 1]
        summaries.append(
            Summary(
                workload=workload,
                peer=peer,
                version=next(iter(done.values())).version,
                seconds=Spread.of([o.seconds for o in done.values()]),
                ratio=Spread.of(ratios) if ratios else None,
                first_startup_s=done[1].startup_s if 1 in done else None,
                later_startup_s=median(later) if later else None,
                memory_mib=max(sizes) if sizes else None,
                accuracy=Spread.of([o.accuracy for o in done.values()]),
                problem=problem,
            )
        )
    return summaries


def to_json(rows: Sequence[Row], device: str, processes: int) -> str:
    """Rows, what they amount to, and where they were measured."""
    document = {
        "device": device_name(torch.device(device)),
        "cores": os.cpu_count(),
        "processes": processes,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "summaries": [asdict(summary) for summary in summarise(rows)],
        "rows": [asdict(row) for row in rows],
    }
    return json.dumps(document, indent=2) + "\n"
