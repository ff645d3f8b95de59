"""No repr shows a sample: these may be patients."""

import dataclasses
import importlib
import inspect
import pkgutil
import traceback

import numpy as np
import pytest
import torch
from torch import nn

import fedloom
from fedloom.core.reprs import html_table, shape_of, text_table
from fedloom.core.task import Batch
from fedloom.data.dataset import from_arrays

PLANTED = 31337.4242
NAME = "Ann Planted-Patient"
HOLDERS = ("data", "clients", "results", "export", "core.task", "core.measures")
"""Where records are that may hold samples or what models say of single ones."""
SHARED = ("engine.job", "engine.steps", "engine.features")
ARRAYS = ("Tensor", "NDArray", "ArrayLike", "Numbers")


def records():
    """Every dataclass and named tuple of those modules that has room for an array."""
    for info in pkgutil.walk_packages(fedloom.__path__, "fedloom."):
        if not info.name.startswith(tuple(f"fedloom.{n}" for n in (*HOLDERS, *SHARED))):
            continue
        module = importlib.import_module(info.name)
        for kind in vars(module).values():
            if not inspect.isclass(kind) or kind.__module__ != info.name:
                continue
            if any(word in hint for hint in hints(kind).values() for word in ARRAYS):
                yield kind


def hints(kind):
    if dataclasses.is_dataclass(kind):
        return {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return {name: str(kind.__annotations__[name]) for name in kind._fields}
    return {}


_COUNTS = {
    "Home",  # a place in memory that may be given back
    "Extents",
    "Models",
    "Sums",
    "Columns",
    "Met",
    "_Buffers",
    "Participants",
    "Job",
    "_Cells",
    "ClientMeans",
    "_Weighing",
    "Mean",
    "_Clients",
    "Heat",
}
"""Records of numbers by client or step, of places and of parameters, none of them of a
sample."""


def planted(hint):
    """A value for a field, as far as its hint tells, with something in it to find."""
    if "Tensor" in hint:
        value = torch.full((2, 3), PLANTED, dtype=torch.float64)
        return (value, value) if "tuple[" in hint else value
    if "NDArray" in hint or "Numbers" in hint:
        return {"x": np.full(3, PLANTED)} if "Mapping" in hint else np.full(3, PLANTED)
    if "str" in hint and ("tuple" in hint or "Sequence" in hint or "list" in hint):
        return (NAME, NAME)
    return None


def filled(kind):
    """An instance whose arrays and lists of names are planted, unchecked."""
    values = {name: planted(hint) for name, hint in hints(kind).items()}
    if issubclass(kind, tuple):
        return kind(**values)
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def is_silent(text):
    return "31337" not in text and NAME not in text


OURS = [
    kind
    for kind in records()
    if kind.__name__ not in _COUNTS
    and kind not in (fedloom.Dataset, fedloom.Federation)  # below, with what they hold
]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_records_that_hold_samples_show_shapes_alone(kind):
    made = filled(kind)
    assert is_silent(repr(made)), repr(made)
    assert is_silent(f"{[made]} {made!r}")


def test_the_records_of_samples_are_all_among_them():
    names = {kind.__name__ for kind in OURS}
    expected = {"Batch", "NewSamples", "Targets", "Samples", "Outcomes", "Scores"}
    assert expected <= names
    assert len(names) >= 20


def patients():
    x = np.full((12, 2), PLANTED) * np.arange(12)[:, None]
    x[:, 1] = PLANTED
    names = [f"{NAME} {n % 3}" for n in range(12)]
    return x, np.arange(12) % 2, names


def test_datasets_federations_and_results_show_counts():
    x, y, names = patients()
    clients = fedloom.federation(x, y, clients=names, standardise=True)
    data = from_arrays(x, y)
    batch = Batch((torch.as_tensor(x),), torch.as_tensor(y), *[torch.zeros(12)] * 5)
    result = fedloom.run("ditto", "mlr", clients, rounds=1, progress=False)
    gain = result.gain(progress=False)
    things = [clients, data, batch, result, gain, result.scores, result.table()]
    things += [clients.train, clients.only([0]), result.federation]
    for thing in things:
        assert is_silent(repr(thing)), repr(thing)
    for thing in (clients, result):
        assert is_silent(str(thing))
        assert is_silent(thing._repr_html_())
    assert "clients=3" in repr(clients)
    assert repr(result) == "Result(ditto on arrays, 3 clients, 1 round)"


def test_a_traceback_with_the_values_of_variables_shows_no_sample():
    x, y, names = patients()
    clients = fedloom.federation(x, y, clients=names)
    batch = Batch((torch.as_tensor(x),), torch.as_tensor(y), *[torch.zeros(12)] * 5)
    del x, y, names

    def fails(clients, batch, inside):
        raise ValueError("as programs do")

    with pytest.raises(ValueError) as error:  # noqa: PT011
        fails(clients, batch, [clients, {"batch": batch}])
    shown = traceback.TracebackException.from_exception(
        error.value, capture_locals=True
    )
    text = "".join(shown.format())
    assert "Federation(clients=3" in text
    assert "Batch(inputs=" in text
    assert is_silent(text)


def test_names_out_of_data_are_text_in_a_notebook():
    x, y, _ = patients()
    evil = "<script>alert(1)</script>"
    x = {evil: x[:, 0]}[evil]
    clients = fedloom.federation(x[:, None], y, clients=[evil] * 12)
    shown = dataclasses.replace(clients, clients_from=f"from {evil}")._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    table = html_table([evil], [[evil]], title=evil, notes=[evil])
    assert "<script>" not in table
    assert table.count("&lt;script&gt;") == 4


def test_shapes_and_tables_are_as_they_read():
    assert shape_of(None) == "None"
    assert shape_of((torch.ones(2), np.ones(3))) == "[float32 (2,), float64 (3,)]"
    assert shape_of([1]) == "1 entry"
    assert shape_of({"a": 1, "b": 2}) == "2 entries"
    assert shape_of(nn.Linear(1, 1)) == "Linear"
    lines = text_table(["method", "score"], [["fedavg", "7"], ["a", "12"]])
    assert lines.splitlines() == ["method  score", "fedavg      7", "a          12"]
