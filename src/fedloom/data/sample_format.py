"""What samples are like, without a sample: what a server must know to make a model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fedloom.core.errors import FedloomError, MessageError, shown
from fedloom.core.scaling import Levels
from fedloom.data.dataset import Dataset

_MOST_DIMENSIONS = 16
"""Of a sample; PyTorch has room for 64, and none has so many."""
_LARGEST = 1 << 24
"""Most numbers of one sample that are believed."""
_LONGEST = 300
"""Characters of a list that a message shows."""


@dataclass(frozen=True, kw_only=True)
class SampleFormat:
    """Types and shapes of one sample, and how it enters a model."""

    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    """Type and shape of each argument of the model."""
    target: tuple[str, tuple[int, ...]]
    """Type and shape of what is predicted."""
    classes: int | None
    class_names: tuple[str, ...] | None
    tokens: int | None
    vectors: tuple[int, ...] | None
    """Shape of the fixed vectors of tokens, if there are any."""
    shift: Levels
    scale: Levels
    standardise: bool
    standardise_targets: bool
    features: tuple[str, ...] | None
    """The rest is as in `fedloom.data.dataset.Dataset`."""

    @classmethod
    def of(cls, dataset: Dataset) -> SampleFormat:
        """The format of a dataset's samples."""
        vectors = dataset.vectors
        return cls(
            inputs=tuple((_word(x.dtype), tuple(x.shape[1:])) for x in dataset.inputs),
            target=(_word(dataset.targets.dtype), tuple(dataset.targets.shape[1:])),
            classes=dataset.classes,
            class_names=dataset.class_names,
            tokens=dataset.tokens,
            vectors=None if vectors is None else tuple(vectors.shape),
            shift=dataset.shift,
            scale=dataset.scale,
            standardise=dataset.standardise,
            standardise_targets=dataset.standardise_targets,
            features=dataset.features,
        )

    @property
    def standardised(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what enters with mean 0 and deviation 1: "inputs", "targets"."""
        shapes = {}
        if self.standardise:
            shapes["inputs"] = self.inputs[0][1]
        if self.classes is None and self.standardise_targets:
            shapes["targets"] = self.target[1]
        return shapes

    def to_json(self) -> str:
        """The format as text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> SampleFormat:
        """The format that `to_json` wrote.

        Raises:
            MessageError: It is something else.
        """
        try:
            table: Any = json.loads(text)
            made = cls(**{key: _frozen(value) for key, value in table.items()})
            hash(made)
            made.blank()
        except (
            *(ValueError, TypeError, AttributeError, KeyError, IndexError),
            *(RecursionError, RuntimeError, OverflowError, FedloomError),
        ) as error:
            raise MessageError(
                f"samples: expected a description of samples, found {shown(text)} "
                f"({error})."
            ) from error
        return made

    def difference(self, other: SampleFormat) -> str:
        """In what another format differs, for a message; empty if in nothing."""
        mine, theirs = asdict(self), asdict(other)
        odd = [key for key in mine if mine[key] != theirs[key]]
        text = "; ".join(
            f"{_TITLES.get(key, key)}: found {_listed(theirs[key])}, expected "
            f"{_listed(mine[key])}"
            for key in odd
        )
        if {"classes", "class_names"} & {*odd} and None not in (
            self.classes,
            other.classes,
        ):
            text += " (classes in [data] of the run's settings gives all the same ones)"
        return text

    def blank(self) -> Dataset:
        """A dataset of one sample that says nothing, of this format."""
        for name in ("classes", "tokens"):
            number = getattr(self, name)
            if number is not None and not 0 < number <= _LARGEST:
                raise MessageError(f"samples: {number} {name} are too many, or none.")
        first = []
        for word, shape in self.inputs:
            if len(shape) > _MOST_DIMENSIONS:
                raise MessageError(
                    f"samples: expected at most {_MOST_DIMENSIONS} dimensions, found "
                    f"{len(shape)}."
                )
            if sum(shape) > _LARGEST or torch.Size(shape).numel() > _LARGEST:
                raise MessageError(f"samples: the shape {shape} is too large.")
            first.append(torch.zeros((1, *shape), dtype=_dtype(word)))
        if self.tokens is not None and self.vectors is None:
            if first[0].dtype != torch.int64:
                raise MessageError(
                    f"samples: tokens are int64, found {self.inputs[0][0]}."
                )
            first[0][..., -1:] = self.tokens - 1
        word, shape = self.target
        vectors = None if self.vectors is None else torch.zeros(self.vectors)
        return Dataset(
            name="the clients' samples",
            inputs=tuple(first),
            targets=torch.zeros((1, *shape), dtype=_dtype(word)),
            classes=self.classes,
            class_names=self.class_names,
            shift=self.shift,
            scale=self.scale,
            vectors=vectors,
            standardise=self.standardise,
            standardise_targets=self.standardise_targets,
            features=self.features,
        )


_TITLES = {
    "inputs": "types and shapes of the inputs",
    "target": "type and shape of the target",
    "classes": "number of classes",
    "class_names": "classes",
    "vectors": "shape of the tokens' vectors",
    "standardise": "whether features are standardised",
    "standardise_targets": "whether targets are standardised",
}
"""What messages call a field, where its name does not say it."""


def _listed(value: Any) -> str:
    """A value as a sentence has it: names and numbers in a row."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, tuple):
        return shown(value)
    text = ", ".join(map(_listed, value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(word: str) -> torch.dtype:
    known = (torch.uint8, torch.int64, torch.float32, torch.float64, torch.float16)
    return {_word(dtype): dtype for dtype in known}[word]


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
