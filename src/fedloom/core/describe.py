"""What a class says of itself: the words that `fedloom describe` and the docs show."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from fedloom.core.algorithm import AnyAlgorithm


def field_docs(cls: type) -> dict[str, str]:
    """The string under each annotated field of a class, its ancestors' included."""
    docs: dict[str, str] = {}
    for ancestor in reversed(cls.__mro__):
        if "__annotations__" not in vars(ancestor):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(ancestor))
        except (OSError, TypeError):
            continue  # made by exec or in C: there is nothing to read
        body = ast.parse(source).body[0]
        if isinstance(body, ast.ClassDef):
            docs |= _under_fields(body)
    return docs


def _under_fields(body: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for line, after in zip(body.body[:-1], body.body[1:], strict=True):
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[line.target.id] = inspect.cleandoc(after.value.value)
    return docs


def first_line(thing: object) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def record_fields(record: type) -> list[tuple[str, str]]:
    """(name, documentation) of a record's fields, nested ones by their own name."""
    docs = field_docs(record)
    return [(name, docs.get(name, "")) for name in getattr(record, "_fields", ())]


def returned(method: object) -> type:
    """The record type that a method is annotated to return."""
    record: type = get_type_hints(method).get("return", object)
    return record


def logged(method: object) -> type:
    """The record type of the log that a server's method is annotated to return."""
    from fedloom.core.records import Empty, Logged  # they need PyTorch, settings do not

    hint = get_type_hints(method).get("return", object)
    record: type = get_args(hint)[1] if get_origin(hint) is Logged else Empty
    return record


def needs(algorithm: AnyAlgorithm) -> str:
    """What a method's server needs of the uploads, as sentences."""
    if algorithm.needs == "nothing":
        return "Nothing: no client sends anything."
    if algorithm.needs == "single models":
        return (
            f"Single models: {algorithm.why_single}. It sees every upload, and a sum "
            "would not do."
        )
    of = "each team of the cohort" if "team" in algorithm.needs else "the cohort"
    from fedloom.core.sums import bounds

    fields = ", ".join(bounds(algorithm.summand_record))
    return (
        f"{algorithm.needs[0].upper()}{algorithm.needs[1:]}: totals over {of} of "
        f"{fields}. Without secure sums it sees every upload; with them these totals "
        "alone."
    )
