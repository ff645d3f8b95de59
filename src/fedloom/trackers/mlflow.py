"""MLflow: one MLflow run per run, in whatever store MLflow is set up for."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from fedloom.core.files import atomic_write, write_text
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round
from fedloom.trackers.extra import missing
from fedloom.trackers.tracker import About, Ending

_QUIET = {
    # Nothing is told to anybody but the store that the user chose.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # A server that does not answer must not hold up a run for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_LONGEST = 500
"""Characters of a setting or tag that every store takes."""
_BATCH = 100
"""Settings in one call, MLflow's own limit."""


class MLflow:
    """Settings, manifest and every number of every round.

    Args:
        uri: the store; MLflow's own choice if not given, which is MLFLOW_TRACKING_URI
            or a file in the working directory.
        experiment: the experiment that the run belongs to.
    """

    name = "mlflow"

    def __init__(self, uri: str | None = None, *, experiment: str = "fedloom") -> None:
        for variable, value in _QUIET.items():
            os.environ.setdefault(variable, value)
        try:
            import mlflow.entities
        except ImportError as error:
            raise missing(self.name, error) from error
        self._mlflow: Any = mlflow
        self._uri = uri
        self._experiment = experiment
        self._written = -1
        """The last round that the store already has."""

    def start(self, about: About) -> None:
        """Make a run in the store, or go on with the one that this run had."""
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        note: Path | None = None
        if about.path is not None:
            directory = RunDirectory(about.path)
            directory.claim_tracked(self.name)
            note = directory.mlflow
        if about.first and note is not None and note.is_file():
            self._run = json.loads(note.read_text(encoding="utf-8"))["run"]
            history = self._client.get_metric_history(self._run, "participants")
            self._written = max((metric.step for metric in history), default=-1)
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {f"fedloom.{k}": str(v)[:_LONGEST] for k, v in about.manifest.items()}
        run = self._client.create_run(
            self._experiment_id(), run_name=about.name, tags=tags
        )
        self._run = run.info.run_id
        if note is not None:
            with atomic_write(note) as part:
                write_text(part, json.dumps({"run": self._run}) + "\n")
        params = [
            self._mlflow.entities.Param(name, str(value)[:_LONGEST])
            for name, value in about.settings().items()
        ]
        for begin in range(0, len(params), _BATCH):
            some = params[begin : begin + _BATCH]
            self._client.log_batch(self._run, params=some)

    def round(self, row: Round) -> None:
        """All numbers of a round in one call."""
        if row.round <= self._written:
            return
        now = int(time.time() * 1000)
        metrics = [
            self._mlflow.entities.Metric(name, float(value), now, row.round)
            for name, value in row.numbers().items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, ending: Ending) -> None:
        """Say whether it went to the end."""
        if ending.failure is not None:
            self._client.set_tag(
                self._run, "fedloom.failure", ending.failure[:_LONGEST]
            )
        status = "FINISHED" if ending.failure is None else "FAILED"
        self._client.set_terminated(self._run, status)

    def _experiment_id(self) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is not None:
            return str(experiment.experiment_id)
        return str(self._client.create_experiment(self._experiment))
