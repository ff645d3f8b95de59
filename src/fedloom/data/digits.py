"""The handwritten digits that come with scikit-learn: 1797 images, no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedloom.data.dataset import Dataset
from fedloom.data.source import Source


@dataclass(frozen=True, kw_only=True)
class Digits(Source):
    """1797 images of 8 x 8 pixels with values 0..16, ten classes."""

    licence = "CC BY 4.0"

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """The images as uint8 (N, 1, 8, 8); neither argument changes anything."""
        # Imported here: scikit-learn takes a second that other sources need not pay.
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = bunch.images.astype(np.uint8)[:, None]
        return Dataset(
            name="digits",
            inputs=(torch.from_numpy(images),),
            targets=torch.from_numpy(bunch.target.astype(np.int64)),
            classes=10,
            scale=16.0,
        )
