"""The lineage of a run, as an event of OpenLineage: what was read, what was written, and by which model.

https://openlineage.io/spec/2-0-2/OpenLineage.json has the format. Each run that ends leaves an event
beside its record. Where ``OPENLINEAGE_URL`` is set, it is sent, too, after one that the run has begun; a server
that does not answer costs a second and a line in the log, and never the run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.events import RunFinished
from headrace.core.files import safe_files
from headrace.core.files.storage import storage_at
from headrace.core.stores.addresses import without_secrets, without_secrets_in
from headrace.core.terminal import encodable
from headrace.output.journal_state import RunEntry, digest_of, time_text
from headrace.output.names import LINEAGE
from headrace.session import provenance
from headrace.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.output.job import Job

SPEC = "https://openlineage.io/spec"
PRODUCER = f"https://pypi.org/project/headrace/{__version__}"
TIMEOUT = 1.0  # seconds for each of the two events that are sent

_FILES = 1_000  # input files that are listed one by one
_NAMESPACE = uuid.UUID("7f0a5f0e-6d5c-5a39-9d7e-4b1d0f6f5a11")  # of the UUIDs of runs
_ENDPOINT = "api/v1/lineage"
_VERSIONS = ("version", "snapshot", "checksum of the rows")  # what names one, in a position
_MAGIC = re.compile(r"[*?\[]")
_FACETS = {
    "processing_engine": f"{SPEC}/facets/1-1-1/ProcessingEngineRunFacet.json#/$defs/ProcessingEngineRunFacet",
    "errorMessage": f"{SPEC}/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet",
    "jobType": f"{SPEC}/facets/2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet",
    "version": f"{SPEC}/facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet",
    "schema": f"{SPEC}/facets/1-2-0/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet",
    "outputStatistics": f"{SPEC}/facets/1-0-2/OutputStatisticsOutputDatasetFacet.json"
    "#/$defs/OutputStatisticsOutputDatasetFacet",
    "inputStatistics": f"{SPEC}/facets/1-0-0/InputStatisticsInputDatasetFacet.json"
    "#/$defs/InputStatisticsInputDatasetFacet",
    "headrace_files": f"{SPEC}/2-0-2/OpenLineage.json#/$defs/DatasetFacet",  # ours: the spec has the base of it
    "headrace_model": f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunFacet",
}

_log = logging.getLogger("headrace")


def record(job: Job, event: RunFinished) -> None:
    """Write the event of a run that has ended, and send it if the environment says where to. Raises nothing."""

    def write(url: str) -> None:
        ended = _encodable(event_of(job, event))
        safe_files.write(job.committer.folder / LINEAGE, msgspec.json.encode(ended) + b"\n", lasting=False)
        if url:
            began = time_text(job.committer.state.runs[-1].began)
            send(url, [{**ended, "eventType": "START", "eventTime": began, **_begun(ended)}, ended])

    _recorded(str(job.output), write)


def record_published(output: str, folder: Path) -> None:
    """Let the event of a run that failed say that it is complete, as somebody has published it. Raises nothing."""

    def write(url: str) -> None:
        there = safe_files.read(folder / LINEAGE)
        failed = msgspec.json.decode(there) if there else {}
        if failed.get("eventType") != "FAIL":
            return
        facets = {name: facet for name, facet in failed["run"]["facets"].items() if name != "errorMessage"}
        run, now = {**failed["run"], "facets": facets}, time_text(time.time())
        event = {**failed, "eventType": "COMPLETE", "eventTime": now, "run": run}
        safe_files.write(folder / LINEAGE, msgspec.json.encode(event) + b"\n", lasting=False)
        if url:
            send(url, [event])

    _recorded(output, write)


def _recorded(output: str, write: Callable[[str], None]) -> None:
    """Write an event unless that is disabled; ``write`` gets where it is to be sent to. What goes wrong is logged."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return
    try:
        write(os.environ.get("OPENLINEAGE_URL", "").strip())
    except Exception as error:
        name = encodable(output)
        _log.warning("The lineage of %s is not recorded: %s. Its rows are not affected.", name, error)


def _encodable(value: Any) -> Any:
    r"""Return a value with texts that UTF-8 has: names of files and messages need not be.

    >>> _encodable({"name": ["caf\udce9", 1]})
    {'name': ['caf\\udce9', 1]}
    """
    if isinstance(value, str):
        return value if value.isascii() else encodable(value)
    if isinstance(value, dict):
        return {name: _encodable(each) for name, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


def record_missing(job: Job, event: RunFinished) -> None:
    """Write the event of a finished run if its driver was killed before it could, or another one finished it."""
    if job.recorded is None and not (job.committer.folder / LINEAGE).exists():
        record(job, event)


def event_of(job: Job, event: RunFinished) -> dict[str, Any]:
    """Return the RunEvent of a run that has ended: the last one of the output, with what it took in."""
    state = job.committer.state
    entry = state.runs[-1]
    name = entry.name(job.committer.plan.run)
    kind = "COMPLETE" if not event.error else "ABORT" if event.error == "interrupted" else "FAIL"
    return {
        "eventType": kind,
        "eventTime": time_text(time.time()),
        "run": {
            "runId": str(uuid.uuid5(_NAMESPACE, f"{name} {entry.began}")),
            "facets": _run_facets(job, event, name),
        },
        "job": {
            "namespace": os.environ.get("OPENLINEAGE_NAMESPACE") or "headrace",
            "name": str(job.output),
            "facets": {
                "jobType": _facet("jobType", processingType="BATCH", integration="HEADRACE", jobType="JOB")
            },
        },
        "inputs": _inputs_of(job, entry),
        "outputs": [_output_of(job, event, name)],
        "producer": PRODUCER,
        "schemaURL": f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
    }


def _begun(ended: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of an event is known when a run begins: not its error, and nothing of its output but the name."""
    run, outputs = ended["run"], ended["outputs"]
    facets = {name: facet for name, facet in run["facets"].items() if name != "errorMessage"}
    named = [{"namespace": each["namespace"], "name": each["name"]} for each in outputs]
    return {"run": {**run, "facets": facets}, "outputs": named}


def _run_facets(job: Job, event: RunFinished, name: str) -> dict[str, Any]:
    models = provenance.models(job.plan.steps, job.code)
    facets = {
        "processing_engine": _facet("processing_engine", version=__version__, name="Headrace"),
        "headrace_model": _facet(
            "headrace_model",
            run=name,
            code=digest_of(job.code),
            models=[{"step": step, "digest": digest} for step, digest in models],
        ),
    }
    if event.error:
        words = without_secrets_in(event.error)
        facets["errorMessage"] = _facet("errorMessage", message=words, programmingLanguage="PYTHON")
    return facets


def _files_of(job: Job, entry: RunEntry) -> Sequence[tuple[str, int, int]]:
    files = job.committer.plan.files
    return files[len(files) - entry.files :]


def _inputs_of(job: Job, entry: RunEntry) -> list[dict[str, Any]]:
    source, files = job.plan.source, _files_of(job, entry)
    described, position = source.describe(), entry.input or source.position()
    if not position:
        return inputs_of(described.get("paths", ()), files)
    name = str(described.get("table") or described.get("path") or "")
    version = next((str(position[each]) for each in _VERSIONS if position.get(each) is not None), "none")
    kind = str(described.get("kind"))
    named = (kind, name) if kind == "iceberg" else storage_at(name).dataset_name()
    if named[0].endswith("://"):  # a database that is a file
        named = ("file", named[1])
    return [_input_of(named, files, version, statistics=not source.one_state)]


def inputs_of(paths: Sequence[str], files: Sequence[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Return an input dataset for each path that the source was given, with the files of this run below it.

    >>> [each["name"] for each in inputs_of(["/in/*.csv", "s3://b/k/"], [("/in/a.csv", 3, 1), ("s3://b/k/x", 4, 2)])]
    ['/in', 'k']
    """
    roots = list(dict.fromkeys(_fixed(path) for path in paths))
    below: dict[str, list[tuple[str, int, int]]] = {}
    for file in files:
        root = next((each for each in roots if file[0] == each or file[0].startswith(f"{each}/")), file[0])
        below.setdefault(root, []).append(file)
    return [_input_of(storage_at(root).dataset_name(), found) for root, found in below.items()]


def _input_of(
    named: tuple[str, str],
    files: Sequence[tuple[str, int, int]],
    version: str = "",
    *,
    statistics: bool = True,
) -> dict[str, Any]:
    """Return an input dataset; ``version`` is that of a table, "": it is made from the files."""
    listed = [{"path": path, "size": size, "version": str(when)} for path, size, when in files[:_FILES]]
    version = version or hashlib.sha256(msgspec.json.encode(files)).hexdigest()[:32]
    found = {"namespace": named[0], "name": named[1]}
    if not statistics:  # what it lists are no files
        return {**found, "facets": {"version": _facet("version", datasetVersion=version)}}
    return {
        **found,
        "facets": {
            "version": _facet("version", datasetVersion=version),
            "headrace_files": _facet("headrace_files", files=listed, count=len(files)),
        },
        "inputFacets": {
            "inputStatistics": _facet(
                "inputStatistics", size=sum(size for _, size, _ in files), fileCount=len(files)
            )
        },
    }


def _output_of(job: Job, event: RunFinished, version: str) -> dict[str, Any]:
    namespace, name = storage_at(str(job.output)).dataset_name()
    facets: dict[str, Any] = {"version": _facet("version", datasetVersion=version)}
    if job.committer.state.schema is not None:
        from headrace.core.arrow.batch import schema_from

        fields = [
            {"name": each.name, "type": str(each.type)} for each in schema_from(job.committer.state.schema)
        ]
        facets["schema"] = _facet("schema", fields=fields)
    return {
        "namespace": namespace,
        "name": name,
        "facets": facets,
        "outputFacets": {
            "outputStatistics": _facet(
                "outputStatistics",
                rowCount=event.ledger.written,
                size=event.bytes,
                fileCount=event.files,
            )
        },
    }


def _fixed(path: str) -> str:
    """Return the folder in which a pattern begins; a path without wildcards as it is."""
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return "/".join(parts[:first]).rstrip("/")


def _facet(kind: str, /, **values: Any) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": _FACETS[kind], **values}


def send(url: str, events: Sequence[Mapping[str, Any]]) -> None:
    """Post events to a server, in their order; raises ``OSError`` or ``ValueError`` if it does not take one.

    ``OPENLINEAGE_ENDPOINT`` is the path there, and ``OPENLINEAGE_API_KEY`` goes into the header ``Authorization``: to
    this server only, as redirections are not followed.
    """
    from urllib.request import HTTPRedirectHandler, Request, build_opener  # where a server is asked only

    class NoRedirection(HTTPRedirectHandler):
        def redirect_request(self, *args: Any) -> None:
            return None

    if not url.startswith(("http://", "https://")):
        raise ValueError("OPENLINEAGE_URL is an address such as http://lineage:5000")
    endpoint = os.environ.get("OPENLINEAGE_ENDPOINT") or _ENDPOINT
    headers = {"Content-Type": "application/json", "User-Agent": f"headrace/{__version__}"}
    if key := os.environ.get("OPENLINEAGE_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    opener = build_opener(NoRedirection)
    place = f"{url.rstrip('/')}/{endpoint.lstrip('/')}"
    for event in events:
        try:
            with opener.open(Request(place, msgspec.json.encode(event), headers), timeout=TIMEOUT):
                pass
        except OSError as error:
            raise OSError(f"{without_secrets(place)} did not take it: {error}") from None
