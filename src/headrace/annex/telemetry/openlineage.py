"""A run for a catalogue of data: events of OpenLineage, with input, output, its columns, and the models.

https://openlineage.io/spec/2-0-2/OpenLineage.json has the format.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import uuid
from datetime import UTC, datetime
from typing import Any

from headrace.annex.telemetry import Sender, parameters_of
from headrace.core.arguments import known_arguments
from headrace.core.door import library
from headrace.core.events import Event, RunFinished, RunStarted
from headrace.core.stores.addresses import without_secrets, without_secrets_in
from headrace.core.terminal import encodable
from headrace.errors import ArgumentError
from headrace.observers.run_state import RunState
from headrace.version import __version__

_PATIENCE = 3  # seconds for what is left at the end, if nobody answers
_NAMESPACE = uuid.UUID("7f0a5f0e-6d5c-5a39-9d7e-4b1d0f6f5a11")  # of the UUIDs of runs
_PRODUCER = f"https://pypi.org/project/headrace/{__version__}"
_VERSION = re.compile(r", (?:version|snapshot) (\S+)$")  # behind the name of a table
_log = logging.getLogger("headrace")


class OpenLineage:
    """Sends events of OpenLineage to a catalogue: START when a run begins; COMPLETE, FAIL or ABORT when it ends.

    The variables that all programs with OpenLineage have say where to, such as ``OPENLINEAGE_URL`` and
    ``OPENLINEAGE_API_KEY``, or the file ``openlineage.yml``; without them events go to the log of the process. The
    job is the output, and its runs have names of their own. A server that does not answer is logged, costs a few
    seconds at the end, and never the run.

    Parameters
    ----------
    namespace
        The namespace of the job. Default: ``OPENLINEAGE_NAMESPACE``, else "headrace".
    client
        An ``OpenLineageClient`` to use instead of the one that the variables describe.

    Raises
    ------
    MissingLibrary
        The extra ``openlineage`` is not installed.
    ArgumentError
        The namespace is no text.

    Examples
    --------
    >>> import headrace as hr
    >>> data = hr.range(1000).with_options(observers=[hr.observers.OpenLineage(namespace="nightly")])
    """

    @known_arguments
    def __init__(self, *, namespace: str | None = None, client: Any = None) -> None:
        if not (namespace is None or (isinstance(namespace, str) and namespace)):
            raise ArgumentError(f"OpenLineage(namespace={namespace!r}): it takes a text.")
        library("OpenLineage", "openlineage.client", "openlineage")
        self._namespace = namespace or os.environ.get("OPENLINEAGE_NAMESPACE") or "headrace"
        self._given = self._client = client
        self._state = RunState()
        self._begun: RunStarted | None = None
        self._sender: Sender | None = None

    def attach(self, state: RunState) -> None:
        """Begin with a run."""
        self.close()
        self._state, self._client = state, self._given  # the variables may be others by now

    def on_event(self, event: Event) -> None:
        """Have a thread send what an event says: the run does not wait."""
        if isinstance(event, RunStarted):
            self._begun = event
            self._sender = Sender("OpenLineage", _PATIENCE)
            self._send("START", self._state.drivers[-1].began)
        elif isinstance(event, RunFinished) and self._begun is not None:
            kind = "COMPLETE" if not event.error else "ABORT" if event.error == "interrupted" else "FAIL"
            self._send(kind, self._state.at, event)

    def close(self) -> None:
        """Wait for what is not sent yet."""
        sender, self._sender, self._begun = self._sender, None, None
        if sender is not None:
            sender.close()

    def _send(self, kind: str, at: float, ended: RunFinished | None = None) -> None:
        assert self._sender is not None
        self._sender.do(functools.partial(self._emit, self._event(kind, at, ended)))

    def _emit(self, event: Any) -> None:
        from openlineage.client import OpenLineageClient

        try:
            self._client = self._client or OpenLineageClient()
            self._client.emit(event)
        except Exception as error:
            words = without_secrets_in(str(error)).partition("\n")[0]
            _log.warning("OpenLineage did not take an event: %s. The run's rows are not affected.", words)

    def _event(self, kind: str, at: float, ended: RunFinished | None = None) -> Any:
        from openlineage.client import event_v2
        from openlineage.client import facet_v2 as facets

        begun, described = self._begun, self._state.described
        assert begun is not None
        name = begun.run if begun.number == 1 else f"{begun.run}-{begun.number}"
        texts = {"run": name, **parameters_of(described)}.items()
        parameter, engine = facets.execution_parameters_run.ExecutionParameter, facets.processing_engine_run
        run = {
            "processing_engine": _facet(engine.ProcessingEngineRunFacet, __version__, "Headrace"),
            "executionParameters": _facet(
                facets.execution_parameters_run.ExecutionParametersRunFacet,
                [parameter(each, value=encodable(text)) for each, text in texts],
            ),
        }
        if ended is not None and ended.error:
            words = encodable(without_secrets_in(ended.error))
            run["errorMessage"] = _facet(facets.error_message_run.ErrorMessageRunFacet, words, "PYTHON")
        job_type = _facet(facets.job_type_job.JobTypeJobFacet, "BATCH", "HEADRACE", "JOB")
        return event_v2.RunEvent(
            eventType=event_v2.RunState[kind],
            eventTime=datetime.fromtimestamp(at, UTC).isoformat(),
            run=event_v2.Run(str(uuid.uuid5(_NAMESPACE, f"{begun.output} {name}")), run),
            job=event_v2.Job(
                self._namespace, encodable(without_secrets(begun.output)), {"jobType": job_type}
            ),
            inputs=[_input(path) for path in described.inputs] if described is not None else [],
            outputs=[_output(begun.output, name, ended)],
            producer=_PRODUCER,
        )


def _facet(kind: type[Any], *values: Any, **named: Any) -> Any:
    return kind(*values, producer=_PRODUCER, **named)


def _input(path: str) -> Any:
    """Return an input: a path as it was given, or a table with its version."""
    from openlineage.client import event_v2
    from openlineage.client import facet_v2 as facets

    about, found = {}, _VERSION.search(path)
    if found is not None:
        path = path[: found.start()]
        about["version"] = _facet(facets.dataset_version_dataset.DatasetVersionDatasetFacet, found[1])
    return event_v2.InputDataset(*dataset_name(path), facets=about)


def _output(path: str, name: str, ended: RunFinished | None) -> Any:
    from openlineage.client import event_v2
    from openlineage.client import facet_v2 as facets

    if ended is None:
        return event_v2.OutputDataset(*dataset_name(path))
    field = facets.schema_dataset.SchemaDatasetFacetFields
    counted = _facet(
        facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
        ended.ledger.written,
        ended.bytes,
        ended.files,
    )
    about = {
        "version": _facet(facets.dataset_version_dataset.DatasetVersionDatasetFacet, name),
        "schema": _facet(
            facets.schema_dataset.SchemaDatasetFacet, [field(*each) for each in ended.columns.items()]
        ),
    }
    return event_v2.OutputDataset(
        *dataset_name(path), outputFacets={"outputStatistics": counted}, facets=about
    )


def dataset_name(path: str) -> tuple[str, str]:
    """Return the namespace and the name of a dataset, as https://openlineage.io/docs/spec/naming asks.

    >>> dataset_name("/data/trips"), dataset_name("s3://bucket/trips/2026/"), dataset_name("sqlite:///t.db")
    (('file', '/data/trips'), ('s3://bucket', 'trips/2026'), ('file', '/t.db'))
    """
    scheme, _, rest = encodable(without_secrets(path)).rpartition("://")
    if not scheme:
        return "file", os.path.abspath(rest)
    host, _, name = rest.partition("/")
    return (f"{scheme}://{host}", name.rstrip("/") or "/") if host else ("file", f"/{name}")
