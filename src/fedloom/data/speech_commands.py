"""Google's Speech Commands: single words by thousands of speakers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.errors import DataError
from fedloom.core.settings import Positive
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset
from fedloom.data.fetch import fetch
from fedloom.data.locations import Absent, on_hub_instead
from fedloom.data.spectrogram import SCALE, SHIFT, SpectrogramSource
from fedloom.data.wav import decode_wav, read_wav, read_waves, stack_sounds

COMMANDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
UNKNOWN, SILENCE = "unknown", "silence"
_LISTS = {"validation": "validation_list.txt", "test": "testing_list.txt"}
_NOISE = "_background_noise_"
_HUB, _REVISION = "google/speech_commands", "refs/convert/parquet"
_HUB_SILENCE, _RATE = "_silence_", 16_000
_BLOCK = 1024
"""Files whose sound is in memory at once."""


@dataclass(frozen=True, kw_only=True)
class SpeechCommands(SpectrogramSource):
    """Spoken words as log-mel spectrograms; every speaker is a client.

    The lists of the source divide speakers, not recordings: with speakers as clients
    take `split.fixed = false`, or a client has only training or only test data. The tag
    `part` says train, validation or test as the lists do.
    """

    licence = "CC BY 4.0"
    folder_name, file_names = "speech-commands", tuple(_LISTS.values())
    file_hint = "They lie beside the folders of words in the Speech Commands archive."

    task: Literal["words", "commands"] = "words"
    """What is to be told apart: all words that have a folder (35 in version 2), or
    twelve classes: ten commands, `unknown` and `silence`, each of these two as often as
    a command on average."""
    length_s: Positive = 1.0
    """Seconds of a sample; shorter recordings are padded, longer ones cropped."""

    @property
    def depends_on_seed(self) -> bool:
        """Only commands do, of which unknown words and silences are drawn."""
        return self.task == "commands"

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `speech-commands/` in the data directory.

        The seed chooses unknown words and silences, and whose a silence is.

        Raises:
            DataError: The folder, a list or a word is missing, or a file is broken.
        """
        try:
            folder = self.find(data_dir)
        except Absent as absent:
            return self._from_hub(absent, data_dir)
        paths = sorted(
            path
            for path in folder.glob("*/*.wav")
            if not path.parent.name.startswith("_")
        )
        if not paths:
            raise DataError(
                f"{folder}: no .wav file in any folder of a word. Unpack the archive "
                "here: folders such as yes/ with files such as 0a7c2a8d_nohash_0.wav."
            )
        names = np.array([path.parent.name for path in paths])
        if self.task == "words":
            classes = tuple(sorted(set(names.tolist())))
        else:
            paths, names = _choose_commands(folder, paths, names, seed)
            classes = (*COMMANDS, UNKNOWN, SILENCE)
        speakers = np.array([_speaker(path) for path in paths])
        parts = _parts(folder, paths)
        inputs, rate = self._transform(paths)
        if self.task == "commands":
            draw = generator(seed, "silence")
            count = round(int(np.isin(names, COMMANDS).sum()) / len(COMMANDS))
            waves = _silences(folder, count, round(self.length_s * rate), rate, draw)
            # Nobody said it; so that clients and parts keep their proportions, each
            # silence goes with the speaker of a recording drawn at random.
            hosts = draw.integers(len(paths), size=count)
            inputs = torch.cat([inputs, self.to_bytes(waves, rate)])
            names = np.concatenate([names, np.repeat(SILENCE, count)])
            speakers = np.concatenate([speakers, speakers[hosts]])
            parts = np.concatenate([parts, parts[hosts]])
        return _assemble(inputs, names, classes, speakers, parts)

    def _from_hub(self, absent: Absent, data_dir: Path | None) -> Dataset:
        """All words from the hub's copy of version 2, without its silences.

        Raises:
            DataError: The hub does not give them either; says where the files belong.
        """
        if self.task == "commands":
            raise DataError(
                f"{absent} The hub's copy has only task = words: silences are made of "
                "the archive's noise."
            )
        spectra, labels, speakers, parts = [], [], [], []
        names: tuple[str, ...] = ()
        with on_hub_instead(absent):
            splits, origin = fetch(_HUB, data_dir, config="v0.02", revision=_REVISION)
            for part, table in splits.items():
                names = tuple(table.features["label"].names)
                for rows in _blocks(table):
                    spectra.append(self._decode(rows["audio"]))
                    labels += rows["label"]
                    speakers += rows["speaker_id"]
                    parts += [part] * len(rows["label"])
        words = np.array(names)[labels]
        is_word = words != _HUB_SILENCE
        return _assemble(
            torch.cat(spectra)[torch.from_numpy(is_word)],
            words[is_word],
            tuple(name for name in names if name != _HUB_SILENCE),
            np.array(speakers)[is_word],
            np.array(parts)[is_word],
            origin,
        )

    def _decode(self, sounds: list[dict[str, Any]]) -> Tensor:
        """Spectrograms of WAV files in a table; all at 16 kHz, as published."""
        names = [f"{_HUB}: {sound['path']}" for sound in sounds]
        decoded = [
            decode_wav(io.BytesIO(sound["bytes"]), name)
            for sound, name in zip(sounds, names, strict=True)
        ]
        waves = stack_sounds(decoded, names, self.length_s, _RATE)
        return self.to_bytes(waves, _RATE)

    def _transform(self, paths: list[Path]) -> tuple[Tensor, int]:
        """All spectrograms, block by block: the sounds would fill gigabytes."""
        parts, rate = [], None
        for start in range(0, len(paths), _BLOCK):
            waves, rate = read_waves(paths[start : start + _BLOCK], self.length_s, rate)
            parts.append(self.to_bytes(waves, rate))
        assert rate is not None
        return torch.cat(parts), rate


def _assemble(
    inputs: Tensor,
    words: NDArray[np.str_],
    classes: tuple[str, ...],
    speakers: NDArray[np.str_],
    parts: NDArray[np.str_],
    origin: str | None = None,
) -> Dataset:
    label = {name: number for number, name in enumerate(classes)}
    return Dataset(
        name="speech-commands",
        inputs=(inputs,),
        targets=torch.tensor([label[word] for word in words.tolist()]),
        classes=len(classes),
        owner=speakers,
        shift=SHIFT,
        scale=SCALE,
        fixed_test=parts == "test",
        class_names=classes,
        groups={"part": parts},
        origin=origin,
    )


def _blocks(table: Any) -> Iterator[dict[str, list[Any]]]:
    """A table of the hub block by block, its sounds as the bytes of their files."""
    import datasets

    raw = table.cast_column("audio", datasets.Audio(decode=False))
    for start in range(0, len(raw), _BLOCK):
        yield raw[start : start + _BLOCK]


def _speaker(path: Path) -> str:
    speaker, mark, _ = path.stem.partition("_nohash_")
    if not mark:
        raise DataError(
            f"{path}: expected a name such as 0a7c2a8d_nohash_0.wav, whose first part "
            "is the speaker. Rename or remove the file."
        )
    return speaker


def _parts(folder: Path, paths: list[Path]) -> NDArray[np.str_]:
    """train, validation or test of every file, as the lists say."""
    parts = {f"{path.parent.name}/{path.name}": "train" for path in paths}
    for part, name in _LISTS.items():
        for line in (folder / name).read_text(encoding="utf-8").split():
            if not (folder / line).is_file():
                raise DataError(
                    f"{folder / name}: names {line}, which is not there. Unpack the "
                    "archive again, or remove the line."
                )
            if line in parts:
                parts[line] = part
    return np.array(list(parts.values()))


def _choose_commands(
    folder: Path, paths: list[Path], words: NDArray[np.str_], seed: int
) -> tuple[list[Path], NDArray[np.str_]]:
    """The ten commands, and as many other words as one command has on average."""
    missing = [word for word in COMMANDS if word not in words]
    if missing:
        raise DataError(
            f"{folder}: no recordings of {', '.join(missing)}. The task `commands` "
            "needs all ten commands; unpack the whole archive or take task = words."
        )
    is_command = np.isin(words, COMMANDS)
    others = np.flatnonzero(~is_command)
    order = generator(seed, "unknown words").permutation(others)
    some = order[: round(int(is_command.sum()) / len(COMMANDS))]
    kept = np.sort(np.concatenate([np.flatnonzero(is_command), some]))
    names = np.where(is_command, words, UNKNOWN)[kept]
    return [paths[row] for row in kept], names


def _silences(
    folder: Path, count: int, length: int, rate: int, draw: np.random.Generator
) -> Tensor:
    """Pieces of the background recordings at a random loudness."""
    noises = []
    for path in sorted((folder / _NOISE).glob("*.wav")):
        noise = read_wav(path)
        if noise.rate != rate or len(noise.samples) < length:
            raise DataError(
                f"{path}: expected at least {length} samples at {rate} per second, "
                f"found {len(noise.samples)} at {noise.rate}. Resample or remove it."
            )
        noises.append(noise.samples)
    if not noises:
        raise DataError(
            f"{folder / _NOISE}: no .wav file. The class `{SILENCE}` is made of the "
            "background recordings of the archive; unpack them here."
        )
    waves = torch.zeros(count, length)
    for row in waves:
        sound = noises[int(draw.integers(len(noises)))]
        start = int(draw.integers(len(sound) - length, endpoint=True))
        row[:] = torch.from_numpy(sound[start : start + length]) * float(draw.random())
    return waves
