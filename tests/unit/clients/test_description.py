from __future__ import annotations

import dataclasses

import numpy as np

from fedloom.clients import Iid, Natural, Split, divide, federation
from fedloom.data import from_arrays

X, WHO = np.eye(12), np.repeat(["ann", "bob", "cy"], 4)
LABELS = np.tile(["dog", "cat"], 6)


def test_a_sentence_says_task_features_clients_and_test() -> None:
    data = dataclasses.replace(
        from_arrays(X, LABELS, clients=WHO, name="pets.csv"),
        features=tuple("abcdefghijkl"),
        left_out=("row",),
        target_name="kind",
        owner_name="home",
    )
    clients = divide(data, Natural(), Split(test=0.5), seed=0)
    assert clients.describe() == (
        "pets.csv: classification of 'kind' into 2 classes (cat, dog); 12 features (a, "
        "b, c, d, e and 7 more), 1 column left out (row); 3 clients from column "
        "'home'; tested on 50\N{NO-BREAK SPACE}% of each client's rows, at random"
    )


def test_a_regression_says_its_units() -> None:
    y = np.linspace(0, 1, 12)
    clients = federation(X, y, partition=Iid(clients=2), time=np.arange(12))
    assert clients.describe() == (
        "arrays: regression, scores in its own units, standardised for training; "
        "12 features; 2 clients from partition iid; tested on the last "
        "25\N{NO-BREAK SPACE}% by 'time'"
    )
    raw = federation(X, y, clients=WHO, standardise_targets=False)
    assert "standardised" not in raw.describe()
    assert "3 clients as the data name them" in raw.describe()


def test_every_way_to_split_is_said() -> None:
    groups = np.arange(12) // 2
    clients = federation(X, LABELS, clients=WHO, groups=groups)
    assert clients.describe().endswith("at random, groups of 'groups' kept whole")
    fold = dataclasses.replace(clients.split, fold=1, folds=3)  # type: ignore[type-var]
    assert "tested on fold 2 of 3" in clients.resplit(fold, 0).describe()
    marked = federation(X, LABELS, clients=WHO, test=np.tile([0, 0, 0, 1], 3))
    assert marked.describe().endswith("tested on what column 'test' says")


def test_what_is_said_of_folds_holds_for_small_clients_too() -> None:
    split = Split(folds=3, fold=0, validation=0.25)
    data = from_arrays(X, LABELS, clients=WHO)
    clients = divide(data, Natural(), split, seed=0)
    assert clients.describe(has_all_folds=True).endswith(
        "; every row is tested once, in 3 folds; validated on "
        "25\N{NO-BREAK SPACE}% of the rest"
    )
    few = from_arrays(X, LABELS, clients=np.repeat(["ann", "bob", "cy"], [5, 5, 2]))
    text = divide(few, Natural(), split, seed=0).describe(has_all_folds=True)
    assert "; every row of a client with 3 rows or more is tested once" in text
