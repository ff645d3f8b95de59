"""The numbers in byzfl.json: what ByzFL 0.0.11 makes of rows that anybody can draw.

    pip install byzfl==0.0.11
    python tests/golden/make_byzfl_numbers.py

Twelve rows of seven numbers, and once more with two rows far away. ByzFL's Krum counts
the n - f - 1 nearest others where the paper has n - f - 2. Its clipping changes the
rows that it is given. It has no Bulyan.
"""

import json
from pathlib import Path

import numpy as np


def rows(*, has_liars: bool) -> np.ndarray:
    drawn = np.random.default_rng(7).normal(size=(12, 7)) + np.arange(7)
    if has_liars:
        drawn[3] *= -100.0
        drawn[8] += 1e4
    return drawn


def numbers(values: np.ndarray) -> dict[str, list[float]]:
    # Imported here: the tests draw the same rows, and need no ByzFL.
    from byzfl.aggregators.aggregators import (
        GeometricMedian,
        Krum,
        Median,
        MultiKrum,
        TrMean,
    )
    from byzfl.aggregators.preaggregators import Clipping
    from byzfl.attacks.attacks import ALittleIsEnough, InnerProductManipulation

    made = {
        "median": Median()(values),
        "trimmed-mean 2": TrMean(2)(values),
        "geometric-median 0.1 3": GeometricMedian(nu=0.1, T=3)(values),
        "geometric-median 1e-6 16": GeometricMedian(nu=1e-6, T=16)(values),
        "krum 2": Krum(2)(values),
        "multi-krum 2": MultiKrum(2)(values),
        "norm-bound 5": Clipping(c=5.0)(values.copy()).mean(axis=0),
        "little-is-enough 1.5": ALittleIsEnough(tau=-1.5)(values),
        "inner-product 2": InnerProductManipulation(tau=2.0)(values),
    }
    return {name: value.tolist() for name, value in made.items()}


if __name__ == "__main__":
    document = {
        "byzfl": "0.0.11",
        "honest": numbers(rows(has_liars=False)),
        "with liars": numbers(rows(has_liars=True)),
    }
    text = json.dumps(document, indent=1) + "\n"
    Path(__file__).with_name("byzfl.json").write_text(text, encoding="utf-8")
