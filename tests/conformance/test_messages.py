"""Laws of what leaves a client: sending one more thing is always a reviewed decision.

`messages.json` has the fields, types, shapes and bytes of every message of every
method, in training and in an evaluation, what goes beside them whatever the method, and
which of the tensors that a client keeps it also sends, value for value.
When a change of a message is meant, write the file anew and review its diff:

    FEDLOOM_UPDATE_SNAPSHOTS=1 python -m pytest tests/conformance/test_messages.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor
from variants import (
    ALL,
    COUNT,
    PRIVATE,
    Recorder,
    advance,
    describe,
    one_round,
    over_methods,
    over_variants,
    over_variants_in_time,
    set_up,
)

from fedloom.algorithms import FedAvg
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.messages import (
    INSTRUCTION_BYTES,
    MODEL_INSTRUCTION_BYTES,
    TeamDownload,
    TeamUpload,
)
from fedloom.core.metrics import statistics
from fedloom.core.records import Empty, leaves, message_bytes, named, without_log
from fedloom.engine.weave import Weave
from fedloom.remote.codec import upload_ranges

SNAPSHOT = Path(__file__).with_name("messages.json")
UPDATES = os.environ.get("FEDLOOM_UPDATE_SNAPSHOTS") == "1"
BESIDE = "beside every method's own messages"
HOW = "If it is meant: FEDLOOM_UPDATE_SNAPSHOTS=1 pytest tests/conformance"


def stored() -> dict[str, Any]:
    known: dict[str, Any] = (
        json.loads(SNAPSHOT.read_text()) if SNAPSHOT.exists() else {}
    )
    return known


def store(known: dict[str, Any]) -> None:
    SNAPSHOT.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def messages(algorithm: AnyAlgorithm) -> dict[str, Any]:
    """Both messages of the second round in words, each for one client."""
    recorder = Recorder(Weave(COUNT))
    simulation = set_up(algorithm, recorder, dtype=torch.float32)
    advance(simulation, 2)
    task, teams = simulation.task, simulation.coordinator.population.team_count
    words = {task.d: "d", task.base_d: "base", task.d - task.base_d: "head"}
    words |= {simulation.federation.count: "clients", teams: "teams"}

    def spell(tensor: Tensor, has_row: bool) -> str:
        shape = tensor.shape[1:] if has_row else tensor.shape
        sizes = ", ".join(words.get(size, str(size)) for size in shape)
        return f"{str(tensor.dtype).removeprefix('torch.')} ({sizes})"

    def spell_all(record: Any, has_rows: list[bool]) -> dict[str, Any]:
        fields = {
            name: spell(tensor, has_row)
            for (name, tensor), has_row in zip(
                named(record).items(), has_rows, strict=True
            )
        }
        return {"fields": fields, "bytes": message_bytes(record, has_rows=has_rows)}

    _, down, _ = recorder.asked[-1]
    result = recorder.outcomes[-1].result
    kept, sent = result.memory, result.upload
    (request,) = simulation.coordinator.score_requests("test")
    models = {"shared": request.shared, "team": request.teams}
    sums_by_kind = simulation.fleet.score(request)
    asked = spell_all(request.download.record, request.download.has_rows)
    model_bytes = 0
    for title, thetas in models.items():
        if thetas is not None:
            asked["fields"][f"{title} model"] = "float32 (d)"
            model_bytes += task.d * 4
    asked["bytes"] += model_bytes + MODEL_INSTRUCTION_BYTES
    assert request.bytes_down == COUNT * asked["bytes"]
    return {
        "download": spell_all(down.record, down.has_rows),
        "upload": spell_all(sent, [True] * len(leaves(sent))),
        "evaluation down": asked,
        "evaluation up": {
            kind: {"bytes": message_bytes(sums)} for kind, sums in sums_by_kind.items()
        },
        "sent and kept": [
            name
            for name, mine in named(kept).items()
            if mine[0].numel() > 1
            and any(torch.equal(mine, one) for one in leaves(sent))
        ],
    }


@over_variants
def test_both_messages_equal_the_snapshot(algorithm: AnyAlgorithm) -> None:
    name, found = describe(algorithm), messages(algorithm)
    if UPDATES:
        store(stored() | {name: found})
    known = stored()
    assert name in known, f"{name} is not in {SNAPSHOT.name}. {HOW}"
    assert found == known[name], HOW


@over_methods
def test_whole_numbers_that_are_sent_say_which_ones_there_are(
    algorithm: AnyAlgorithm,
) -> None:
    fields = stored()[describe(algorithm)]["upload"]["fields"]
    numbers = {name for name, kind in fields.items() if kind.startswith("int")}
    assert numbers == upload_ranges(algorithm).keys()


def test_what_goes_beside_the_messages_equals_the_snapshot() -> None:
    """Whatever the method: enrolment, instructions, report and sums."""
    simulation = set_up(FedAvg(), Weave(COUNT), dtype=torch.float32)
    order = simulation.coordinator.next_order()
    (request,) = simulation.coordinator.score_requests("test")
    simulation.fleet.send(order)
    theta = simulation.task.start[None]
    beside = {
        "instruction (down)": order.instructions,
        "report (up)": simulation.fleet.receive().reports,
        "enrolment (up, once)": simulation.fleet.roster.enrolments,
        "model instruction (down)": request.instructions,
        "sums (up, for every kind of model)": simulation.fleet.score(request)["shared"],
        "team download (down to a team server)": TeamDownload(theta),
        "team upload (up from a team server)": TeamUpload(theta, theta[:, 0].double()),
    }
    words = {f"values.{n}": s.name for n, s in enumerate(statistics())}
    found = {
        title: {
            "bytes": message_bytes(record),
            "fields": {
                words.get(name, name): (
                    f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape[1:])}"
                )
                for name, t in named(record).items()
            },
        }
        for title, record in beside.items()
    }
    if UPDATES:
        store(stored() | {BESIDE: found})
    assert found == stored()[BESIDE], HOW
    assert found["instruction (down)"]["bytes"] == INSTRUCTION_BYTES
    assert found["model instruction (down)"]["bytes"] == MODEL_INSTRUCTION_BYTES


def test_the_snapshot_has_no_method_that_is_gone() -> None:
    names = {describe(algorithm) for algorithm in ALL + PRIVATE} | {BESIDE}
    if UPDATES:
        store({name: value for name, value in stored().items() if name in names})
    assert stored().keys() <= names, HOW


def declared(record: type) -> int:
    """How many tensors a record type declares, those of nested records included."""
    hints = get_type_hints(record)
    return sum(1 if hint is Tensor else declared(hint) for hint in hints.values())


@over_variants
def test_messages_and_memory_have_types_of_their_own(algorithm: AnyAlgorithm) -> None:
    server, memory, download, work, upload = algorithm.records
    kinds = [k for k in (server, memory, download, work, upload) if k is not Empty]
    assert len(set(kinds)) == len(kinds)
    assert all(issubclass(kind, tuple) for kind in kinds)


@over_variants_in_time
def test_an_upload_is_the_tensors_it_declares_and_no_more(
    algorithm: AnyAlgorithm,
) -> None:
    watch = one_round(algorithm)
    _, memory, download, work, upload = algorithm.records
    kept, sent = watch.results["finish"][-1]
    assert type(sent) is upload
    assert type(kept) is memory
    sent_down, _ = without_log(watch.results["download"][-1])
    assert type(sent_down) is download
    assert type(watch.results["begin"][-1]) is work
    assert len(leaves(sent)) == declared(upload)
    assert len(leaves(sent_down)) == declared(download)
