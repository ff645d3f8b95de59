"""What crosses between the server and its clients: all of it, each with a type.

A method declares its own two messages, `Download` and `Upload`. Beside them there are
the enrolment of a client, its report on the local work, what it is asked for an
evaluation and the sums that it answers with (`fedloom.core.measures.Sums`). Nothing
else leaves a client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core.records import client_dims, leaves, message_bytes, rebuild, take

PARTS = ("train", "validation", "test")
"""The parts of a client's data that models are scored on; of the training data, at most
`fedloom.fleet.local.TRAIN_SCORED` samples of each client."""

HELD_OUT = ("validation", "test")
"""Those that no model was trained on."""

NOT_TOLD = -1
"""In the place of a number of samples that a client keeps to itself."""


class Enrolment(NamedTuple):
    """Client to server, once: all that the server knows of it beforehand."""

    samples: Tensor
    """Number of training samples; -1 if it is not told: it then counts as one of
    equals."""
    team: Tensor
    """Number of its team, from 0."""
    validation: Tensor
    """Number of validation samples; -1 if it is not told."""
    test: Tensor
    """Number of test samples; -1 if it is not told."""


class Report(NamedTuple):
    """Client to server, beside every upload: how the local work went."""

    loss: Tensor
    """Mean training loss that the gradient steps met."""
    steps: Tensor
    """Number of gradient steps."""
    gradients: Tensor
    """Number of samples that entered a gradient, each as often as it did: the unit of
    work."""


class TeamDownload(NamedTuple):
    """Global server to team server, when a round begins."""

    shared: Tensor
    """(d,) the shared model."""


class TeamUpload(NamedTuple):
    """Team server to global server, when the round of the team is over."""

    model: Tensor
    """(d,) the team's model. What its clients sent stays in the team."""
    share: Tensor
    """Share of the team's training samples that took part in the round, from 0 to 1;
    float64."""


@dataclass(frozen=True, eq=False)
class Roster:
    """The clients as enrolled, in the order of their numbers."""

    names: tuple[str, ...]
    enrolments: Enrolment
    """(M,) each."""

    @property
    def count(self) -> int:
        """M, the number of clients."""
        return len(self.names)

    def sizes(self, dtype: torch.dtype) -> Tensor:
        """(M,) training samples; who did not tell counts as the mean of who did."""
        samples = self.enrolments.samples.to(dtype)
        is_told = samples != NOT_TOLD
        mean = samples[is_told].mean() if bool(is_told.any()) else samples.new_ones(())
        return torch.where(is_told, samples, mean)

    def has(self, part: str) -> bool:
        """Whether anybody may have samples of a part."""
        column = "samples" if part == "train" else part
        return bool((getattr(self.enrolments, column) != 0).any())

    def with_client(self, name: str, enrolment: Enrolment) -> Roster:
        """The same clients and one more."""
        return Roster(
            (*self.names, name),
            Enrolment(
                *(
                    torch.cat([column, value[None].to(column)])
                    for column, value in zip(self.enrolments, enrolment, strict=True)
                )
            ),
        )


@dataclass(frozen=True, eq=False)
class CohortDownload:
    """A download as the server made it: some fields for all, some with a row each."""

    record: Any
    has_rows: list[bool]
    """For each tensor, whether it has one row per client."""

    @classmethod
    def of(cls, record: Any) -> CohortDownload:
        """Read off the record's type which fields have rows."""
        return cls(record, [dims > 0 for dims in client_dims(record)])

    @property
    def in_dims(self) -> list[int | None]:
        """For each tensor, the dimension that counts clients, as `vmap` takes it."""
        return [0 if has_row else None for has_row in self.has_rows]

    @property
    def bytes(self) -> int:
        """What one client receives."""
        return message_bytes(self.record, has_rows=self.has_rows)

    @property
    def row_bytes(self) -> int:
        """The part of it that is the client's own."""
        rows = zip(leaves(self.record), self.has_rows, strict=True)
        return message_bytes([leaf for leaf, has_row in rows if has_row])

    @classmethod
    def joined(
        cls, parts: Sequence[CohortDownload], counts: Sequence[int]
    ) -> CohortDownload:
        """The downloads of several runs one after another, each with a row per client.

        Args:
            parts: the downloads, of one type.
            counts: how many clients each is for.
        """
        columns: list[list[Tensor]] = [[] for _ in parts[0].has_rows]
        for part, count in zip(parts, counts, strict=True):
            flags = zip(leaves(part.record), part.has_rows, strict=True)
            for column, (leaf, has_row) in zip(columns, flags, strict=True):
                column.append(leaf if has_row else leaf.expand(count, *leaf.shape))
        record = rebuild(parts[0].record, [torch.cat(column) for column in columns])
        return cls(record, [True] * len(columns))

    def take(self, index: Any) -> CohortDownload:
        """The same for some clients, by their rows."""
        values = [
            leaf[index] if has_row else leaf
            for leaf, has_row in zip(leaves(self.record), self.has_rows, strict=True)
        ]
        return CohortDownload(rebuild(self.record, values), self.has_rows)

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of (one client's download, its records...) for all at once."""

        def of_client(down_leaves: list[Tensor], *rows: Any) -> Any:
            return function(rebuild(self.record, down_leaves), *rows)

        def of_all(*records: Any) -> Any:
            in_dims = (self.in_dims, *[0] * len(records))
            return vmap(of_client, in_dims=in_dims)(leaves(self.record), *records)

        return of_all


class Instruction(NamedTuple):
    """Server to client, beside every download: which exchange it is for."""

    round: Tensor
    """The round, from 0."""
    exchange: Tensor
    """The exchange inside the round, from 0."""
    number: Tensor
    """The exchange, counted over all rounds from 0."""
    uploads: Tensor
    """Whether the client's upload will be used."""
    taken: Tensor
    """Number of the exchange whose upload the server took last of this client; -1 if
    it has none. It tells a client whether its last upload arrived."""


_ZERO = torch.tensor(0)
INSTRUCTION_BYTES = sum(
    t.element_size() for t in Instruction(_ZERO, _ZERO, _ZERO, _ZERO > 0, _ZERO)
)
"""What goes to a client beside its download."""


@dataclass(frozen=True, eq=False)
class Order:
    """Server to fleet: one exchange of one round, for all clients that are called."""

    round: int
    exchange: int
    number: int
    """These three as in `Instruction`."""
    clients: Tensor
    """(n,) who is called, by number, in ascending order."""
    download: CohortDownload
    uploads: Tensor
    """(n,) whose upload will be used."""
    taken: Tensor
    """(n,) which upload of each the server took last."""

    @property
    def instructions(self) -> Instruction:
        """What goes to each client beside its download, n rows."""
        ones = torch.ones_like(self.clients)
        at = (ones * self.round, ones * self.exchange, ones * self.number)
        return Instruction(*at, self.uploads, self.taken)

    @property
    def bytes_down(self) -> int:
        """What all clients are sent together."""
        return len(self.clients) * (self.download.bytes + INSTRUCTION_BYTES)

    def only(self, chosen: Tensor) -> Order:
        """The same for the clients where `chosen` holds."""
        return replace(
            self,
            clients=self.clients[chosen],
            download=self.download.take(chosen),
            uploads=self.uploads[chosen],
            taken=self.taken[chosen],
        )


class Refusal(NamedTuple):
    """What a client sent, or would not do, and why the server goes on without it."""

    client: int
    """The client's number."""
    reason: str
    """A sentence for the run's files."""


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Fleet to server: what came back of an exchange, from whoever arrived."""

    clients: Tensor
    """(k,) who arrived, by number; the others are out of the cohort."""
    reports: Report
    """k rows."""
    uploaders: Tensor
    """(u,) those of `clients` who uploaded, in the same order."""
    uploads: Any
    """u rows of the method's `Upload`; None where nobody uploaded; or a
    `fedloom.core.summed.Total`, of which no row was seen."""
    refused: tuple[Refusal, ...] = ()
    """What could not be used, in the order in which it came."""
    sum_bytes_down: int = 0
    """What clients were sent for a secure sum, all together."""
    sum_bytes_up: int | None = None
    """What they sent for it in the place of uploads; None where uploads came."""

    @classmethod
    def nobody(cls, like: Tensor) -> Arrivals:
        """Nothing came back; `like` is a tensor of client numbers."""
        none = like[:0]
        return cls(none, Report(none.float(), none, none), none, None)

    @property
    def bytes_up(self) -> int:
        """What all of them sent together."""
        reports = len(self.clients) * message_bytes(self.reports)
        if self.sum_bytes_up is not None:
            return reports + self.sum_bytes_up
        uploads = message_bytes(self.uploads) if self.uploads is not None else 0
        return reports + len(self.uploaders) * uploads

    def only(self, chosen: Tensor) -> Arrivals:
        """What came from the clients where `chosen`, (k,), holds."""
        clients = self.clients[chosen]
        kept = torch.isin(self.uploaders, clients)
        return replace(
            self,
            clients=clients,
            reports=take(self.reports, chosen),
            uploaders=self.uploaders[kept],
            uploads=take(self.uploads, kept) if bool(kept.any()) else None,
        )


class ModelInstruction(NamedTuple):
    """Server to client, beside what its model needs: what its model is asked for."""

    round: Tensor
    """The round that would be next, from 0."""
    taken: Tensor
    """As in `Instruction`."""
    part: Tensor
    """Place in `PARTS` of the part that is scored; -1 if no score is wanted."""


MODEL_INSTRUCTION_BYTES = len(ModelInstruction._fields) * _ZERO.element_size()
"""What goes to a client beside a `model_download`."""


@dataclass(frozen=True, eq=False)
class ModelRequest:
    """Server to fleet: what some clients need to have their models at hand."""

    round: int
    clients: Tensor
    """(n,) who is asked, by number."""
    taken: Tensor
    """(n,) which upload of each the server took last."""
    download: CohortDownload
    """What the method's `model_download` makes for each of them."""

    @property
    def instructions(self) -> ModelInstruction:
        """What goes to each client beside its download, n rows."""
        ones = torch.ones_like(self.clients)
        return ModelInstruction(ones * self.round, self.taken, ones * self._part)

    @property
    def bytes_down(self) -> int:
        """What all of them are sent together."""
        return len(self.clients) * (self.download.bytes + MODEL_INSTRUCTION_BYTES)

    @property
    def _part(self) -> int:
        return -1

    def only(self, chosen: Tensor) -> Self:
        """The same for the clients where `chosen` holds, or whose places these are."""
        return replace(
            self,
            clients=self.clients[chosen],
            taken=self.taken[chosen],
            download=self.download.take(chosen),
        )


@dataclass(frozen=True, eq=False)
class ScoreRequest(ModelRequest):
    """Server to fleet: score some clients' models, each on the client's own data."""

    part: str
    """One of `PARTS`."""
    shared: Tensor | None
    """(d,) the shared model, if the method has one."""
    teams: Tensor | None
    """(teams, d) the teams' models, if the method has any; each client gets its own."""

    @property
    def bytes_down(self) -> int:
        """What all of them are sent together."""
        models = [self.shared, self.teams[0] if self.teams is not None else None]
        size = sum(m.numel() * m.element_size() for m in models if m is not None)
        return super().bytes_down + len(self.clients) * size

    @property
    def _part(self) -> int:
        return PARTS.index(self.part)
