"""A module of the user's own, by where it is: my_module.py:Net, package.module:Net."""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from fedloom.core.digests import hash_of
from fedloom.core.errors import ConfigError, ContractError, shown, unknown

_OUTPUTS = (
    *("outputs", "num_outputs", "n_outputs", "out_features", "output_size"),
    *("output_dim", "classes", "num_classes", "n_classes", "num_labels"),
)
_SHAPE = ("input_shape", "shape")
_FEATURES = ("in_features", "num_features", "n_features", "input_size", "input_dim")
_CHANNELS = ("in_channels", "num_channels", "n_channels")
_TOKENS = ("tokens", "num_tokens", "n_tokens", "vocab_size", "vocabulary")


_MAIN = ("input_shape", "in_features", "in_channels", "tokens", "outputs")
"""The names that messages list."""


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A class or a function of the user's own that gives an `nn.Module`.

    Parameters of its signature that say what goes in and comes out are given what the
    data have: input_shape; in_features; in_channels; outputs or num_classes; tokens or
    vocab_size; and what else these are usually called. All others keep their defaults,
    or are settings of [model].
    """

    name: str
    """FILE.py:NAME, or PACKAGE.MODULE:NAME; a file is relative to the working
    directory."""
    digest: str | None = None
    """Digest of the file, once it is known; another file is refused."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What is given to parameters of the signature, by name."""

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> ImportedModel:
        """The model that a section [model] names.

        Args:
            table: with `name`, perhaps `digest`, and settings.
            where: how messages call the place.
        """
        settings = dict(table)
        name, digest = settings.pop("name"), settings.pop("digest", None)
        place, _, attribute = name.rpartition(":")
        if not place or not attribute.isidentifier():
            raise ConfigError(
                f"{where}: expected a model as my_module.py:Net or package.module:Net, "
                f"found {shown(name)}."
            )
        if digest is not None and not isinstance(digest, str):
            raise ConfigError(
                f"{where}: digest is written by Fedloom; found {shown(digest)}. Leave "
                "it out."
            )
        return cls(name=name, digest=digest, settings=settings)

    def to_table(self) -> dict[str, Any]:
        """As a section [model] has it; `from_table` of it gives the same."""
        digest = {} if self.digest is None else {"digest": self.digest}
        return {"name": self.name, **digest, **self.settings}

    @property
    def _place(self) -> str:
        return self.name.rpartition(":")[0]

    @property
    def _attribute(self) -> str:
        return self.name.rpartition(":")[2]

    @property
    def file(self) -> Path:
        """The file that holds it.

        Raises:
            ConfigError: there is none.
        """
        if _is_file(self._place):
            path = Path(self._place).expanduser()
            if not path.is_file():
                raise ConfigError(
                    f"{self.name}: there is no file {path} in {Path.cwd()}. Correct "
                    "the path, or say where the module is now: --model "
                    f"PATH/{path.name}:{self._attribute}."
                )
            return path
        sys.path[:] = _with_working_directory(sys.path)
        try:
            spec = importlib.util.find_spec(self._place)
        except (ImportError, ValueError) as error:
            raise ConfigError(self._not_found(str(error))) from error
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            raise ConfigError(self._not_found(f"no module named {self._place!r}"))
        return Path(spec.origin)

    def _not_found(self, reason: str) -> str:
        path = f"{self._place.replace('.', '/')}.py"
        is_near = Path(path).is_file()
        meant = f" Did you mean {path}:{self._attribute}?" if is_near else ""
        return (
            f"{self.name}: {reason}.{meant} Give a file, my_module.py:Net, or a module "
            "that can be imported from here, package.module:Net."
        )

    def located(self) -> ImportedModel:
        """The same model with the digest of its file.

        Raises:
            ConfigError: there is no such file, or it is not the one that was recorded.
        """
        path = self.file
        digest = hash_of(path).extent.digest
        if self.digest not in (None, digest):
            raise ConfigError(
                f"{path}: the file was changed since this began (its digest is "
                f"{digest}, was {self.digest}), so that {self._attribute} may be "
                "another model. Put the file back as it was (the run's directory "
                "keeps a copy, model_source.py), or start anew in another directory."
            )
        return replace(self, digest=digest)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The module for one sample of this shape; the caller seeds the generator."""
        return self._make(_known(input_shape, outputs))

    def build_for_tokens(
        self, tokens: int, outputs: int, vectors: Tensor | None
    ) -> nn.Module:
        """The module for sequences of tokens; see `fedloom.models.TokenModel`."""
        return self._make(_known_of_tokens(tokens, outputs, vectors))

    def code(
        self, input_shape: tuple[int, ...], outputs: int, tokens: int | None
    ) -> tuple[str, str]:
        """How the module is made, and what must be imported for that, as Python."""
        known = (
            _known(input_shape, outputs)
            if tokens is None
            else _known_of_tokens(tokens, outputs, None)
        )
        found, call = self._find(self.file), self._attribute
        if not isinstance(found, nn.Module):
            call += f"({_spelt(_arguments(found, known, self.settings, self.name))})"
        module = Path(self._place).stem if _is_file(self._place) else self._place
        return call, f"from {module} import {self._attribute}"

    def _make(self, known: Mapping[str, Any]) -> nn.Module:
        self.located()
        path = self.file
        found = self._find(path)
        if isinstance(found, nn.Module):
            _refuse_settings(self.settings, (), self.name)
            return copy.deepcopy(found)
        if not callable(found):
            raise ConfigError(
                f"{self.name}: expected a class or a function that gives an nn.Module, "
                f"found {type(found).__name__}."
            )
        arguments = _arguments(found, known, self.settings, self.name)
        try:
            module = found(**arguments)
        except (Exception, SystemExit) as error:
            raise ContractError(
                f"{_place_of(error, path)}: {self._attribute}({_spelt(arguments)}) "
                f"failed: {_reason(error)}"
            ) from error
        return _checked(module, self.name)

    def _find(self, path: Path) -> Any:
        """What the name stands for in its module, which is imported."""
        try:
            module = _imported(self._place, path)
        except (Exception, SystemExit) as error:
            raise ContractError(
                f"{_place_of(error, path)}: cannot be imported: {_reason(error)}"
            ) from error
        if not hasattr(module, self._attribute):
            names = list(_defined(path)) or ["nothing"]
            raise ConfigError(f"{path}: {unknown('name', self._attribute, names)}")
        return getattr(module, self._attribute)


def _checked(module: Any, name: str) -> nn.Module:
    """What a class or a function gave, if it is a module."""
    if isinstance(module, nn.Module):
        return module
    is_class = isinstance(module, type)
    kind = f"the class {module.__name__}" if is_class else type(module).__name__
    raise ContractError(
        f"{name}: expected an nn.Module when it is called, found {kind}. Return an "
        "instance of a module."
    )


def _arguments(
    make: Callable[..., Any],
    known: Mapping[str, Any],
    settings: Mapping[str, Any],
    name: str,
) -> dict[str, Any]:
    """What a class or a function is called with: what the data say, and settings.

    Args:
        make: what is called.
        known: what the data say, by every name that a parameter may have for it.
        settings: values of parameters, by name.
        name: how messages call it.
    """
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return dict(settings)
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        _refuse_settings(settings, parameters, name)
    arguments = {n: known[n] for n in parameters if n in known} | dict(settings)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = {
        n: p
        for n, p in parameters.items()
        if p.default is p.empty and p.kind not in variable
    }
    missing = [n for n in required if n not in arguments]
    if missing:
        raise ConfigError(
            f"{name} needs {', '.join(missing)}, which the data do not say. Give it a "
            f"default or a value (--set model.{missing[0]}=VALUE, from Python lambda: "
            f"Net({missing[0]}=...)); or call it as what is known: "
            f"{', '.join(name for name in _MAIN if name in known)}."
        )
    for n, parameter in required.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"{name}: {n} cannot be given by name. Take away the / in the "
                "signature."
            )
    return arguments


def _refuse_settings(
    settings: Mapping[str, Any], parameters: Collection[str], name: str
) -> None:
    for setting in settings:
        if setting not in parameters:
            known = [*parameters] or ["none, since it takes no argument"]
            raise ConfigError(f"{name}: {unknown('setting', setting, known)}")


def _known(input_shape: tuple[int, ...], outputs: int) -> dict[str, Any]:
    """What the data say of a model for samples of a shape, by every usual name."""
    known: dict[str, Any] = dict.fromkeys(_OUTPUTS, outputs)
    known |= dict.fromkeys(_SHAPE, input_shape)
    known |= dict.fromkeys(_FEATURES, math.prod(input_shape))
    if len(input_shape) > 1:
        known |= dict.fromkeys(_CHANNELS, input_shape[0])
    return known


def _known_of_tokens(
    tokens: int, outputs: int, vectors: Tensor | None
) -> dict[str, Any]:
    """The same of a model for sequences of tokens."""
    known: dict[str, Any] = dict.fromkeys(_OUTPUTS, outputs)
    known |= dict.fromkeys(_TOKENS, tokens)
    return known if vectors is None else {**known, "vectors": vectors}


def is_imported(name: object) -> bool:
    """Whether the name of a model says where to import it from."""
    return isinstance(name, str) and (":" in name or name.endswith(".py"))


def missing_attribute(name: str) -> str:
    """What to say of a file that is named without what in it is meant."""
    path = Path(name)
    if not path.is_file():
        return f"{name}: there is no such file. Give a file and a class: {name}:Net."
    names = list(_defined(path))
    first = names[0] if names else "Net"
    listed = f" It defines {', '.join(names)}." if names else ""
    return f"{name}: say which class or function: {name}:{first}.{listed}"


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place or "\\" in place


def _with_working_directory(paths: list[str]) -> list[str]:
    """Where modules are looked for: last of all here, as `python -m` does first."""
    here = str(Path.cwd())
    return paths if here in paths or "" in paths else [*paths, here]


def _imported(place: str, path: Path) -> ModuleType:
    """The module, imported once for as long as its file stays as it is."""
    if not _is_file(place):
        return importlib.import_module(place)
    full = path.resolve()
    folder = str(full.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # for modules that lie beside it
    name = full.stem
    # Another process that is sent one of its objects looks for it under this name.
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != full:
        # Another module has that name: this one must not stand in its way.
        name = f"_{name}_{hash_of(full).extent.digest}"
    content = full, hash_of(full).extent.digest
    if content not in _IMPORTED:
        spec = importlib.util.spec_from_file_location(name, full)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        _IMPORTED[content] = module
    return _IMPORTED[content]


_IMPORTED: dict[tuple[Path, str], ModuleType] = {}
"""Modules that were imported from files, by file and digest."""


def _defined(path: Path) -> Iterator[str]:
    """Classes and functions that a file defines, without running it."""
    try:
        lines = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return
    kinds = (ast.ClassDef, ast.FunctionDef)
    yield from (line.name for line in lines if isinstance(line, kinds))


def _place_of(error: BaseException, path: Path) -> str:
    """Where in the user's file something went wrong: `my_module.py, line 7`."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{path}, line {error.lineno}"
    full = str(path.resolve())
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if str(Path(f.filename).resolve()) == full]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _reason(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg}."
    if isinstance(error, SystemExit):
        return (
            "it ends the program. Put whatever is no definition below `if __name__ == "
            "'__main__':`."
        )
    text = str(error).strip()
    return f"{type(error).__name__}: {text}{'' if text.endswith('.') else '.'}"


def _spelt(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in arguments.items())
