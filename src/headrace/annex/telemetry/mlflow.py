"""A run for MLflow: a run of an experiment with parameters, metrics, the model, and the report as an artifact."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headrace.annex.telemetry import Sender, figures_of, parameters_of
from headrace.core.arguments import known_arguments
from headrace.core.asked import RequirementsAsked
from headrace.core.door import library
from headrace.core.events import Event, MetricsCounted, RunFinished, RunStarted
from headrace.core.files.storage import storage_at
from headrace.core.stores.addresses import without_secrets_in
from headrace.core.work import HOME
from headrace.errors import ArgumentError
from headrace.observers.run_state import RunState
from headrace.output.names import REPORT

_PATIENCE = 30  # seconds for what is left at the end
_CHARS = 500  # of a parameter
_BATCH = 100  # parameters, and 1,000 metrics, are what a server takes at once
_MODEL = re.compile(r"models:/[^\s,;'\")]+")
_T = TypeVar("_T")
_log = logging.getLogger("headrace")


class MLflow:
    """Logs each run that writes as a run of MLflow: parameters, metrics, the model, and the report as an artifact.

    Where a run of MLflow is active in this process, it is the parent. The run is FINISHED, FAILED or KILLED, and
    FAILED if a requirement is not met. A model ``models:/name/version`` is linked. The report is an artifact if the
    output is a folder; else a tag has its address. A server that does not answer is logged, and costs no row.

    Parameters
    ----------
    experiment
        Its name; it is made if there is none. Default: ``MLFLOW_EXPERIMENT_NAME``, else "Default".
    tracking_uri
        The server or store. Default: ``MLFLOW_TRACKING_URI``, as everywhere in MLflow.
    tags
        Tags of the run, texts by name.

    Raises
    ------
    MissingLibrary
        The extra ``mlflow`` is not installed.
    ArgumentError
        A name is no text.

    Examples
    --------
    >>> import headrace as hr
    >>> data = hr.range(1000).with_options(observers=[hr.observers.MLflow(experiment="fares")])
    """

    @known_arguments
    def __init__(
        self,
        *,
        experiment: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        for name, value in (("experiment", experiment), ("tracking_uri", tracking_uri)):
            if not (value is None or (isinstance(value, str) and value)):
                raise ArgumentError(f"MLflow({name}={value!r}): it takes a text.")
        if not all(isinstance(each, str) for pair in (tags or {}).items() for each in pair):
            raise ArgumentError("MLflow(tags=…): it takes a dict of texts by name.")
        library("MLflow", "mlflow", "mlflow")
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._asked = experiment is not None
        self._uri = tracking_uri
        self._tags = dict(tags or {})
        self._state = RunState()
        self._run: _Logged | None = None

    def attach(self, state: RunState) -> None:
        """Begin with a run."""
        self.close()
        self._state = state

    def on_event(self, event: Event) -> None:
        """Have what an event says logged, by a thread: the run does not wait."""
        run = self._run
        if isinstance(event, RunStarted):
            self._run = self._begun(event)
        elif run is None:
            return
        elif isinstance(event, MetricsCounted) and not event.shards:
            run.log("metrics", self._metrics(numbers_in(event.results)))
        elif isinstance(event, RequirementsAsked):
            run.tag("headrace.required", event.verdict)
        elif isinstance(event, RunFinished):
            run.log("metrics", self._metrics(figures_of(event, self._state)))
            run.status = "FINISHED"
            if event.error:
                run.status = "KILLED" if event.error == "interrupted" else "FAILED"
                run.tag("headrace.error", without_secrets_in(event.error)[:_CHARS])

    def close(self) -> None:
        """Log the report, which is there by now, end the run, and wait for that."""
        run, self._run = self._run, None
        if run is not None:
            run.end(int(self._state.at * 1000))

    def _begun(self, event: RunStarted) -> _Logged:
        import mlflow
        from mlflow.entities import Param

        described, active = self._state.described, mlflow.active_run()
        output = without_secrets_in(event.output)
        tags = {"headrace.run": event.run, "headrace.output": output}
        if active is not None:
            tags["mlflow.parentRunId"] = active.info.run_id
        if described is not None and described.command:
            tags["mlflow.source.name"] = without_secrets_in(described.command)
        began, name = int(self._state.drivers[-1].began * 1000), os.path.basename(output.rstrip("/"))
        experiment = active.info.experiment_id if active is not None and not self._asked else ""
        report = f"{event.output.rstrip('/')}/{HOME}/{event.run}/{REPORT}"
        run = _Logged(mlflow.MlflowClient(self._uri), report)
        made = {"start_time": began, "tags": {**tags, **self._tags}, "run_name": name}
        run.do(lambda: run.create(experiment, self._experiment, made))
        texts = keyed(parameters_of(described))
        run.log("params", [Param(name, text[:_CHARS]) for name, text in texts.items()])
        named = [text for each in described.models for text in each] if described is not None else []
        for uri in dict.fromkeys(found for text in named for found in _MODEL.findall(text)):
            run.tag("headrace.model", uri)
            run.do(functools.partial(run.link, uri))
        return run

    def _metrics(self, found: Mapping[str, float]) -> list[Any]:
        from mlflow.entities import Metric

        at = int(self._state.at * 1000)
        return [Metric(name, float(value), at, 0) for name, value in keyed(found).items()]


class _Logged:
    """One run of MLflow, which a thread of its own writes: what is asked for is done in order.

    After a call that fails, which is logged, only the end of the run is tried. ``report``: where it will be.
    """

    def __init__(self, client: Any, report: str) -> None:
        self.status = "KILLED"
        self._client = client
        self._report = report
        self._id = ""
        self._failed = False
        self._sender = Sender("MLflow", _PATIENCE)

    def do(self, call: Callable[[], Any]) -> None:
        self._sender.do(lambda: self._unless_failed(call))

    def _unless_failed(self, call: Callable[[], Any]) -> None:
        self._failed = self._failed or not self._done(call)

    def tag(self, name: str, text: str) -> None:
        self.do(lambda: self._client.set_tag(self._id, name, text))

    def log(self, kind: str, values: list[Any]) -> None:
        for i in range(0, len(values), _BATCH):
            self.do(functools.partial(self._log_some, **{kind: values[i : i + _BATCH]}))

    def _log_some(self, **values: Any) -> None:
        self._client.log_batch(self._id, **values)

    def create(self, experiment: str, named: str, about: dict[str, Any]) -> None:
        """Make the run, in an experiment by its identifier or its name, which is made if there is none of it."""
        if not experiment:
            known = self._client.get_experiment_by_name(named)
            experiment = known.experiment_id if known is not None else self._client.create_experiment(named)
        self._id = self._client.create_run(experiment, **about).info.run_id

    def link(self, uri: str) -> None:
        """Link a model of MLflow; one that the server does not know stays a parameter."""
        self._done(functools.partial(self._link, uri), f"link the model {uri}")

    def _link(self, uri: str) -> None:
        from mlflow.entities import LoggedModelInput

        name, _, version = uri.removeprefix("models:/").partition("/")
        if "@" in name:
            name = self._client.get_model_version_by_alias(*name.split("@", 1)).model_id
        elif version:
            name = self._client.get_model_version(name, version).model_id
        if name:
            self._client.log_inputs(self._id, models=[LoggedModelInput(name)])

    def end(self, at: int) -> None:
        if address := storage_at(self._report).pick("", self._report):
            self.tag("headrace.report", without_secrets_in(address))
        elif os.path.isfile(self._report):
            self.do(lambda: self._client.log_artifact(self._id, self._report))
        terminate = functools.partial(self._terminate, at)
        self._sender.do(lambda: self._done(terminate))
        self._sender.close()

    def _terminate(self, at: int) -> None:
        if self._id:
            self._client.set_terminated(self._id, self.status, at)

    def _done(
        self, call: Callable[[], Any], trouble: str = "take it, so the run is not logged further"
    ) -> bool:
        try:
            call()
        except Exception as error:
            _log.warning("MLflow did not %s: %s", trouble, without_secrets_in(str(error)).partition("\n")[0])
            return False
        return True


def numbers_in(results: Mapping[str, Any], before: str = "") -> dict[str, float]:
    """Return the numbers among results of metrics, those inside others as ``name.field``.

    >>> numbers_in({"auc": {"value": 0.9, "low": 0.8, "high": 1.0}, "by": {"a": 1}, "top": ["x"], "none": None})
    {'auc.value': 0.9, 'auc.low': 0.8, 'auc.high': 1.0, 'by.a': 1.0}
    """
    found: dict[str, float] = {}
    for name, value in results.items():
        if isinstance(value, Mapping):
            found |= numbers_in(value, f"{before}{name}.")
        elif isinstance(value, int | float):
            found[f"{before}{name}"] = float(value)
    return found


def keyed(values: Mapping[str, _T]) -> dict[str, _T]:
    """Return values by names as MLflow takes them: of letters, digits and a few signs; none is there twice.

    >>> keyed({"mean(x)": 1, "mean[x]": 2})
    {'mean_x_': 1, 'mean_x__': 2}
    """
    found: dict[str, _T] = {}
    for name, value in values.items():
        plain = re.sub(r"[^\w./: -]", "_", name, flags=re.ASCII)[:200]
        while plain in found:
            plain += "_"
        found[plain] = value
    return found
