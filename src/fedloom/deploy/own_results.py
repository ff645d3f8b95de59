"""What a client has of a run that is over: its model, and a report of its own.

All of it is made at home from what is kept there, and nothing of it is sent:

    RUN/model/        as `fedloom export` writes it
    RUN/report.md     scores on own data, the gain over training alone, what was sent
    RUN/report.html   the same as a page
    RUN/results.json  the same in few words, or why there are none; written last
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.algorithms import Local
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.describe import record_fields
from fedloom.core.digests import read_checked_json, write_checked_json
from fedloom.core.errors import FedloomError, NumericalError
from fedloom.core.messages import (
    CohortDownload,
    Enrolment,
    Order,
    Report,
    ScoreRequest,
)
from fedloom.core.records import Empty
from fedloom.core.sums import bounds
from fedloom.export import export
from fedloom.export.alone import alone_for, rounds_for
from fedloom.export.exported_model import (
    ExportedModel,
    RunInfo,
    Score,
    module_of,
    scores_of,
)
from fedloom.fleet.local import LocalFleet
from fedloom.remote import Node
from fedloom.remote.codec import Moments
from fedloom.remote.home import Answer, Home
from fedloom.reports.own_report import OwnReport, OwnScore, Sent, sums_of
from fedloom.results.scores import Scores
from fedloom.results.statistics import Estimate, improvement, over_seeds

_FORMAT = "fedloom-client-results-1"


@dataclass(frozen=True)
class OwnResults:
    """Where a client finds what it has of a run."""

    run: str
    sentence: str
    """What it gained, or why there are no results."""
    exit_code: int
    """0 if there are results; else that of the error."""
    request: str
    """Digest of what the model was made with."""


def write_own_results(node: Node, run: str, settings: Mapping[str, Any]) -> OwnResults:
    """Make a client's model and report from its home, once for every state of them.

    Args:
        node: the client.
        run: id of a run that it took part in.
        settings: of the run, as tables; without [model] if the module is one's own.

    Raises:
        DataError: The server has not had its model scored yet, or a file cannot be
            written.
        ConfigError: Files of an earlier model were changed since.
        MessageError: What is kept at home was damaged.
        NumericalError: The run ended because its numbers were no longer finite.
    """
    end = node.home.end_of(run)
    clients, why = end if end is not None else (0, "")
    last = node.home.last_request(run)
    request = last.content_digest if last is not None else ""
    before = read_own_results(node.home, run)
    if before is not None and before.request == request and not before.exit_code:
        return before
    if why:
        raise NumericalError(f"the run {run} is over without a model: {why}")
    fleet, requests = node.at_hand(run)
    report, scores = _report(node, run, fleet, requests, clients)
    number = int(fleet.numbers[0])
    model = ExportedModel(
        kind="personal",
        client=node.name,
        number=number,
        samples=int(node.federation.sizes[0]),
        module=module_of(fleet.task, fleet.personal(requests[0])[0]),
        scores=scores,
        remarks=[report.sentence()],
    )
    info = RunInfo(
        task=fleet.task,
        algorithm=node.algorithm,
        federation=fleet.federation,
        clients=clients,
        seed=fleet.seed,
        round=requests[0].round,
        config=settings,
        manifest={},
    )
    folder = node.home.path / run
    export(info, [model], folder / "model", fresh=True)
    report.write(folder)
    results = OwnResults(run, report.sentence(), 0, request)
    _write(node.home, results)
    return results


def write_failure(home: Home, run: str, error: FedloomError) -> None:
    """Say at home why there are no results."""
    _write(home, OwnResults(run, str(error), error.exit_code, ""))


def read_own_results(home: Home, run: str) -> OwnResults | None:
    """What `write_own_results` came to last; None if there is nothing yet.

    Raises:
        MessageError: The file was damaged.
    """
    file = _file(home, run)
    if not file.is_file():
        return None
    keys = ("sentence", "exit_code", "request")
    table = read_checked_json(file, "a client's results", keys, format_=_FORMAT)
    return OwnResults(run, *(table[key] for key in keys))


def _write(home: Home, results: OwnResults) -> None:
    table = {
        "format": _FORMAT,
        "sentence": results.sentence,
        "exit_code": results.exit_code,
        "request": results.request,
    }
    write_checked_json(_file(home, results.run), table)


def _file(home: Home, run: str) -> Path:
    return home.path / run / "results.json"


def _report(
    node: Node,
    run: str,
    fleet: LocalFleet,
    requests: list[ScoreRequest],
    clients: int,
) -> tuple[OwnReport, list[Score]]:
    metric = fleet.task.metric
    answers = node.home.answers(run)
    scores = [
        score for request in requests for score in scores_of(_scores(fleet, request), 0)
    ]
    test = next((r for r in requests if r.part == "test"), None)
    tested = int(node.federation.test.sizes[0]) if test is not None else 0
    outcomes = fleet.outcomes(test) if test is not None and tested else None
    work = _work(answers) + (int(outcomes.work[0]) if outcomes is not None else 0)
    local = alone_for(node.algorithm)
    sizes = fleet.federation.sizes
    rounds = int(rounds_for(local, sizes, np.array([work]))[0])
    own = [_own_score(score) for score in scores]
    gain: Estimate | None = None
    if outcomes is not None:
        try:
            alone, request = train_alone(fleet, local, rounds)
        except NumericalError:
            pass  # the report says so
        else:
            (made,) = scores_of(_scores(alone, request), 0)
            own.append(_own_score(made, kind="alone"))
            gaps = (outcomes.values - alone.outcomes(request).values).numpy()
            gain = over_seeds(improvement(gaps, metric))
    report = OwnReport(
        name=node.name,
        run=run,
        method=node.algorithm.name,
        metric=metric,
        clients=clients,
        rounds=requests[0].round,
        trained=int(sizes[0]),
        tested=tested,
        work=work,
        alone_rounds=rounds,
        scores=own,
        gain=gain,
        sent=sums_of(_sent(answers, node.algorithm)),
    )
    return report, scores


def train_alone(
    fleet: LocalFleet, local: Local, rounds: int
) -> tuple[LocalFleet, ScoreRequest]:
    """Train the one client of a fleet alone, as `Result.gain` of a simulation does.

    Args:
        fleet: the client in the federation.
        local: how it trains alone.
        rounds: for how long.

    Returns:
        The client as it stands then, and what asks it for its model on test data.

    Raises:
        NumericalError: Its numbers stopped being finite.
    """
    alone = LocalFleet(
        local,
        fleet.task,
        fleet.federation,
        fleet.runner,
        seed=fleet.seed,
        numbers=fleet.numbers,
    )
    nothing = CohortDownload.of(Empty())
    clients = fleet.numbers
    uploads = torch.ones_like(clients, dtype=torch.bool)
    for number in range(rounds):
        taken = torch.full_like(clients, number - 1)
        alone.send(Order(number, 0, number, clients, nothing, uploads, taken))
        alone.receive()
    return alone, ScoreRequest(
        round=rounds,
        clients=clients,
        taken=torch.full_like(clients, rounds - 1),
        download=nothing,
        part="test",
        shared=None,
        teams=None,
    )


def _scores(fleet: LocalFleet, request: ScoreRequest) -> list[Scores]:
    return [
        Scores.from_sums(kind, request.part, fleet.task.metric, sums)
        for kind, sums in fleet.score(request).items()
    ]


def _own_score(score: Score, kind: str | None = None) -> OwnScore:
    return OwnScore(
        kind=kind if kind is not None else score.kind,
        part=score.part,
        samples=score.samples,
        numbers=dict(score.numbers),
    )


def _work(answers: list[Answer]) -> int:
    """Gradient-samples of every exchange; what was done again counts once."""
    done = {a.number: a.gradients for a in answers if a.kind == "trained"}
    return sum(done.values())


def _sent(answers: list[Answer], algorithm: AnyAlgorithm) -> Iterator[Sent]:
    """Every field of every message that left."""
    meanings, secure = _meanings(algorithm), _secure_meanings(algorithm)
    for answer in answers:
        if answer.kind == "scored":
            yield from _sent_scores(answer)
            continue
        for name, size in answer.fields.items():
            meaning = secure.get((answer.kind, name)) or meanings.get(name, "")
            yield Sent(
                message=_MESSAGES.get(answer.kind, answer.kind),
                field=name,
                meaning=meaning.replace("`", ""),
                times=1,
                bytes=size,
            )
        if answer.kind == "refused":
            yield Sent(
                message=_MESSAGES["refused"],
                field="text",
                meaning="Why what the server asked for was not done.",
                times=1,
                bytes=len(answer.text.encode()),
            )


def _sent_scores(answer: Answer) -> Iterator[Sent]:
    sizes: dict[tuple[str, str], int] = {}
    for name, size in answer.fields.items():
        part, kind = name.split(".")[:2]
        sizes[part, kind] = sizes.get((part, kind), 0) + size
    for (part, kind), size in sizes.items():
        yield Sent(
            message=_MESSAGES["scored"],
            field=f"{part}.{kind}",
            meaning=f"Sums over all {part} samples that scores of the {kind} model "
            "follow from, such as how many it got right; with two classes, and "
            "--log-odds alone, also how many samples of each have which log-odds.",
            times=1,
            bytes=size,
        )


_MESSAGES = {
    "enrolled": "at the start",
    "trained": "after local training",
    "shared": "in a secure sum, 1: shares of keys",
    "masked": "in a secure sum, 2: the summand under masks",
    "agreed": "in a secure sum, 3: who is in the total",
    "opened": "in a secure sum, 4: opening the total",
    "scored": "for a score",
    "refused": "instead, refused",
}
"""When each kind of message is sent."""


def _meanings(algorithm: AnyAlgorithm) -> dict[str, str]:
    """By field, its documentation."""
    records: dict[str, type] = {
        "enrolment": Enrolment,
        "inputs": Moments,
        "targets": Moments,
        "report": Report,
        "upload": algorithm.records[4],
    }
    meanings = {
        f"{part}.{name}": _one_line(text or inspect.getdoc(record) or "")
        for part, record in records.items()
        for name, text in record_fields(record)
    }
    return meanings | {
        "proof.token": "Number that follows from the secret in this client's folder; "
        "it shows the server that whoever comes back is who enrolled.",
        "what a sample is like": "Types and shapes of the columns, names of features "
        "and classes; no sample.",
    }


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _secure_meanings(algorithm: AnyAlgorithm) -> dict[tuple[str, str], str]:
    """By kind of message and field, what a secure sum sends."""
    return {
        ("trained", "secure.keys"): "Public keys for one secure sum, and a signature "
        "by this client's key. They show the server and the other clients who takes "
        "part, and nothing of its samples.",
        ("trained", "secure.opened"): "Whether this client has helped to open the "
        "total of this exchange before, when the server was started again.",
        ("shared", "secure.clients"): "For whom the shares are: numbers of clients.",
        ("shared", "secure.rows"): "Shares of two secrets of this one sum, sealed for "
        "each of the other clients. The server passes them on and cannot read them.",
        ("masked", "secure.masked"): "What this client adds to the total, as whole "
        "numbers under masks that only the total of enough clients is without. "
        f"{_masked(algorithm)}",
        ("agreed", "secure.signature"): "Signature under the list of who is in the "
        "total and who dropped out, so that the server cannot give clients different "
        "lists.",
        ("opened", "secure.clients"): "Whose shares follow: numbers of clients.",
        ("opened", "secure.rows"): "For each client that is in the total, a share of "
        "its own mask; for each that dropped out, a share of the key of its masks with "
        "others, and never both for one client. Enough of them take the masks off the "
        "total.",
    }


def _masked(algorithm: AnyAlgorithm) -> str:
    """What lies under the masks of a secure sum, field by field."""
    if algorithm.needs not in ("sums", "sums per team"):
        return ""  # it has no secure sums
    record = algorithm.summand_record
    kinds = {name: _KINDS[bound.kind] for name, bound in bounds(record).items()}
    fields = "; ".join(
        f"{name}: {kinds[name]}{', ' * bool(text)}{_one_line(text)}".rstrip(".")
        for name, text in record_fields(record)
    )
    return f"{_one_line(inspect.getdoc(record) or '')} Its fields: {fields}."


_KINDS = {
    "vector": "a change of parameters, times this client's weight",
    "share": "numbers from 0 to 1 that follow from its samples",
    "weight": "how much it counts, 1 or by its number of training samples",
    "square": "the squared length of its change, times its weight",
}
"""What a field of a summand is, by how it is bounded."""
