"""What models for images ask of their input."""

from __future__ import annotations

from fedloom.core.errors import ConfigError


def image_shape(
    input_shape: tuple[int, ...], model: str, smallest: int = 1
) -> tuple[int, int, int]:
    """Channels, height and width of one image.

    Raises:
        ConfigError: The input is not an image, or a side is below `smallest`.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise ConfigError(
            f"{model}: expected an image (channels, height, width) of at least "
            f"{smallest} x {smallest}, found shape {tuple(input_shape)}. "
            "Choose mlr or mlp."
        )
    channels, height, width = input_shape
    return channels, height, width
