"""The command line: a thin skin over `fedloom.run` and its kin."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn, get_type_hints

import typer
from typer.models import ArgumentInfo

from fedloom.commands.audit import audit_command
from fedloom.commands.bench import bench
from fedloom.commands.catalogue import list_command
from fedloom.commands.certs import certs_command
from fedloom.commands.console import (
    err,
    lacks_document,
    plain,
    print_json,
    say,
    set_json,
    set_quiet,
    show_notes,
)
from fedloom.commands.data import data_command
from fedloom.commands.describe import describe_command
from fedloom.commands.documents import error_document
from fedloom.commands.encoding import spell_what_consoles_lack
from fedloom.commands.exit_codes import epilog
from fedloom.commands.export import (
    export_command,
    personalize_command,
    predict_command,
)
from fedloom.commands.federation import (
    join_command,
    leave_command,
    serve_command,
)
from fedloom.commands.guesses import Command
from fedloom.commands.report import report_command, view_command
from fedloom.commands.reproduce import reproduce_command
from fedloom.commands.run import compare_command, resume_command, run_command
from fedloom.commands.tune import tune_command
from fedloom.core.errors import ConfigError, DataError, FedloomError, is_unicode, shown
from fedloom.core.memory import lack_of_memory_explained
from fedloom.core.version import VERSION


def _with_arguments(command: Callable[..., None]) -> str:
    """The help of a command, and that of its arguments, which Typer may leave out."""
    about, heading, examples = (inspect.getdoc(command) or "").partition("Examples:")
    lines = [about.strip()]
    hints = get_type_hints(command, include_extras=True)
    for name, hint in hints.items():
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, ArgumentInfo):
                lines.append(f"{name.upper()}: {note.help}")
    return "\n\n".join([*lines, heading + examples.rstrip()])


app = typer.Typer(
    epilog=epilog(),
    no_args_is_help=True,
    suggest_commands=False,  # Click does
    pretty_exceptions_enable=False,
)


def _begin(is_asked_for_version: bool) -> None:
    """Speak as usual until an option says otherwise; say the version, if asked."""
    set_quiet(False)
    set_json(False)
    if is_asked_for_version:
        say(f"fedloom {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_begin,
            is_eager=True,
        ),
    ] = False,
) -> None:
    r"""Personalised federated learning: every client leaves with its own model.

    Examples:
        fedloom compare local fedavg ditto --data patients.csv \
                        --set data.target=outcome --set data.client=hospital
        fedloom describe ditto
        fedloom --install-completion
    """


for command in (
    run_command,
    compare_command,
    resume_command,
    data_command,
    report_command,
    audit_command,
    view_command,
    list_command,
    describe_command,
    tune_command,
    export_command,
    predict_command,
    personalize_command,
    reproduce_command,
    certs_command,
    serve_command,
    join_command,
    leave_command,
):
    app.command(
        command.__name__.removesuffix("_command"),
        cls=Command,
        help=_with_arguments(command),
    )(command)
app.add_typer(bench, name="bench")


def _refuse_other_than_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text, which no message and no file could hold."""
    for argument in arguments:
        if not is_unicode(argument):
            raise ConfigError(
                f"expected arguments in UTF-8, found {shown(argument)}. Rename the "
                "file, or write the name in UTF-8."
            )


def main() -> None:
    """Run the command line; errors end it with their message and exit code."""
    spell_what_consoles_lack()
    try:
        _refuse_other_than_text(sys.argv)
        with lack_of_memory_explained("The command", "Ask for less of it."):
            app(prog_name="fedloom")
    except FedloomError as error:
        _end(error)
    except OSError as error:
        if error.filename is None:
            raise
        # Such as a name that is too long, or a folder that may not be looked into.
        _end(DataError(f"{shown(error.filename)}: {error.strerror}."))


def _end(error: FedloomError) -> NoReturn:
    if lacks_document():
        print_json(error_document(error, error.exit_code))
    text = f"[red]error:[/red] {plain(str(error))}"
    err.print(text, highlight=False, soft_wrap=True)
    show_notes(error)
    raise SystemExit(error.exit_code) from error
