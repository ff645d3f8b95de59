"""The model card: what somebody needs who finds the files a year later.

Its words are in card.md.jinja; here are the facts that it states.
"""

from __future__ import annotations

import inspect
import platform
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fedloom.algorithms import REGISTRY
from fedloom.core.foreign_text import markdown_text
from fedloom.core.settings import settings_of
from fedloom.core.summed import unwrapped
from fedloom.core.task import Task
from fedloom.core.version import VERSION
from fedloom.data.licences import LICENCES
from fedloom.export.exported_model import ExportedModel, RunInfo
from fedloom.models import MODELS
from fedloom.models.imported import ImportedModel, is_imported

_LONG = 20
"""Classes or columns that a card names one by one."""

_ORIGINS = {
    "personal": "trained by personalised federated learning for this client alone",
    "shared": "trained by federated learning for all clients alike",
    "newcomer": "made for a client that took no part in the training of the others",
}
"""Where a model comes from, by its kind."""


def write_card(run: RunInfo, model: ExportedModel) -> str:
    """The card of one model, as Markdown."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedloom", "export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = {"markdown": markdown_text, "shorten": _shorten, "spell": _spell}
    environment.filters |= filters
    task, method, dataset = run.task, unwrapped(run.algorithm), run.dataset
    constructor, imports = _constructor(run, model)
    return environment.get_template("card.md.jinja").render(
        run=run,
        model=model,
        dataset=dataset,
        task=task,
        method=method,
        privacy=run.config.get("privacy"),
        has_simulated_noise=_has_simulated_noise(run),
        origins=_ORIGINS,
        about=inspect.getdoc(type(method)),
        reference=_reference(type(method)),
        settings=settings_of(type(method)),
        licence=_licence(run.config.get("data", {}).get("name")),
        inputs=_inputs(task, dataset.inputs),
        units=_units(task),
        mask=_mask(task, len(dataset.inputs)),
        field=_field(model, dataset.inputs),
        cast="double" if task.dtype == torch.float64 else "float",
        constructor=constructor,
        imports=imports,
        versions={
            "fedloom": VERSION,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )


def _has_simulated_noise(run: RunInfo) -> bool:
    """Whether there was noise, and from the seed: neither server nor client hid it."""
    privacy = run.config.get("privacy")
    if not privacy or not privacy.get("noise"):
        return False
    return not privacy.get("secret") and getattr(run.algorithm, "source", None) is None


def _mask(task: Task, inputs: int) -> str:
    """What hides the padding of tokens from a model that takes a mask, as Python."""
    if task.padding is None or inputs != 1:
        return ""
    return f", attention_mask=(x != {task.padding}).long()"


def _field(model: ExportedModel, inputs: tuple[Tensor, ...]) -> str:
    """Which field of the model's output says what it predicts, as Python."""
    dtype = next(model.module.parameters()).dtype
    blank = (
        torch.zeros(1, *x.shape[1:], dtype=x.dtype if x.dtype == torch.int64 else dtype)
        for x in inputs
    )
    with torch.no_grad():
        outputs = model.module.cpu()(*blank)
    return "" if isinstance(outputs, Tensor) else ".logits"


def _reference(method: type[Any]) -> str:
    """The publication of a built-in method: the paragraph below its file's title."""
    if method not in REGISTRY.values():
        return ""
    text = inspect.cleandoc(sys.modules[method.__module__].__doc__ or "")
    _, *paragraphs = text.split("\n\n")
    has_reference = paragraphs and not paragraphs[0].startswith(" ")
    return " ".join(paragraphs[0].split()) if has_reference else ""


def _licence(source: str | None) -> str:
    if source is None or source == "file":
        return "that of your own data"
    if source in ("gaussian", "synthetic"):
        return "none needed; the data are drawn from the seed"
    return LICENCES.get(source, "not known; see where the data come from")


def _inputs(task: Task, inputs: tuple[Tensor, ...]) -> list[dict[str, Any]]:
    """What a card says of each input: its name in code, shape, type, preparation."""
    facts = []
    for number, x in enumerate(inputs, start=1):
        sides = list(x.shape[1:])
        shift, scale = (_code(level, sides) for level in (task.shift, task.scale))
        kind = "floating numbers" if x.is_floating_point() else "whole numbers (tokens)"
        facts.append(
            {
                "name": "x" if len(inputs) == 1 else f"x{number}",
                "sides": sides,
                "kind": "bytes" if x.dtype == torch.uint8 else kind,
                "dtype": x.dtype,
                "is_floating": x.is_floating_point(),
                "preparation": f" - {shift}) / {scale}" if prepares(task, (x,)) else "",
            }
        )
    return facts


def _units(task: Task) -> str:
    """What brings standardised outputs to the target's own units, as Python."""
    if not task.scales_targets:
        return ""
    shift, scale = task.scaling.target_shift, task.scaling.target_scale
    return f" * {_code(scale, [])} + {_code(shift, [])}"


def prepares(task: Task, inputs: tuple[Tensor, ...]) -> bool:
    """Whether the task changes the values of its inputs before the model sees them."""
    ones = [torch.ones_like(x[:1]).to(task.device) for x in inputs]
    return any(
        not torch.equal(task.prepare((x,))[0].double(), x.double()) for x in ones
    )


def _constructor(run: RunInfo, model: ExportedModel) -> tuple[str, str]:
    """How the module is made, and what must be imported for that."""
    settings = dict(run.config.get("model", {}))
    name = settings.pop("name", None)
    kind = type(model.module)
    if is_imported(name):
        own = ImportedModel.from_table(run.config["model"], "model")
        dataset = run.dataset
        return own.code(dataset.input_shape, dataset.outputs, dataset.tokens)
    if name not in MODELS:
        where = "your own class" if kind.__module__ == "__main__" else kind.__module__
        how = "the module as you made it for the run"
        return f"{kind.__qualname__}()", f"# {kind.__qualname__} ({where}): {how}"
    arguments = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    builder, dataset = MODELS[name].__name__, run.dataset
    if dataset.tokens is None:
        built = f"build({dataset.input_shape}, {dataset.outputs})"
    else:
        # The vectors themselves are in the state dict.
        shape = None if dataset.vectors is None else tuple(dataset.vectors.shape)
        vectors = "None" if shape is None else f"torch.zeros{shape}"
        built = f"build_for_tokens({dataset.tokens}, {dataset.outputs}, {vectors})"
    return f"{builder}({arguments}).{built}", f"from fedloom.models import {builder}"


def _shorten(names: Iterable[object]) -> str:
    shown = [markdown_text(name) for name in names]
    more = len(shown) - _LONG
    text = ", ".join(shown[:_LONG])
    return f"{text} and {more} more, all in model.toml" if more > 0 else text


def plain(level: float | Tensor) -> Any:
    """A shift or scale as a number or a list of them."""
    if not isinstance(level, Tensor):
        return level
    return level.flatten().tolist() if level.dim() else level.item()


def _spell(level: float | Tensor) -> str:
    values = plain(level)
    if isinstance(values, list):
        return f"{_shorten(f'{value:g}' for value in values)} (one for each place)"
    return f"{values:g}"


def _code(level: float | Tensor, sides: list[int]) -> str:
    """A shift or scale as Python, in the shape that lies along channels."""
    if not isinstance(level, Tensor):
        return repr(level)
    if level.dim() == 0:
        return repr(level.item())
    # One per channel lies along the channels; one per feature has the input's shape.
    is_along = level.dim() == 1 and len(sides) > 1
    shape = f".reshape(-1{', 1' * (len(sides) - 1)})" if is_along else ""
    return f"torch.tensor({level.tolist()}){shape}"
