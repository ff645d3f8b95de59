"""The model card: what somebody needs who finds the files a year later."""

from __future__ import annotations

import inspect
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from fedloom.algorithms import REGISTRY
from fedloom.core.settings import settings_of
from fedloom.core.task import Task
from fedloom.data.licences import LICENCES
from fedloom.export.exported_model import ExportedModel, RunInfo
from fedloom.models import MODELS

_LONG = 20
"""Classes or columns that a card names one by one."""


def write_card(origin: RunInfo, parcel: ExportedModel) -> str:
    """The card of one model, as Markdown."""
    sections = {
        "Method": _method(origin),
        "Data": _data(origin, parcel),
        "Scores": _scores(origin, parcel),
        "Input and output": _ends(origin),
        "Load it": _loading(origin, parcel),
        "Limits": _limits(origin, parcel),
        "Versions": _versions(origin),
    }
    text = f"# {parcel.title}\n\n{_opening(origin, parcel)}\n"
    for heading, body in sections.items():
        text += f"\n## {heading}\n\n{body.strip()}\n"
    return text


def _opening(origin: RunInfo, parcel: ExportedModel) -> str:
    simulation = origin.simulation
    size = f"{simulation.task.d:,} trained parameters"
    how = {
        "personal": "trained by personalised federated learning for this client alone",
        "shared": "trained by federated learning for all clients alike",
        "newcomer": "made for a client that took no part in the training of the others",
    }
    return (
        f"A model with {size}, {how[parcel.kind]}, with Fedloom, by the method "
        f"{simulation.algorithm.name}, from {simulation.federation.count} clients in "
        f"{simulation.state.round} rounds."
    )


def _method(origin: RunInfo) -> str:
    method = origin.simulation.algorithm
    text = f"`{method.name}`: {inspect.getdoc(type(method))}\n"
    if type(method) in REGISTRY.values():
        module = sys.modules[type(method).__module__]
        paragraphs = inspect.cleandoc(module.__doc__ or "").split("\n\n")
        # The paragraph below the title is the reference, if it is not yet the table.
        if len(paragraphs) > 1 and not paragraphs[1].startswith(" "):
            text += f"\nReference: {' '.join(paragraphs[1].split())}\n"
    text += "\n| setting | value | meaning |\n|---|---|---|\n"
    for setting in settings_of(type(method)):
        value = getattr(method, setting.name)
        meaning = " ".join(setting.doc.split()).replace("|", "\\|")
        text += f"| `{setting.name}` | {value} | {meaning} |\n"
    return text


def _data(origin: RunInfo, parcel: ExportedModel) -> str:
    federation, config = origin.simulation.federation, origin.config
    source = config.get("data", {}).get("name")
    lines = [
        f"- Dataset: {origin.data_name}"
        + (f" ({federation.dataset.origin})" if federation.dataset.origin else ""),
        f"- Licence of the data: {_licence(source)}",
        f"- Clients: {federation.count}; hash of the split: `{federation.hash}`",
        f"- Seed: {origin.simulation.seed}",
    ]
    if parcel.client is None:
        lines.append(f"- Training samples of all clients: {parcel.samples}")
    else:
        lines.append(
            f"- This client: {parcel.client}; its training samples: {parcel.samples}"
        )
    return "\n".join(lines)


def _licence(source: str | None) -> str:
    if source is None or source == "file":
        return "that of your own data"
    if source in ("gaussian", "synthetic"):
        return "none needed; the data are drawn from the seed"
    return LICENCES.get(source, "not known; see where the data come from")


def _scores(origin: RunInfo, parcel: ExportedModel) -> str:
    if not parcel.scores:
        text = "There are no validation or test samples to score it on.\n"
    else:
        names = list(parcel.scores[0].numbers)
        text = f"After round {origin.simulation.state.round}"
        text += ", mean over clients" if parcel.client is None else ""
        text += f".\n\n| model | data | samples | {' | '.join(names)} |\n"
        text += f"|---|---|---|{'---|' * len(names)}\n"
        for score in parcel.scores:
            numbers = " | ".join(f"{score.numbers[name]:.4f}" for name in names)
            text += f"| {score.kind} | {score.part} | {score.samples} | {numbers} |\n"
    return text + "".join(f"\n{remark}\n" for remark in parcel.remarks)


def _ends(origin: RunInfo) -> str:
    dataset, task = origin.dataset, origin.simulation.task
    lines = []
    for n, x in enumerate(dataset.inputs):
        which = f"Input {n + 1}" if len(dataset.inputs) > 1 else "Input"
        shape = " x ".join(str(side) for side in x.shape[1:])
        lines.append(f"- {which}: {shape or 'one number'} per sample, {_kind(x)}")
    if prepares(task, dataset.inputs):
        lines.append(
            "- Preparation: `(x - shift) / scale` with shift "
            f"{_spell(task.shift)} and scale {_spell(task.scale)}"
        )
    if dataset.features is not None:
        lines.append(f"- Columns, in this order: {_list(dataset.features)}")
    if dataset.classes is None:
        lines.append(f"- Output: {dataset.outputs} numbers (regression)")
    else:
        names = dataset.class_names or tuple(map(str, range(dataset.classes)))
        lines.append(
            f"- Output: one number for each of {dataset.classes} classes, before "
            f"softmax: {_list(names)}"
        )
    return "\n".join(lines)


def prepares(task: Task, inputs: tuple[Tensor, ...]) -> bool:
    """Whether the task changes the values of its inputs before the model sees them."""
    for x in inputs:
        one = torch.ones_like(x[:1]).to(task.device)
        if not torch.equal(task.prepare((one,))[0].double(), one.double()):
            return True
    return False


def _loading(origin: RunInfo, parcel: ExportedModel) -> str:
    task, dataset, module = origin.simulation.task, origin.dataset, parcel.module
    makes, imports = _constructor(origin, parcel)
    cast = "double" if task.dtype == torch.float64 else "float"
    lines = [
        "import torch",
        "from safetensors.torch import load_file",
        imports,
        "",
        f"model = {makes}" + (".double()" if cast == "double" else ""),
        'model.load_state_dict(load_file("model.safetensors"))',
        "model.eval()",
        "",
    ]
    names = ["x"] if len(dataset.inputs) == 1 else []
    names = names or [f"x{n + 1}" for n in range(len(dataset.inputs))]
    for name, x in zip(names, dataset.inputs, strict=True):
        shape = ", ".join(str(side) for side in (1, *x.shape[1:]))
        lines.append(f"{name} = torch.zeros({shape}, dtype={x.dtype})  # your input")
        if prepares(task, (x,)):
            along = ", ".join("1" for _ in x.shape[2:])
            shift, scale = (_code(v, along) for v in (task.shift, task.scale))
            lines.append(f"{name} = ({name}.{cast}() - {shift}) / {scale}")
        elif x.is_floating_point():
            lines.append(f"{name} = {name}.{cast}()")
    call = f"model({', '.join(names)})"
    is_regression = dataset.classes is None
    lines += [
        "with torch.no_grad():",
        f"    numbers = {call}"
        if is_regression
        else f"    probabilities = {call}.softmax(1)",
    ]
    code = "\n".join(lines)
    return (
        f"```python\n{code}\n```\n\n`model.safetensors` is a plain state dict; its "
        "names are those of the module below, so that it can be built anew without "
        f"Fedloom as well.\n\n```text\n{module}\n```\n"
    )


def _constructor(origin: RunInfo, parcel: ExportedModel) -> tuple[str, str]:
    """How the module is made, and what must be imported for that."""
    settings = dict(origin.config.get("model", {}))
    name = settings.pop("name", None)
    kind = type(parcel.module)
    if name not in MODELS:
        where = "your own class" if kind.__module__ == "__main__" else kind.__module__
        how = "the module as you made it for the run"
        return f"{kind.__qualname__}()", f"# {kind.__qualname__} ({where}): {how}"
    given = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    builder, dataset = MODELS[name].__name__, origin.dataset
    made = f"{builder}({given})"
    if dataset.tokens is None:
        made += f".build({dataset.input_shape}, {dataset.outputs})"
    else:
        # The vectors themselves are in the state dict.
        shape = None if dataset.vectors is None else tuple(dataset.vectors.shape)
        vectors = "None" if shape is None else f"torch.zeros{shape}"
        made += f".build_for_tokens({dataset.tokens}, {dataset.outputs}, {vectors})"
    return made, f"from fedloom.models import {builder}"


def _limits(origin: RunInfo, parcel: ExportedModel) -> str:
    lines = [
        "- It was fitted to the data named above and knows nothing beyond them. The "
        "scores say how it does on held-out data of the same client, not elsewhere.",
    ]
    if parcel.client is not None:
        lines.append(
            "- A personal model may remember its client's training data. Treat it with "
            "the same care as those."
        )
    if parcel.samples < 100:
        lines.append(
            f"- It rests on {parcel.samples} training samples; scores on so few "
            "samples are rough."
        )
    if origin.simulation.has_posterior and parcel.client is not None:
        lines.append(
            "- The method knows a distribution of models; this is its mean. `fedloom "
            "predict` averages predictions over draws, which is scored as `averaged`."
        )
    if origin.dataset.classes is not None:
        lines.append(
            "- Probabilities are calibrated only as far as the ECE above says."
        )
    return "\n".join(lines)


def _versions(origin: RunInfo) -> str:
    try:
        own = version("fedloom")
    except PackageNotFoundError:
        own = "a source tree that is not installed"
    now = {
        "fedloom": own,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    lines = ["| | trained with | written with |", "|---|---|---|"]
    for name, found in now.items():
        lines.append(f"| {name} | {origin.manifest.get(name, found)} | {found} |")
    if origin.manifest.get("created"):
        lines.append(f"| when | {origin.manifest['created']} | |")
    return "\n".join(lines)


def _kind(x: Tensor) -> str:
    if x.dtype == torch.uint8:
        return "bytes"
    return "floating numbers" if x.is_floating_point() else "whole numbers (tokens)"


def _list(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_LONG])
    more = len(names) - _LONG
    return f"{shown} and {more} more, all in model.toml" if more > 0 else shown


def plain(level: float | Tensor) -> Any:
    """A shift or scale as a number or a list of them."""
    return level.flatten().tolist() if isinstance(level, Tensor) else level


def _spell(level: float | Tensor) -> str:
    values = plain(level)
    if isinstance(values, list):
        return f"{_list(tuple(f'{v:g}' for v in values))} (one per channel)"
    return f"{values:g}"


def _code(level: float | Tensor, along: str) -> str:
    """A shift or scale as Python, in the shape that lies along channels."""
    if not isinstance(level, Tensor):
        return repr(level)
    shape = f".reshape(-1, {along})" if along else ""
    return f"torch.tensor({plain(level)}){shape}"
