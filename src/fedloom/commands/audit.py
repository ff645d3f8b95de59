"""`fedloom audit`: what a finished run gives away to somebody who tries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedloom.commands import completion, options
from fedloom.commands.console import print_json, progress, say, tell
from fedloom.commands.documents import audit_document
from fedloom.commands.options import argument, option
from fedloom.commands.report import show_table

if TYPE_CHECKING:
    from fedloom.results.audit import Audit


def audit_command(
    run: Annotated[Path, argument("Directory of a finished run.", completion.folders)],
    references: Annotated[
        int,
        option(
            "Number of reference runs for membership inference, at least 4; 0 leaves "
            "it out."
        ),
    ] = 16,
    canaries: Annotated[
        int,
        option(
            "Number of clients that are planted to bound epsilon from below; 0 leaves "
            "it out."
        ),
    ] = 32,
    batch: Annotated[
        int,
        option("Number of samples in the batch that is inverted; 0 leaves it out."),
    ] = 4,
    seed: Annotated[int, option("Seed of all that the audit draws.")] = 0,
    model: options.ModelAgain = None,
    device: options.Device = None,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Attack a finished run: what its models give away of clients and samples.

    A failed attack proves nothing. `fedloom report` shows what was found.

    Examples:
        fedloom audit runs/first
        fedloom audit runs/compare/ditto/seed-0 --references 32 --canaries 0
        fedloom audit runs/first --json --quiet
    """
    from fedloom.audit import AuditSettings, audit, foreseen, open_subject
    from fedloom.progress import TerminalBar

    settings = AuditSettings(
        references=references, canaries=canaries, batch=batch, seed=seed
    )
    subject = open_subject(run, model, data_dir=data_dir, device=device)
    tell(foreseen(subject, settings))
    rounds = subject.rounds
    if progress.is_terminal and not quiet:
        with TerminalBar(progress) as bar:
            found = audit(
                subject,
                settings,
                lambda n: bar.show(f"round {n} of {rounds}", n / rounds, ""),
            )
    else:
        found = audit(subject, settings)
    _show(found, subject.simulation.algorithm.name)
    say(f"\nWritten to {subject.directory.audit}; `fedloom report {run}` shows it")
    if as_json:
        print_json(audit_document(found, subject.directory.audit))


def _show(found: Audit, name: str) -> None:
    """Print the tables of an audit, and what must be known of them."""
    from fedloom.reports.audit_tables import audit_tables

    for table in audit_tables({name: found}):
        show_table(table)
    say("")
    for remark in found.remarks:
        say(remark)
    say("A failed attack proves nothing: another one may succeed.")
