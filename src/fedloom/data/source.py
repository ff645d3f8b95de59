"""What every source of data is: settings that know how to load a dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from fedloom.core.settings import check
from fedloom.data.dataset import Dataset
from fedloom.data.locations import folder_of


class Source(ABC):
    """Settings of one source of data, which know how to load it.

    A source is a frozen dataclass whose fields are checked against their annotations.
    """

    folder_name: ClassVar[str] = ""
    """Name of its folder in the data directory; empty if it needs no files."""
    file_names: ClassVar[tuple[str, ...]] = ()
    """What must lie in that folder."""
    file_hint: ClassVar[str] = ""
    """A sentence that says where the files come from."""

    needs_clients: ClassVar[bool] = False
    """Whether samples that name no clients are refused unless a partition is named: a
    user's own data are not divided by guess."""
    clients_advice: ClassVar[str] = ""
    """How to say whose each sample is, for the message that refuses them."""

    licence: ClassVar[str] = ""
    """The terms of use, in the words of docs/data.md; empty if the data are drawn, or
    the user's own."""

    @property
    def depends_on_seed(self) -> bool:
        """Whether samples, clients or test marks differ from seed to seed.

        If not, a dataset that was loaded once serves every seed.
        """
        return False

    def __post_init__(self) -> None:
        check(self)

    def with_tags(self, names: Mapping[str, str]) -> Source:
        """The same source, which reads these columns as tags; most have their own.

        Args:
            names: The column that each setting names, such as that of `split.time`.
        """
        return self

    def find(self, data_dir: Path | None) -> Path:
        """The folder of the files that it needs, all of which are there; reads none.

        Raises:
            Absent: There is no data directory, or none of the files lies there.
            DataError: Some of the files are missing.
        """
        return folder_of(
            self.folder_name, self.file_names, data_dir, hint=self.file_hint
        )

    @abstractmethod
    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """The dataset, from local files or drawn from the seed.

        Raises:
            DataError: Files are missing, broken, or not what the settings name.
        """
