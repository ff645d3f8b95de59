"""What a split looks like: numbers that add up, drawings that can be read."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labels import labelled

from fedloom.clients import (
    BlockTeams,
    Consecutive,
    Federation,
    Given,
    Iid,
    Rotation,
    Slices,
    Split,
    divide,
    federation,
)
from fedloom.clients.picture import draw, heat, histogram, summarise, to_svg
from fedloom.data import from_arrays

SVG = "{http://www.w3.org/2000/svg}"


def small() -> Federation:
    """Client 0: nine of class 0 and one of class 1; client 1: two of class 2."""
    y = [0] * 9 + [1, 2, 2]
    lists = Given(members=(tuple(range(10)), (10, 11)))
    return federation(np.zeros((12, 1)), y, partition=lists, test=0.0)


def large() -> Federation:
    dataset = labelled(*[7000] * 10)
    return divide(dataset, Consecutive(clients=1000), Split(test=0.1), seed=0)


def text_of(lines: list) -> str:
    return "\n".join(line.plain for line in lines)


@settings(deadline=None, max_examples=100)
@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=60))
def test_every_client_is_in_one_bin(sizes: list[int]) -> None:
    bins = histogram(np.array(sizes))
    assert sum(clients for *_, clients in bins) == len(sizes)
    assert bins[0][0] == min(sizes)
    assert bins[-1][1] == max(sizes)
    for (_, most, _), (least, _, _) in pairwise(bins):
        assert least == most + 1


def test_bins_of_sizes_that_vary_much_have_equal_ratios() -> None:
    bins = histogram(np.array([10, 10_000]))
    lengths = [most + 1 - least for least, most, _ in bins]
    assert all(1.5 < b / a < 2.6 for a, b in pairwise(lengths))


def test_a_summary_says_what_there_is() -> None:
    found = dict(summarise(small()))
    assert found["data"] == "arrays, 12 samples"
    assert found["clients"] == "2"
    assert found["samples"] == "12 train, 0 validation, 0 test"
    assert found["training samples of a client"].startswith(
        "least 2, quartiles 4 / 6 / 8, most 10, mean 6.0, sd 4.0"
    )
    assert found["classes of a client"] == "least 1, median 1.5, most 2"
    assert found["without test samples"] == "2 clients, left unscored"
    assert found["hash"] == small().hash
    assert "teams" not in found
    assert "transform" not in found


def test_a_summary_tells_of_teams_transforms_and_shared_tests() -> None:
    x, y = np.zeros((8, 1, 4, 4)), [0, 1] * 4
    turned = federation(
        x,
        y,
        partition=Iid(clients=2),
        teams=BlockTeams(teams=2),
        transform=Rotation(),
    )
    found = dict(summarise(turned))
    assert found["teams"] == "2"
    assert '"name": "rotation"' in found["transform"]
    dataset = dataclasses.replace(from_arrays(x, y), fixed_test=np.arange(8) > 5)
    shared = divide(dataset, Iid(clients=3), Split(fixed=True, shared=True), seed=0)
    assert "(2 different, shared)" in dict(summarise(shared))["samples"]


def test_shares_of_labels_are_drawn_in_shades() -> None:
    lines = text_of(draw(small())).splitlines()
    assert lines[0].split() == ["client", "0", "1", "2", "samples"]
    assert lines[1].strip() == "0 ██░░ ·  10 " + "█" * 24
    assert lines[2].strip() == "1  · ·██   2 " + "█" * 5
    assert "clients, drawn at random" not in text_of(draw(small()))


def test_numbers_of_many_classes_do_not_run_into_each_other() -> None:
    fed = divide(labelled(*[4] * 20), Slices(clients=2), Split(), seed=0)
    head = text_of(draw(fed)).splitlines()[0]
    assert head.split()[1:-1] == [str(n) for n in range(0, 20, 2)]


def test_a_regression_is_drawn_by_its_sizes_alone() -> None:
    fed = federation(np.zeros(6), np.zeros(6), partition=Iid(clients=2))
    assert "share of" not in text_of(draw(fed))
    assert dict(summarise(fed))["classes"] == "none (regression)"
    assert "cell" not in to_svg(fed).partition("</style>")[2]


def test_many_clients_are_drawn_at_random_and_not_in_step_with_the_classes() -> None:
    found = heat(large(), 100)
    assert len(found.clients) == 100
    assert (np.diff(found.clients) > 0).all()
    assert len({client % 10 for client in found.clients.tolist()}) == 10
    assert "40 of 1,000 clients, drawn at random" in text_of(draw(large()))
    np.testing.assert_allclose(found.shares.sum(axis=1), 1.0, rtol=0, atol=1e-12)


def test_many_classes_are_drawn_together() -> None:
    dataset = labelled(*[10] * 120)
    fed = divide(dataset, Slices(clients=4), Split(), seed=0)
    found = heat(fed, 10)
    assert found.shares.shape == (4, 50)
    assert found.labels[:3] == ("0", "2", "4")
    np.testing.assert_allclose(found.shares.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert max(len(line.plain) for line in draw(fed)) < 110


def test_an_svg_is_whole_titled_and_described() -> None:
    root = ElementTree.fromstring(to_svg(small()))
    assert root.get("role") == "img"
    labels = (root.get("aria-labelledby") or "").split()
    found = {node.get("id"): node.text for node in root if node.get("id")}
    assert found[labels[0]] == "How arrays is divided among 2 clients"
    assert small().hash in (found["desc"] or "")
    assert "prefers-color-scheme:dark" in to_svg(small())
    cells = [node for node in root.iter(f"{SVG}path") if node.get("class") == "cell"]
    # 90 %, 10 % and 100 % of a client: three shades, one cell each.
    assert [(node.get("d") or "").count("M") for node in cells] == [1, 1, 1]
    opacity = [float(node.get("fill-opacity") or 0) for node in cells]
    assert opacity == pytest.approx([0.19, 0.91, 1.0])


def test_names_cannot_break_an_svg() -> None:
    names = ["<b>&", 'a"b', "x" * 40]
    fed = federation(np.zeros((9, 1)), [0] * 9, clients=np.repeat(names, 3))
    root = ElementTree.fromstring(to_svg(fed))
    shown = {node.text for node in root.iter(f"{SVG}text")}
    assert {"<b>&", 'a"b', "x" * 12} <= shown


def test_a_thousand_clients_are_a_light_file() -> None:
    text = to_svg(large())
    assert len(text) < 40_000
    assert "200 of 1,000 clients" in text
    ElementTree.fromstring(text)
