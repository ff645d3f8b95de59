"""What a class says of itself: the words that `fedloom describe` and the docs show."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import get_type_hints


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
    found: type = get_type_hints(method).get("return", object)
    return found
