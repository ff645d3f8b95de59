"""What one client of a federation reads of its own run: report.md and report.html."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.core.files import atomic_write, write_text
from fedloom.core.metrics import METRICS
from fedloom.core.wording import counted
from fedloom.reports.markup import content_policy, render
from fedloom.reports.tables import Table, TableBuilder
from fedloom.reports.units import count, size, title_of, unit_of
from fedloom.results.statistics import Estimate

_FEW_SAMPLES = 30
"""Below so many test samples a score is called rough."""


@dataclass(frozen=True, kw_only=True)
class OwnScore:
    """How one kind of model did on one part of the client's data."""

    kind: str
    """shared, team, personal, averaged; or alone."""
    part: str
    samples: int
    numbers: dict[str, float]
    """By metric; the task's is the first."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One field of what left the client, over all messages."""

    message: str
    """When it was sent, in words."""
    field: str
    meaning: str
    times: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class OwnReport:
    """What a client of a federation has of it; nothing of this is sent."""

    name: str
    run: str
    method: str
    metric: str
    """accuracy, or mse."""
    clients: int
    """How many trained together; 0 if the server has not said so."""
    rounds: int
    trained: int
    """Training samples of this client."""
    tested: int
    """Its test samples."""
    work: int
    """Samples that entered a gradient of this client, each as often as it did."""
    alone_rounds: int
    """Rounds of training alone that come nearest to as much work."""
    scores: Sequence[OwnScore]
    gain: Estimate | None
    """Over training alone, positive if better, with its interval over test samples;
    None without a test sample, or where training alone diverged."""
    sent: Sequence[Sent]
    why: str = ""
    """What ended the run, if it is not its last round."""

    def sentence(self) -> str:
        """What the client gained, in one line."""
        if not self.tested:
            return (
                f"{self.name} has a model of its own, and no test samples: there is no "
                "score, and no gain over training alone can be stated."
            )
        together, unit = self._score("personal"), unit_of(self.metric)
        text = (
            f"{self.name}: {self.metric} {unit.score(together)} on "
            f"{counted(self.tested, 'test sample')} with the model from the federation"
        )
        if self.gain is None:
            return f"{text}; training alone diverged, so there is no gain to state."
        alone = unit.score(self._score("alone"))
        text += f", {alone} when trained alone at home with as much work: "
        if self.gain.mean == 0:
            return f"{text}neither better nor worse."
        what = "gain" if self.gain.mean > 0 else "loss"
        text += f"a {what} of {unit.number(abs(self.gain.mean))}{unit.points}"
        if not self.gain.has_interval:
            return f"{text}."
        low, high = unit.gap(self.gain.low), unit.gap(self.gain.high)
        is_open = self.gain.low <= 0 <= self.gain.high
        chance = ", so it may be chance" if is_open else ""
        return f"{text} (95 % interval over test samples {low} to {high}{chance})."

    def cautions(self) -> list[str]:
        """What a reader should know before the numbers are believed."""
        texts = []
        if self.why:
            texts.append(f"The run did not come to its last round: {self.why}")
        if 0 < self.tested < _FEW_SAMPLES:
            texts.append(
                f"Scores on {counted(self.tested, 'test sample')} are rough. Compare "
                "on more samples before you decide by them."
            )
        return texts

    def score_table(self) -> Table:
        """Every kind of model on every part of the client's data."""
        names = list(dict.fromkeys(n for score in self.scores for n in score.numbers))
        table = TableBuilder(self.scores)
        table.words("model", lambda score: _KINDS.get(score.kind, score.kind))
        table.words("data", lambda score: score.part)
        table.numbers("samples", lambda score: str(score.samples))
        for name in names:
            values = [s.numbers[name] for s in self.scores if name in s.numbers]
            unit, title = unit_of(name, values), title_of(name)
            table.numbers(
                title,
                lambda score, name=name, unit=unit: unit.score(  # type: ignore[misc]
                    score.numbers.get(name, float("nan"))
                ),
                METRICS[name].title if name in METRICS else "",
            )
        return table.table(
            "Scores on this client's own data. Test and validation data were not "
            "trained on."
        )

    def sent_table(self) -> Table:
        """All that left this client."""
        table = TableBuilder(self.sent)
        table.words("message", lambda sent: sent.message)
        table.words("field", lambda sent: sent.field)
        table.words("what it is", lambda sent: sent.meaning)
        table.numbers("times", lambda sent: str(sent.times))
        table.numbers("bytes", lambda sent: size(sent.bytes))
        total = size(sum(sent.bytes for sent in self.sent))
        return table.table(
            f"All that left this client: {total}, and some hundred bytes around each "
            "message (its name, the round, checksums)."
        )

    def write(self, folder: Path) -> list[Path]:
        """Write report.md and report.html.

        Raises:
            DataError: They cannot be written.
        """
        files = [folder / "report.md", folder / "report.html"]
        for file, template in zip(files, ("own.md", "own.html"), strict=True):
            text = render(
                template,
                report=self,
                policy=content_policy("page.css"),
                work=count(self.work),
                rounds=counted(self.rounds, "round"),
                alone_rounds=counted(self.alone_rounds, "round"),
            )
            with atomic_write(file, lasting=True) as part:
                write_text(part, text)
        return files

    def _score(self, kind: str) -> float:
        for score in self.scores:
            if (score.kind, score.part) == (kind, "test"):
                return score.numbers[self.metric]
        return float("nan")


_KINDS = {
    "personal": "this client's own",
    "averaged": "this client's own, averaged over its posterior",
    "shared": "the one for all clients",
    "team": "the one for its team",
    "alone": "trained alone at home",
}


def sums_of(sent: Iterable[Sent]) -> tuple[Sent, ...]:
    """The same with one line for each field of each kind of message."""
    lines: dict[tuple[str, str], Sent] = {}
    for line in sent:
        key = line.message, line.field
        before = lines.get(key)
        lines[key] = Sent(
            message=line.message,
            field=line.field,
            meaning=line.meaning,
            times=line.times + (before.times if before else 0),
            bytes=line.bytes + (before.bytes if before else 0),
        )
    return tuple(lines.values())
