"""One method's trials as a study of Optuna, kept in a journal."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.streams import generator
from fedloom.tuning.result import TunedMethod
from fedloom.tuning.space import Range
from fedloom.tuning.trials import TrialResult, Trials

_PATIENCE = 5
"""Trials that must have worked before a range grows toward the best of them."""
_REFUSALS = 50
"""Combinations that a method itself refuses, for each that it takes, at most."""


def library() -> Any:
    """Optuna.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            # In a notebook without widgets its bars, which nobody asks for, complain.
            warnings.filterwarnings("ignore", "IProgress not found")
            import optuna
            import optuna.storages.journal
    except ImportError as error:
        raise ConfigError(
            f"tune needs a library that is not installed ({error}). Install it with: "
            "pip install 'fedloom[tune]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Study:
    """The trials of one method, those of an earlier call included.

    Args:
        job: what a trial is.
        journal: the file that keeps them; None keeps them in memory.
        asked: what the search is about; another search in the same file is refused.
        seed: of what is tried.
        tell: is told of every trial in one line.

    Raises:
        ConfigError: the journal holds another search of this method.
    """

    def __init__(
        self,
        job: Trials,
        journal: Path | None,
        asked: str,
        seed: int,
        tell: Callable[[str], None],
    ) -> None:
        self._optuna = optuna = library()
        self._states = optuna.trial.TrialState
        self._job, self._seed, self._tell = job, seed, tell
        storage = None
        if journal is not None:
            backend = optuna.storages.journal.JournalFileBackend(str(journal))
            storage = optuna.storages.JournalStorage(backend)
        self._study = optuna.create_study(
            storage=storage,
            study_name=job.arm,
            direction="minimize" if job.metric == "mse" else "maximize",
            load_if_exists=True,
        )
        if self._study.user_attrs.get("asked", asked) != asked:
            raise ConfigError(
                f"{journal}: holds a search of {job.arm} with other settings. Choose "
                "another --out, or start anew with --fresh."
            )
        self._study.set_user_attr("asked", asked)
        for stale in self._study.get_trials(states=(self._states.RUNNING,)):
            self._study.tell(stale.number, state=self._states.FAIL)

    def run(self, trials: int) -> TunedMethod:
        """Go on until so many trials were run, the first as the settings are.

        Raises:
            DataError: every one of them failed.
        """
        budget = trials if self._job.space else 1
        if not self._over():
            self._begin(budget)
        refused = 0
        while len(self._counted()) < budget:
            self._show()
            if refused > _REFUSALS * budget:
                self._tell(f"{self._job.arm}: nearly everything is refused; stopped")
                break
            refused += self._go_on(budget)
        return self._sum_up()

    def _show(self) -> None:
        """Say how far the search is; a trial that failed early counts like others."""
        if self._job.progress is not None:
            self._job.progress.at(len(self._counted()) * self._job.rounds)

    def _over(self) -> list[Any]:
        """Trials that are over; one that was cut short is as if it had never been."""
        states = (self._states.COMPLETE, self._states.PRUNED)
        return list(self._study.get_trials(deepcopy=False, states=states))

    def _counted(self) -> list[Any]:
        """Those that were run; combinations that a method refuses cost nothing."""
        return [t for t in self._over() if "refused" not in t.user_attrs]

    def _begin(self, budget: int) -> None:
        """Try the settings as they are, so that a search never ends below them."""
        settings = {r.name: r.centre for r in self._job.space}
        result = self._job.run(self._job.configs(settings))
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=self._state(result),
                value=result.score,
                params={r.name: r.drawn() for r in self._job.space},
                distributions=self._distributions(),
                user_attrs={"why": result.why},
            )
        )
        self._say(1, budget, result, settings)

    def _go_on(self, budget: int) -> int:
        """One more trial; 1 if the method refused the combination, else 0.

        One that diverges is pruned: it counts, and the sampler learns to keep away.
        """
        # A sampler of its own for each trial, so that it draws the same after a stop.
        draw = generator(self._seed, "tune", len(self._over())).integers(2**31)
        self._study.sampler = self._optuna.samplers.TPESampler(seed=int(draw))
        trial = self._study.ask(self._distributions())
        settings = self._settings(trial)
        try:
            configs = self._job.configs(settings)
        except ConfigError as error:
            trial.set_user_attr("refused", str(error))
            self._study.tell(trial, state=self._states.PRUNED)
            return 1
        result = self._job.run(configs)
        trial.set_user_attr("why", result.why)
        self._study.tell(trial, result.score, self._state(result))
        self._say(len(self._counted()), budget, result, settings)
        return 0

    def _distributions(self) -> dict[str, Any]:
        """Where the next trial is drawn: what the trials so far make of the ranges."""
        run = self._counted()
        ranges = [self._after(r, run) if run else r for r in self._job.space]
        return {r.name: _distribution(self._optuna, r) for r in ranges}

    def _after(self, r: Range, run: Sequence[Any]) -> Range:
        """A range as the trials that were run change it."""
        failed = [t.params[r.name] for t in run if t.state == self._states.PRUNED]
        if len(failed) == len(run):
            return r.below(failed) if r.is_rate else r
        best = self._study.best_trial.params[r.name]
        if run[0].state == self._states.PRUNED and r.is_rate:
            return r.near(best, failed)
        if len(run) - len(failed) < _PATIENCE:
            return r
        return r.around([t.params[r.name] for t in run], best)

    def _state(self, result: TrialResult) -> Any:
        return self._states.PRUNED if result.score is None else self._states.COMPLETE

    def _settings(self, trial: Any) -> dict[str, Any]:
        settings = {}
        for r in self._job.space:
            drawn_from = trial.distributions[r.name]
            if r.kind != "choice":
                r = replace(r, low=drawn_from.low, high=drawn_from.high)
            settings[r.name] = r.value(trial.params[r.name])
        return settings

    def _say(
        self, number: int, budget: int, result: TrialResult, settings: dict[str, Any]
    ) -> None:
        values = "  ".join(f"{name}={value}" for name, value in settings.items())
        score = result.written(self._job.metric)
        self._tell(f"{self._job.arm} {number}/{budget}  {score}  {values}".rstrip())

    def _sum_up(self) -> TunedMethod:
        arm, run = self._job.arm, self._counted()
        failed = [t for t in run if t.state == self._states.PRUNED]
        if len(failed) == len(run):
            raise DataError(
                f"{arm}: every one of {len(run)} trials failed; the last: "
                f"{failed[-1].user_attrs['why']} Give it more trials, which go on "
                "toward smaller learning rates, or begin with a smaller one (--space "
                "lr --set algorithm.lr=0.001)."
            )
        best = self._study.best_trial
        return TunedMethod(
            method=arm,
            settings=self._settings(best),
            score=best.value,
            before=run[0].value if run[0] not in failed else None,
            metric=self._job.metric,
            trials=len(run),
            failed=len(failed),
            algorithm=self._job.configs(self._settings(best))[0].algorithm,
        )


def _distribution(optuna: Any, r: Range) -> Any:
    make = optuna.distributions
    if r.kind == "choice":
        return make.CategoricalDistribution(r.choices)
    if r.kind == "count":
        return make.IntDistribution(int(r.low), int(r.high), log=r.low > 0)
    return make.FloatDistribution(r.low, r.high, log=r.kind == "log")
