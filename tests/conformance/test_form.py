"""Laws of a method's file: reference, symbols, deviations, documented settings."""

from __future__ import annotations

import inspect
import re

from variants import VARIANTS, over_methods

from fedloom.algorithms import REGISTRY
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.settings import settings_of

WITHOUT_PAPER = {"local"}
"""Methods that nobody published."""
GROUPS = {"local", "global", "personalised", "Bayesian", "clustered", "tiered"}


def opening(algorithm: AnyAlgorithm) -> str:
    return inspect.getdoc(inspect.getmodule(type(algorithm))) or ""


@over_methods
def test_a_method_gives_its_reference(algorithm: AnyAlgorithm) -> None:
    if algorithm.name in WITHOUT_PAPER:
        return
    # Authors, venue and year, between the title and the table.
    head = re.split(r"\n +(?:paper|symbol) ", opening(algorithm))[0]
    assert re.search(r"[A-Z]\w+[,.].*\b(?:19|20)\d\d\b", head, re.DOTALL)


@over_methods
def test_a_method_has_a_table_of_symbols(algorithm: AnyAlgorithm) -> None:
    table = re.search(
        r"^ +(?:paper|symbol) +here +lives\n((?: +\S.*\n)+)", opening(algorithm), re.M
    )
    assert table is not None
    assert len(table[1].splitlines()) >= 2


@over_methods
def test_a_method_states_its_deviations(algorithm: AnyAlgorithm) -> None:
    assert re.search(r"^Deviations: \S", opening(algorithm), re.MULTILINE)


@over_methods
def test_every_setting_of_a_method_is_documented(algorithm: AnyAlgorithm) -> None:
    bare = [s.name for s in settings_of(type(algorithm)) if not s.doc]
    assert not bare


@over_methods
def test_a_method_has_the_name_it_is_registered_under(algorithm: AnyAlgorithm) -> None:
    assert REGISTRY[algorithm.name] is type(algorithm)
    assert algorithm.group in GROUPS


@over_methods
def test_a_method_documents_its_records(algorithm: AnyAlgorithm) -> None:
    for record in algorithm.records:
        doc = record.__doc__ or ""
        # What a NamedTuple without a docstring is given.
        assert doc
        assert not doc.startswith(f"{record.__name__}(")


def test_every_method_is_tried_with_its_defaults_or_shorter() -> None:
    assert VARIANTS.keys() == REGISTRY.keys()
    assert all(variants for variants in VARIANTS.values())
