"""The command line: every command with its options, and every exit code."""

import inspect
import warnings
from typing import Any

from fedloom.core import errors

with warnings.catch_warnings():
    # Typer still imports names that Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer

    from fedloom.cli import app


def command_pages() -> dict[str, str]:
    """The text of both pages, by its place in the site."""
    return {
        "reference/commands.md": _commands(),
        "reference/exit-codes.md": _exit_codes(),
    }


def commands() -> dict[str, Any]:
    """Every command by its full name: `fedloom bench engine`."""
    found: dict[str, Any] = {}

    def collect(name: str, command: Any) -> None:
        for key, inner in getattr(command, "commands", {}).items():
            collect(f"{name} {key}", inner)
        if not hasattr(command, "commands"):
            found[name] = command

    collect("fedloom", typer.main.get_command(app))
    return found


def _commands() -> str:
    blocks = [
        "# Command line",
        "`fedloom COMMAND --help` says the same in a terminal. "
        "[Exit codes](exit-codes.md) are on a page of their own, and what `--set` can "
        "set is among the [settings](settings/index.md).",
    ]
    for name, command in commands().items():
        blocks.append(f"## {name}")
        blocks += _about(command)
        rows = [_row(parameter) for parameter in command.params]
        if rows:
            head = ["| option or argument | default | meaning |", "|---|---|---|"]
            blocks.append("\n".join([*head, *rows]))
    return "\n\n".join(blocks) + "\n"


def _about(command: Any) -> list[str]:
    """The help of a command; its arguments are in the table below it."""
    arguments = {
        p.name.upper() for p in command.params if p.param_type_name != "option"
    }
    paragraphs = inspect.cleandoc(command.help or "").replace("\b", "").split("\n\n")
    return [
        "\n".join(f"    {line}" for line in text.splitlines())
        if text.lstrip().startswith("fedloom ")
        else " ".join(text.split())
        for text in paragraphs
        if text.strip() and text.partition(":")[0] not in arguments
    ]


def _row(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    is_option = parameter.param_type_name == "option"
    shown = ", ".join(f"`{n}`" for n in names) if is_option else parameter.name.upper()
    default = parameter.default
    if callable(default) or default in (None, (), [], "") or parameter.required:
        default = "required" if parameter.required else ""
    elif default is True or default is False:
        default = "on" if default else "off"
    about = " ".join((getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
    return f"| {shown} | {default} | {about.replace(chr(92) + '[', '[')} |"


def _exit_codes() -> str:
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.FedloomError)
    ]
    lines = ["| code | error in Python | what it means |", "|---|---|---|"]
    lines.append("| 0 | | The command did what it was asked to do. |")
    for kind in sorted(kinds, key=lambda kind: kind.exit_code):
        name = f"[`{kind.__name__}`][fedloom.{kind.__name__}]"
        lines.append(f"| {kind.exit_code} | {name} | {inspect.getdoc(kind)} |")
    lines += [
        "| 130 | `KeyboardInterrupt` | Ctrl-C ended the command. |",
        "| 143 | | SIGTERM ended the command. |",
    ]
    return (
        "# Exit codes\n\nA command that ends well ends with 0. Everything else has a "
        "message on the standard error that says where, what was expected, what was "
        "found and what to do; the code says of which kind it is, for scripts. An "
        "option that does not exist also ends with 2.\n\n" + "\n".join(lines) + "\n\n"
        "After 130 and 143 nothing is lost: [the same command, or "
        "`fedloom resume`](../how-to/stop-and-resume.md), goes on. "
        "A comparison in which some methods diverged finishes the others and ends with "
        "5, and a search of settings in which every trial of a method failed ends with "
        "3. `fedloom serve` and `fedloom join` have "
        "[a table of their own](../deploy.md).\n"
    )
