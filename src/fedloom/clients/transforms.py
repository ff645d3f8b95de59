"""Feature skew: each client sees its own samples through a lens of its own.

A sample belongs to one client, so its input can be changed once, after the partition,
in a copy of the data that stays uint8 where it was: training gathers it as before.
Bytes reach a transform as numbers from 0 to 1, which is the largest byte of the data,
and go back clipped to that range and rounded.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedloom.clients.ragged import Ragged
from fedloom.core.errors import ConfigError, FedloomError, MessageError, unknown
from fedloom.core.settings import Interval, NonNegative, Share, build, check
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset


class Transform(ABC):
    """Settings of one way in which clients' inputs differ.

    It is a frozen dataclass whose fields are checked against their annotations.
    """

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def apply(self, x: Tensor, client: int, seed: int) -> Tensor:
        """One client's inputs, (n, ...), changed; same shape and floating type.

        What happens to a client depends on (seed, client) alone.
        """


@dataclass(frozen=True, kw_only=True)
class Rotation(Transform):
    """Images turned by an angle of the client's own, counter-clockwise.

    Square images are turned exactly by multiples of 90 degrees. Other angles
    interpolate between pixels, and what comes into view from outside is 0.
    """

    angles: tuple[float, ...] = (0.0, 90.0, 180.0, 270.0)
    """Angles in degrees, one of which a client gets."""
    deal: Literal["turn", "random"] = "turn"
    """How angles are dealt: client u takes angle u, counted in a circle; or each draws
    one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.angles:
            raise ConfigError("Rotation: angles is empty; give at least one.")

    def apply(self, x: Tensor, client: int, seed: int) -> Tensor:
        """Turn the images of one client."""
        height, width = _image_shape(x, "rotation")
        place = client % len(self.angles)
        if self.deal == "random":
            place = int(_stream(seed, client).integers(len(self.angles)))
        angle = self.angles[place] % 360.0
        if angle % 180.0 == 0 or (angle % 90.0 == 0 and height == width):
            return torch.rot90(x, round(angle / 90.0), dims=(2, 3))
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        # From a place in the turned image to one in the original, in half-widths.
        matrix = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
        theta = torch.tensor([matrix], dtype=x.dtype).expand(len(x), 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, padding_mode="zeros", align_corners=False)


@dataclass(frozen=True, kw_only=True)
class Colour(Transform):
    """Each channel of a client's images multiplied by a gain of its own."""

    spread: Share = 0.3
    """Largest distance of a gain from 1, around which it is uniform."""

    def apply(self, x: Tensor, client: int, seed: int) -> Tensor:
        """Multiply the channels of one client's images."""
        _image_shape(x, "colour")
        draw = _stream(seed, client)
        gains = draw.uniform(1.0 - self.spread, 1.0 + self.spread, x.shape[1])
        return x * _like(x, gains)[:, None, None]


@dataclass(frozen=True, kw_only=True)
class Exposure(Transform):
    """Brightness and contrast of a client's images: c (x - 1/2) + 1/2 + b."""

    brightness: NonNegative = 0.2
    """Largest b, which is uniform between plus and minus this; 1 is from black to
    white."""
    contrast: Share = 0.3
    """Largest distance of c from 1, around which it is uniform."""

    def apply(self, x: Tensor, client: int, seed: int) -> Tensor:
        """Change all images of one client alike."""
        draw = _stream(seed, client)
        bright = draw.uniform(-self.brightness, self.brightness)
        contrast = draw.uniform(1.0 - self.contrast, 1.0 + self.contrast)
        return contrast * (x - 0.5) + (0.5 + bright)


@dataclass(frozen=True, kw_only=True)
class Blur(Transform):
    """Gaussian blur of a client's own width; the mean of an image stays as it is.

    Beyond an edge the image goes on as in a mirror.
    """

    most: Annotated[float, Interval(least=0.0, most=1000.0)] = 1.5
    """Largest width (standard deviation, in pixels); it is uniform from 0 to this."""

    def apply(self, x: Tensor, client: int, seed: int) -> Tensor:
        """Blur the images of one client."""
        height, width = _image_shape(x, "blur")
        sigma = _stream(seed, client).uniform(0.0, self.most)
        rows, columns = _like(x, smear(height, sigma)), _like(x, smear(width, sigma))
        return rows @ x @ columns.T


@dataclass(frozen=True, kw_only=True)
class Sensor(Transform):
    """Every number of a client's inputs read off by an instrument of its own: g x + o.

    Gains and offsets belong to (client, feature); made for tables, it takes any shape.
    """

    gain: NonNegative = 0.1
    """Standard deviation of log g, which is normal around 0."""
    offset: NonNegative = 0.1
    """Standard deviation of o, which is normal around 0, in units of the input."""

    def apply(self, x: Tensor, client: int, seed: int) -> Tensor:
        """Scale and shift the features of one client."""
        draw, shape = _stream(seed, client), tuple(x.shape[1:])
        gains = np.exp(self.gain * draw.standard_normal(shape))
        return x * _like(x, gains) + _like(x, self.offset * draw.standard_normal(shape))


TRANSFORMS: dict[str, type[Transform]] = {
    "blur": Blur,
    "colour": Colour,
    "exposure": Exposure,
    "rotation": Rotation,
    "sensor": Sensor,
}
"""Every transform by its name in a config."""


def transformed(
    dataset: Dataset,
    transform: Transform,
    seed: int,
    *parts: Ragged,
    clients: Iterable[int] | None = None,
) -> Dataset:
    """The dataset with each client's samples changed, in a copy of the first input.

    Args:
        dataset: All samples; those that no client holds stay as they are.
        transform: What is done.
        seed: The same seed gives the same inputs.
        parts: Samples of each client; no sample may be in two of them.
        clients: Number of each client; 0, 1, 2 and so on if not given.

    Raises:
        ConfigError: The inputs are not of a kind that the transform can change.
    """
    first, *others = dataset.inputs
    if first.dtype == torch.int64:
        raise ConfigError(
            f"transform: inputs of {dataset.name} are whole numbers such as tokens, "
            "which cannot be turned, blurred or scaled. Leave out the transform."
        )
    changed = first.clone()
    is_bytes = first.dtype == torch.uint8
    white = max(int(first.max()), 1) if is_bytes else 1
    numbers = range(len(parts[0])) if clients is None else clients
    for client, held in zip(numbers, zip(*parts, strict=True), strict=True):
        rows = torch.from_numpy(np.concatenate(held))
        if is_bytes:
            seen = transform.apply(first[rows].float() / white, client, seed)
            changed[rows] = (seen * white).round().clamp(0, white).to(torch.uint8)
        else:
            changed[rows] = transform.apply(first[rows], client, seed)
    return replace(dataset, inputs=(changed, *others))


def spell(transform: Transform, seed: int) -> str:
    """A transform and its seed as text that `reapply` reads."""
    names = [name for name, kind in TRANSFORMS.items() if kind is type(transform)]
    name = names[0] if names else type(transform).__name__
    settings = asdict(transform)  # type: ignore[call-overload]
    return json.dumps({"name": name, "seed": seed, **settings}, sort_keys=True)


def transform_of(text: str, rows: Sequence[int]) -> str:
    """What `spell` wrote, for some of the clients: each keeps its number."""
    if not text:
        return ""
    settings = json.loads(text)
    numbers = settings.get("clients", range(max(rows, default=0) + 1))
    clients = [numbers[row] for row in rows]
    return json.dumps(settings | {"clients": clients}, sort_keys=True)


def reapply(text: str, dataset: Dataset, *parts: Ragged) -> Dataset:
    """Do to a dataset what `spell` wrote down.

    Raises:
        MessageError: The text does not name a built-in transform with its settings.
    """
    try:
        settings = json.loads(text)
        name, seed = settings.pop("name"), settings.pop("seed")
        clients = settings.pop("clients", None)
        if name not in TRANSFORMS:
            raise ConfigError(unknown("transform", name, TRANSFORMS))
        transform = build(TRANSFORMS[name], settings, "transform")
    except (AttributeError, FedloomError, KeyError, ValueError) as error:
        raise MessageError(
            f"a saved split was made with the transform {text}, which cannot be "
            f"applied again: {error}"
        ) from error
    return transformed(dataset, transform, seed, *parts, clients=clients)


def smear(size: int, sigma: float) -> NDArray[np.float64]:
    """(size, size) Gaussian blur of one axis: rows and columns sum to 1.

    Half-sample symmetry at both ends makes the matrix symmetric, so that a blur that
    keeps constants keeps sums too.
    """
    if sigma == 0.0:
        return np.eye(size)
    reach = math.ceil(6.0 * sigma)
    offsets = np.arange(-reach, reach + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    kernel /= kernel.sum()
    source = (np.arange(size)[:, None] + offsets) % (2 * size)
    mirrored = np.where(source < size, source, 2 * size - 1 - source)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], mirrored), kernel)
    return matrix


def _stream(seed: int, client: int) -> np.random.Generator:
    return generator(seed, "transform", client)


def _like(x: Tensor, values: NDArray[np.float64]) -> Tensor:
    return torch.as_tensor(values, dtype=x.dtype)


def _image_shape(x: Tensor, what: str) -> tuple[int, int]:
    """Height and width.

    Raises:
        ConfigError: These are not images.
    """
    if x.dim() != 4:
        raise ConfigError(
            f"{what}: expected images (channels, height, width), found one sample of "
            f"shape {tuple(x.shape[1:])}. For tables use sensor."
        )
    return x.shape[2], x.shape[3]
