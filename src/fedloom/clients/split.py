"""Which samples are dealt to clients, and what each client does with its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedloom.clients.counts import round_share, round_shares
from fedloom.clients.dealing import deal_groups, deal_rows
from fedloom.clients.drawing import draw_from_each, draw_samples, rank_in_class
from fedloom.clients.ragged import Ragged
from fedloom.core.client_streams import ClientStreams
from fedloom.core.errors import ConfigError, DataError
from fedloom.core.reprs import without_values
from fedloom.core.settings import Count, Interval, Share, Whole, check
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Split:
    """How much of a client's data is set aside; counts are rounded, a half up."""

    test: Share = 0.25
    """Share of a client's samples kept for testing. Not used if `fixed`, `test_column`
    or `folds` say what is tested."""
    validation: Share = 0.0
    """Share of what is left after testing, kept to choose rounds and settings."""
    stratified: bool = True
    """Whether samples are set aside from every class in proportion (classification
    only)."""
    fixed: bool = False
    """Whether clients test on exactly those samples that the source designates."""
    shared: bool = False
    """Whether, with `fixed`, the designated samples are dealt to nobody and each client
    tests on all of those whose classes (and subclasses) it trains on, as in pFedVEM."""
    per_class: Count | None = None
    """How many samples of each class, the first ones, are dealt to clients (limited
    data); designated test samples do not count if `fixed`."""
    most: Count | None = None
    """Most training samples of a client. Those beyond are not used at all; validation
    and test stay as they are."""
    test_column: str | None = None
    """Column that says what each sample is for: train, validation or test; or 1 for
    testing and 0 for not. Without validation in it, `validation` is drawn from the
    rest."""
    time: str | None = None
    """Column with the time of each sample: the last part of each client is its test,
    the part before it its validation."""
    group: str | None = None
    """Column with the group of each sample, such as a visit or a recording: samples of
    one group of a client are never torn apart, and count as one piece of news where it
    is asked how sure a score is."""
    folds: Annotated[int, Interval(least=2)] | None = None
    """Number of folds: `test` is then one of so many parts of each client, and over all
    of them every sample is tested once."""
    fold: Whole | None = None
    """Which of the folds is the test, from 0; validation is taken from the next one.
    They do not depend on the seed, so that those of several seeds fit together."""

    def __post_init__(self) -> None:
        check(self)
        ways = {
            "fixed": self.fixed,
            "test_column": self.test_column is not None,
            "time": self.time is not None,
            "folds": self.folds is not None,
        }
        chosen = [way for way, is_set in ways.items() if is_set]
        if len(chosen) > 1:
            raise ConfigError(
                f"Split: {' and '.join(chosen)} are set, and each says by itself which "
                "samples are for testing. Keep one of them."
            )
        if (self.fold is None) != (self.folds is None) or (
            self.fold is not None and self.folds is not None and self.fold >= self.folds
        ):
            raise ConfigError(
                "Split: fold and folds go together, the first from 0 to the second "
                f"less 1; found fold {self.fold} and folds {self.folds}."
            )
        if self.shared and not self.fixed:
            raise ConfigError(
                "Split: shared is true, so fixed must be true as well: only samples "
                "that the source designates for testing can be shared."
            )

    @property
    def columns(self) -> dict[str, str]:
        """The columns that the split goes by, after the settings that name them."""
        settings = ("test_column", "time", "group")
        named = {f"split.{setting}": getattr(self, setting) for setting in settings}
        return {setting: name for setting, name in named.items() if name is not None}

    @property
    def is_random(self) -> bool:
        """Whether the samples for testing are drawn, and could be drawn again."""
        return not (self.fixed or self.test_column or self.time)

    def groups_of(self, dataset: Dataset) -> Indices | None:
        """(N,) number of each sample's group; None if the split has no groups.

        The same name at two owners of samples is two groups: visits are often counted
        from 1 for every patient. Numbers depend on the dataset alone.
        """
        if self.group is None:
            return None
        groups = _ranks(dataset, self.group, "split.group")
        if dataset.owner is None:
            return groups
        owners = np.unique(dataset.owner, return_inverse=True)[1]
        pairs = owners * (groups.max(initial=0) + 1) + groups
        numbers: Indices = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
        return numbers

    def pool(self, dataset: Dataset) -> Indices:
        """The samples that a partition deals to clients, in ascending order.

        Raises:
            ConfigError: `per_class` is set for data without classes.
            DataError: The source designates no test samples although `fixed` asks for
                them, or only test samples.
        """
        is_test = self._designated(dataset)
        is_dealt = ~is_test if self.shared else np.ones_like(is_test)
        if self.per_class is not None:
            if dataset.classes is None:
                raise ConfigError(
                    f"split: per_class is set, but {dataset.name} is a regression and "
                    "has no classes. Leave it out."
                )
            candidates = np.flatnonzero(~is_test)
            labels = dataset.targets.numpy()[candidates]
            is_dealt[candidates[rank_in_class(labels) >= self.per_class]] = False
        dealt = np.flatnonzero(is_dealt)
        if len(dealt) == 0:
            raise DataError(
                f"{dataset.name} designates all samples for testing; none is left to "
                "train on. Set fixed = false."
            )
        return dealt

    def apply(
        self,
        dataset: Dataset,
        members: Ragged,
        names: Sequence[str],
        seed: int,
    ) -> tuple[Ragged, Ragged, Ragged]:
        """Split every client's samples; each list comes out sorted.

        Args:
            dataset: What the indices point into.
            members: The samples of each client.
            names: What messages call the clients.
            seed: A client's split depends on (seed, client) alone; folds do on the
                client.

        Returns:
            Training, validation and test samples of every client.

        Raises:
            DataError: A client is left without a training sample, or the source
                designates no test samples although `fixed` asks for them.
        """
        marks = self._marks(dataset)
        # Folds fit together only if all are drawn from the same seed.
        seed = 0 if self.folds else seed
        held = members.ascending()
        is_plain = marks.time is None and marks.group is None
        if is_plain and not (self.shared or self.folds):
            alone, together = _by_size(held.sizes)
        else:
            alone, together = np.arange(len(held)), np.arange(0)
        lists = [self._apply_alone(marks, n, held[n], seed) for n in alone]
        at_once = self._apply_together(marks, held.only(together), together, seed)
        rows = np.argsort(np.concatenate([together, alone]))
        train, validation, test = (
            part.followed_by(Ragged.of([own[n] for own in lists])).only(rows)
            for n, part in enumerate(at_once)
        )
        empty = np.flatnonzero(train.sizes == 0)
        if len(empty):
            first = int(empty[0])
            total = len(held[first])
            advice = "Join it with others, or leave it out (--set partition.least=2)."
            if total > 1:
                advice = "Lower the shares, or give clients a larger minimum."
            raise DataError(
                f"client {names[first]} has {total} sample{'s' * (total != 1)} and "
                f"none is left for training: {len(test[first])} for testing, "
                f"{len(validation[first])} for validation. {advice}"
            )
        return train, validation, test

    def _apply_alone(
        self, marks: _Marks, client: int, held: Indices, seed: int
    ) -> tuple[Indices, Indices, Indices]:
        """One client's lists, from its own generator."""
        draw = generator(seed, "split", client)
        train, validation, test = self._divide(marks, held, draw)
        if self.shared:
            tests = marks.tests
            test = tests[np.isin(marks.kinds[tests], np.unique(marks.kinds[train]))]
        if self.most is not None and len(train) > self.most:
            _, train = draw_samples(marks.labels, train, self.most, draw)
        return np.sort(train), np.sort(validation), np.sort(test)

    def _apply_together(
        self, marks: _Marks, held: Ragged, clients: Indices, seed: int
    ) -> tuple[Ragged, Ragged, Ragged]:
        """The same lists for many clients at once, without times, groups and folds.

        Args:
            marks: what the split goes by.
            held: the samples of each of these clients, ascending.
            clients: their numbers.
            seed: as for `apply`.
        """
        streams = ClientStreams(seed, "split", clients)
        part = None if marks.part is None else marks.part[held.indices]
        if part is None:
            counts = round_shares(self.test, held.sizes)
            rest, test = draw_from_each(marks.labels, held, counts, streams)
        else:
            rest, test = held.only_where(part != _TEST), held.only_where(part == _TEST)
        if part is not None and marks.has_validation:
            train = held.only_where(part == _TRAIN)
            validation = held.only_where(part == _VALIDATION)
        else:
            counts = round_shares(self.validation, rest.sizes)
            train, validation = draw_from_each(marks.labels, rest, counts, streams)
        if self.most is not None:
            is_more = train.sizes > self.most
            counts = np.where(is_more, self.most, 0)
            kept, drawn = draw_from_each(marks.labels, train, counts, streams)
            rows = np.arange(len(train)) + np.where(is_more, len(train), 0)
            train = kept.followed_by(drawn).only(rows)
        return train, validation, test

    def _designated(self, dataset: Dataset) -> NDArray[np.bool_]:
        """(N,) whether the source's word makes it a test sample."""
        if not self.fixed:
            return np.zeros(len(dataset), dtype=np.bool_)
        if dataset.fixed_test is None:
            raise DataError(
                f"{dataset.name} does not designate test samples. Set fixed = false; "
                "then a share of each client's samples is kept for testing."
            )
        return dataset.fixed_test

    def _marks(self, dataset: Dataset) -> _Marks:
        """All that the split goes by, of every sample."""
        is_stratified = self.stratified and dataset.classes is not None
        part: Indices | None = None
        has_validation = False
        if self.fixed:
            part = np.where(self._designated(dataset), _TEST, _TRAIN)
        if self.test_column is not None:
            values = dataset.tag(self.test_column, "split.test_column")
            where = f"{dataset.name}: column {self.test_column!r} (split.test_column)"
            part = _read_parts(values, where)
            has_validation = bool((part == _VALIDATION).any())
        return _Marks(
            dataset.targets.numpy() if is_stratified else None,
            part,
            has_validation,
            None if self.time is None else _ranks(dataset, self.time, "split.time"),
            None if self.group is None else _ranks(dataset, self.group, "split.group"),
            _kinds(dataset),
            np.flatnonzero(self._designated(dataset)),
        )

    def _divide(
        self, marks: _Marks, held: Indices, draw: np.random.Generator
    ) -> tuple[Indices, Indices, Indices]:
        """One client's samples for training, validation and test."""
        if self.folds is not None and self.fold is not None:
            return self._divide_fold(marks, held, self.folds, self.fold, draw)
        if marks.part is not None:
            part = marks.part[held]
            rest, test = held[part != _TEST], held[part == _TEST]
        else:
            count = round_share(self.test, len(held))
            rest, test = marks.take(held, count, draw)
        if marks.part is not None and marks.has_validation:
            is_train = marks.part[rest] == _TRAIN
            return rest[is_train], rest[~is_train], test
        count = round_share(self.validation, len(rest))
        train, validation = marks.take(rest, count, draw)
        if marks.group is not None and len(train) == 0:
            return rest, validation[:0], test  # the only group that is left
        return train, validation, test

    def _divide_fold(
        self,
        marks: _Marks,
        held: Indices,
        folds: int,
        fold: int,
        draw: np.random.Generator,
    ) -> tuple[Indices, Indices, Indices]:
        """The same where the test is one of several folds."""
        held = np.sort(held)
        if marks.group is None:
            place = deal_rows(marks.labels_of(held), folds, draw)
        else:
            shares = np.ones(folds)
            place = deal_groups(marks.group[held], marks.labels_of(held), shares, draw)
        rest, test = held[place != fold], held[place == fold]
        if len(rest) == 0:
            # A client of one sample or one group has nothing else to train on.
            return test, rest, rest
        following = held[place == (fold + 1) % folds]
        wanted = round_share(self.validation, len(rest))
        count = min(wanted, len(following), len(rest) - 1)
        if count < len(following):
            _, following = marks.take(following, count, draw)
        train = np.setdiff1d(rest, following)
        if len(train) == 0:
            return rest, following[:0], test
        return train, following, test


_TRAIN, _VALIDATION, _TEST = range(3)


@without_values
@dataclass(frozen=True, eq=False)
class _Marks:
    """What a split goes by, one entry per sample of the dataset."""

    labels: Indices | None
    """Classes to set samples aside from in proportion, if that is to be done."""
    part: Indices | None
    """What the data say that a sample is for."""
    has_validation: bool
    """Whether `part` says what is for validation."""
    time: Indices | None
    """Rank of the sample's time."""
    group: Indices | None
    """Number of the sample's group."""
    kinds: Indices
    """Number of the sample's class and subclass."""
    tests: Indices
    """The samples that the source designates for testing, if these are used."""

    def labels_of(self, held: Indices) -> Indices:
        """Classes of some samples; all 0 if they do not count."""
        return np.zeros_like(held) if self.labels is None else self.labels[held]

    def take(
        self, held: Indices, count: int, draw: np.random.Generator
    ) -> tuple[Indices, Indices]:
        """What stays and what is taken, of one client's samples."""
        if count == 0:
            return held, held[:0]
        if self.time is not None:
            group = held if self.group is None else self.group[held]
            return _take_last(held, self.time[held], group, count)
        if self.group is None:
            return draw_samples(self.labels, held, count, draw)
        held = np.sort(held)
        shares = np.array([len(held) - count, count])
        place = deal_groups(self.group[held], self.labels_of(held), shares, draw)
        return held[place == 0], held[place == 1]


def _by_size(sizes: Indices) -> tuple[Indices, Indices]:
    """Clients to divide one by one, and those to divide together; both ascending.

    A client alone takes about as long as one step of all others, and these take as many
    steps as the largest of them has samples. So the largest clients go alone, as many
    as is quickest.
    """
    order = np.argsort(-sizes, kind="stable")
    cost = np.arange(len(sizes) + 1) + np.append(sizes[order], 0)
    alone = int(cost.argmin())
    return np.sort(order[:alone]), np.sort(order[alone:])


def _take_last(
    held: Indices, time: Indices, group: Indices, count: int
) -> tuple[Indices, Indices]:
    """The last samples, about `count` of them; a group goes by its last sample."""
    names, code = np.unique(group, return_inverse=True)
    last = np.zeros(len(names), dtype=np.int64)
    place = np.empty(len(held), dtype=np.int64)
    place[np.lexsort((held, time))] = np.arange(len(held))
    np.maximum.at(last, code, place)
    latest_first = np.argsort(-last)
    taken_so_far = np.cumsum(np.bincount(code)[latest_first])
    nearest = int(np.abs(taken_so_far - count).argmin()) + 1
    # The first group stays, so that there is something to train on.
    is_taken = np.isin(code, latest_first[: min(nearest, len(names) - 1)])
    return held[~is_taken], held[is_taken]


def _ranks(dataset: Dataset, name: str, setting: str) -> Indices:
    """Each sample's place among the different values of a column."""
    values = dataset.tag(name, setting)
    try:
        ranks: Indices = np.unique(values, return_inverse=True)[1].astype(np.int64)
    except TypeError:
        raise DataError(
            f"{dataset.name}: column {name!r} ({setting}) mixes types that cannot be "
            "ordered. Make all of them numbers, all dates or all text."
        ) from None
    return ranks


def _read_parts(values: NDArray[Any], where: str) -> Indices:
    """What each sample is for, from words or from 0 and 1."""
    words = np.char.lower(np.char.strip(values.astype(np.str_)))
    meanings = {"train": _TRAIN, "validation": _VALIDATION, "test": _TEST}
    if values.dtype.kind in "biuf":
        meanings = {"0": _TRAIN, "1": _TEST, "0.0": _TRAIN, "1.0": _TEST}
        meanings |= {"false": _TRAIN, "true": _TEST}
    strange = sorted({*words.tolist()} - meanings.keys())
    if strange:
        raise DataError(
            f"{where}: expected train, validation or test, or else 0 and 1; found "
            f"{', '.join(strange[:5])}. Rename them."
        )
    part: Indices = np.array([meanings[word] for word in words.tolist()])
    return part


def _kinds(dataset: Dataset) -> Indices:
    """(N,) one number for each pair of class and subclass; all alike without any."""
    if dataset.classes is None:
        return np.zeros(len(dataset), dtype=np.int64)
    kinds: Indices = dataset.targets.numpy()
    if dataset.subclass is None:
        return kinds
    finer = dataset.subclass - dataset.subclass.min()
    pairs: Indices = kinds * (finer.max() + 1) + finer
    return pairs
