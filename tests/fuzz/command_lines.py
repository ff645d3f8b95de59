"""Command lines: right ones with something odd in them, and odd ones."""

from __future__ import annotations

import io
import shutil
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from odd_values import CHOICES, NUMBERS, SECTIONS, TEXTS, pick
from rounds import BASE
from worker import Note

from fedloom import cli
from fedloom.comparison import parse_comparison, run_comparison
from fedloom.config import parse, to_toml
from fedloom.core.errors import FedloomError
from fedloom.experiments import EXPERIMENTS
from fedloom.reports.live import Server
from fedloom.runs import run_config

SMALL = [
    *("--set", "split.per_class=8", "--set", "engine.compile=off"),
    *("--set", "engine.device=cpu", "--set", "algorithm.steps=1"),
    *("--partition", "iid", "--set", "partition.clients=3", "--model", "mlr"),
    *("--rounds", "1"),
]
"""Whatever trains is this small, unless another option says otherwise."""

COMMANDS: dict[str, tuple[str, str]] = {
    "run": (
        "run.toml",
        "--algorithm --data --seed --out --fresh --compile --device --track "
        "--data-dir --set --partition --model --gain",
    ),
    "compare": (
        "both.toml --seeds 1 --jobs 1",
        "--data --seeds --out --fresh --jobs --no-yardsticks --tuned --track "
        "--data-dir --set --partition --model",
    ),
    "resume": ("run", "--data-dir --jobs --track"),
    "data": ("digits", "--partition --seed --out --data-dir --set"),
    "report": ("both", "--out --format"),
    "view": ("both", "--port --browser --no-browser"),
    "list": ("", "--model --shape --outputs --clients"),
    "describe": ("ditto", ""),
    "tune": ("fedavg --trials 1", "--seeds --seed --space --out --fresh --set"),
    "export": (
        "run --out home --client 0",
        "--out --client --all --shared --fresh --data-dir",
    ),
    "predict": ("run x.npz --client 0", "--client --out --target --data-dir"),
    "personalize": (
        "run --data x.npz --target y",
        "--data --client-column --target --out --test --rounds --team --fresh",
    ),
    "reproduce": (
        "digits",
        "--out --seed --jobs --scale --results --stop-after --list",
    ),
}
"""Every command, but for `bench`, which only measures: a right use, and its options."""

FLAGS = (
    *("--fresh", "--all", "--shared", "--gain", "--browser", "--no-browser"),
    *("--no-yardsticks", "--list"),
)
"""Options that take no value."""

NAMES = [name for registry in CHOICES.values() for name in registry]


class Trial:
    """`fedloom` in this process, which has no terminal."""

    def __init__(self, folder: Path) -> None:
        Server.serve_forever = lambda *_, **__: None  # type: ignore[method-assign]
        webbrowser.open = lambda *_, **__: True
        for name in EXPERIMENTS:
            EXPERIMENTS[name] = lambda *_, **__: "done"  # type: ignore[assignment]
        run_config(parse(BASE), out=folder / "run")
        tables = {k: v for k, v in BASE.items() if k != "algorithm"}
        tables |= {"methods": ["fedavg", "local"], "seeds": 2}
        run_comparison(parse_comparison(tables), folder / "both", jobs=1)
        (folder / "run.toml").write_text(to_toml(BASE))
        (folder / "both.toml").write_text(to_toml(tables))
        rows = [f"{n % 3},{n},{n * n % 7},{n % 2}" for n in range(40)]
        (folder / "table.csv").write_text("\n".join(["who,a,b,y", *rows]))
        inputs = np.zeros((5, 1, 8, 8), np.uint8)
        np.savez(folder / "x.npz", x=inputs, y=np.arange(5))
        self.common = folder
        self.paths = [path.name for path in folder.iterdir()]

    def attempt(self, draw: np.random.Generator, folder: Path, note: Note) -> None:
        """Nothing but an exit code may come of it."""
        arguments = self._arguments(draw)
        note(f"fedloom {arguments!r}")
        for name in {*arguments} & {*self.paths}:
            path = self.common / name
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, folder / name)
        code: object = None
        with redirected() as errors:
            sys.argv = ["fedloom", *arguments]
            try:
                cli.main()
            except SystemExit as end:
                code = end.code
            sys.stdout.flush()
            sys.stderr.flush()
            said = errors.getvalue().decode()
        assert code in (0, 1, 2, 3, 4, 5, 6, None), code
        assert "Traceback" not in said
        if code:
            raise FedloomError(said or "nothing was said")

    def _arguments(self, draw: np.random.Generator) -> list[str]:
        command = pick(draw, list(COMMANDS))
        right, options = COMMANDS[command]
        arguments = right.split()
        if command in ("run", "compare", "tune"):
            arguments += SMALL
        if arguments and draw.random() < 0.3:
            at = int(draw.integers(len(arguments)))
            arguments[at] = self._value(draw, arguments[at - 1])
        for _ in range(int(draw.integers(0, 4))):
            option = pick(draw, options.split() or ["--help"])
            arguments.append(option)
            if option not in FLAGS or draw.random() < 0.05:
                arguments.append(self._value(draw, option))
        if draw.random() < 0.02:
            arguments = [self._value(draw, "") for _ in arguments]
        if draw.random() < 0.02:
            command = pick(draw, ["", "x", "--help", "--version", "bench"])
        return [argument.replace("\0", "0") for argument in (command, *arguments)]

    def _value(self, draw: np.random.Generator, option: str) -> str:
        numbers = [str(number) for number in NUMBERS if abs(number) < 10**1000]
        if option in ("--seeds", "--trials", "--rounds", "--jobs"):
            # Large ones are long runs, not errors.
            return pick(draw, ["1", "2", "0", "-1", "x", "", "1.5", "nan", "10" * 200])
        if option == "--set":
            section = pick(draw, [*CHOICES, *TEXTS[:20], *SECTIONS])
            key = pick(draw, ["lr", "name", "pull", "clients", "rate", *TEXTS[:20]])
            assigned = pick(draw, ["=", "=", "=", "", ".x="])
            return f"{section}.{key}{assigned}{pick(draw, [*numbers, *TEXTS])}"
        if option == "--out":
            return pick(draw, ["new", "new/er", *TEXTS])
        return pick(draw, [*numbers, *TEXTS, *self.paths, *NAMES])


@contextmanager
def redirected() -> Iterator[io.BytesIO]:
    """Standard output and error as Python has them where both go to files."""
    before = sys.stdout, sys.stderr
    errors = io.BytesIO()
    sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    sys.stderr = io.TextIOWrapper(errors, encoding="utf-8", errors="backslashreplace")
    try:
        yield errors
    finally:
        sys.stdout, sys.stderr = before
