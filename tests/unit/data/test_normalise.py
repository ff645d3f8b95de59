"""How pixels enter a model: the ways of the papers, stated in the file of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedloom.clients import Federation, Split, divide
from fedloom.clients.partitions import Iid
from fedloom.config import parse, to_tables
from fedloom.core.errors import ConfigError
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset, from_arrays
from fedloom.data.normalise import Normalise, normalised
from fedloom.data.sample_format import SampleFormat


def images() -> Dataset:
    """Sixty of 4 x 4, one pixel of which is always black and one always white."""
    pixels = np.random.default_rng(1).integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 3, 3] = 0, 255
    return from_arrays(pixels, np.arange(60) % 3, classes=3, scale=255.0)


def split(dataset: Dataset) -> Federation:
    return divide(dataset, Iid(clients=4), Split(test=0.25), seed=0)


def entering(dataset: Dataset) -> torch.Tensor:
    shift, scale = split(dataset).scaling()
    task = Task(torch.nn.Linear(2, 2), shift=shift, scale=scale, dtype=torch.float64)
    return task.prepare(dataset.inputs)[0]


def test_every_pixel_is_standardised_over_all_images() -> None:
    plain = images()
    x = plain.inputs[0].double()
    expected = (x - x.mean(0)) / (x.std(0, correction=0) + 0.001)
    found = entering(normalised(plain, "pixels"))
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    # What never varies is exactly 0, as it is in the original generators.
    assert not found[:, 0, 0, 0].any()
    assert not found[:, 0, 3, 3].any()


@pytest.mark.parametrize(("how", "least"), [("none", 0.0), ("half", -1.0)])
def test_all_pixels_may_be_scaled_alike(how: Normalise, least: float) -> None:
    found = entering(normalised(images(), how))
    assert (found.min(), found.max()) == (least, 1.0)


def test_how_pixels_enter_is_part_of_the_digest_and_the_images_stay() -> None:
    ways: tuple[Normalise, ...] = ("none", "half", "pixels")
    found = [normalised(images(), how) for how in ways]
    assert len({dataset.hash for dataset in found}) == 3
    assert all(torch.equal(d.inputs[0], images().inputs[0]) for d in found)
    # Who holds what is the same.
    assert len({split(dataset).hash for dataset in found}) == 1


def test_the_order_of_the_images_is_no_matter() -> None:
    plain = images()
    turned = replace(plain, inputs=(plain.inputs[0].flip(0),))
    assert normalised(turned, "pixels").scale == normalised(plain, "pixels").scale


def test_a_server_without_data_is_told_every_level() -> None:
    told = SampleFormat.of(normalised(images(), "pixels"))
    assert SampleFormat.from_json(told.to_json()) == told
    assert told.blank().scale == normalised(images(), "pixels").scale


def test_the_file_of_a_run_states_it() -> None:
    for name in ("mnist", "fashion-mnist"):
        tables = to_tables(parse({"data": {"name": name, "normalise": "pixels"}}))
        assert tables["data"]["normalise"] == "pixels"
    with pytest.raises(ConfigError, match="normalise"):
        parse({"data": {"name": "mnist", "normalise": "pixel"}})
