"""`headrace run-batch`: a batch file of OpenAI's or Anthropic's form, against any endpoint."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.annex.cli.answer import DONE, REJECTS, Answer, UsageMistake
from headrace.core.human import duration
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.annex.llm.batch_lines import BatchCounts, BatchFiles, Progress
    from headrace.annex.llm.endpoint import Endpoint
    from headrace.annex.llm.engines import VLLM

RUN_BATCH_EXAMPLES = """\
  headrace run-batch -i in.jsonl -o out.jsonl --endpoint http://localhost:8000/v1
  headrace run-batch -i in.jsonl -o out.jsonl --vllm qwen3-8b/
  headrace run-batch -i in.jsonl -o out.jsonl --endpoint https://api.openai.com/v1 --api-key-env OPENAI_API_KEY
  headrace run-batch … --via-batch-api   the same by OpenAI's batch service: cheaper, within a day
"""

OF_SINGLE_REQUESTS = ("max_in_flight", "requests_per_minute", "tokens_per_minute")
OF_ENDPOINTS = ("api_key_env", *OF_SINGLE_REQUESTS, "timeout", "max_retries")


def _limit(name: str, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help, rich_help_panel="Limits")


@dataclass(frozen=True, kw_only=True)
class WhoAnswers:
    """A server or a model here, and what may be asked of it."""

    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint", metavar="URL", help="The address of the server, including /v1.", show_default=False
        ),
    ] = None
    vllm: Annotated[
        Path | None,
        typer.Option(
            "--vllm",
            metavar="FOLDER",
            help="A model that vLLM runs here, instead of a server.",
            show_default=False,
        ),
    ] = None
    vllm_options: Annotated[
        str | None,
        typer.Option(
            "--vllm-options", metavar="JSON", help="Arguments of hr.llm.VLLM: '{\"max_model_len\": 8192}'."
        ),
    ] = None
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", metavar="NAME", help="The variable that holds the key.")
    ] = None
    max_in_flight: Annotated[
        int | None, _limit("--max-in-flight", "N", "Requests at a time. Default: 64.")
    ] = None
    requests_per_minute: Annotated[
        float | None, _limit("--requests-per-minute", "N", "The limit of the key.")
    ] = None
    tokens_per_minute: Annotated[
        float | None, _limit("--tokens-per-minute", "N", "The limit of the key.")
    ] = None
    timeout: Annotated[
        float | None, _limit("--timeout", "SECONDS", "Seconds to wait for an answer. Default: 300.")
    ] = None
    max_retries: Annotated[int | None, _limit("--max-retries", "N", "Tries per request. Default: 6.")] = None

    def model(self) -> Endpoint | VLLM:
        """Return the one that was asked for."""
        if (self.endpoint is None) == (self.vllm is None):
            raise UsageMistake("Say who answers: --endpoint URL or --vllm FOLDER.")
        if self.endpoint is None:
            assert self.vllm is not None
            given = self._given(*OF_ENDPOINTS)
            if given:
                raise UsageMistake(
                    f"{given[0]} is for --endpoint. vLLM has an option of its own: "
                    "--vllm-options '{\"max_num_seqs\": 128}'."
                )
            return _engine(self.vllm, self.vllm_options)
        if self.vllm_options is not None:
            raise UsageMistake("--vllm-options is for --vllm: a server has options of its own.")
        from headrace.annex.llm.endpoint import Endpoint

        said = {name: getattr(self, name) for name in OF_ENDPOINTS}
        options = {name: value for name, value in said.items() if value is not None}
        return Endpoint(self.endpoint, "as each line says", **options)

    def check_service(self) -> None:
        """Refuse what a batch service has no use for."""
        if self.vllm is not None:
            raise UsageMistake("--via-batch-api is for an --endpoint: --vllm has no batch service.")
        given = self._given(*OF_SINGLE_REQUESTS)
        if given:
            raise UsageMistake(
                f"{given[0]} is for requests that are sent one by one, and a batch service sets its own speed: leave "
                "it out with --via-batch-api."
            )

    def _given(self, *names: str) -> list[str]:
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]


def run_batch(
    *,
    source: Annotated[
        Path,
        typer.Option(
            "--input", "-i", metavar="FILE", help="Requests, a line of JSON each.", show_default=False
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Answers, in the same order.", show_default=False
        ),
    ],
    who: WhoAnswers,
    errors: Annotated[
        Path | None,
        typer.Option(
            "--errors", metavar="FILE", help="Requests without an answer. Default: OUT.errors.jsonl."
        ),
    ] = None,
    via_batch_api: Annotated[
        bool,
        typer.Option(
            "--via-batch-api", help="Have the endpoint's batch service answer: cheaper, within a day."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that is there.")] = False,
    progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Show a bar on a terminal.")
    ] = True,
) -> Answer:
    """Send each request of a batch file to an endpoint, or a model here; write the answers in the order of requests.

    Lines are OpenAI's (custom_id, method, url, body; chat completions, completions, embeddings, responses, rerank) or
    Anthropic's (custom_id, params). All of them are checked before anything is sent. Killed, the same command goes
    on, and asks only for what was under way. With --via-batch-api they are uploaded, in parts, and
    waited for. Exit code 3: some requests have no answer, and are in the file of errors.
    """
    from headrace.annex.llm.batch_file import run_batch
    from headrace.annex.llm.batch_lines import BatchFiles

    model = who.model()
    if via_batch_api:
        who.check_service()
    failed = errors or Path(f"{str(out).removesuffix('.jsonl')}.errors.jsonl")
    files = BatchFiles(str(source), str(out), str(failed))
    began = time.monotonic()
    with _bar(shown=progress) as draw:
        counts = run_batch(files, model, overwrite=overwrite, via_batch_api=via_batch_api, progress=draw)
    return _answer(files, counts, time.monotonic() - began)


def _engine(folder: Path, options: str | None) -> VLLM:
    """Return a model that vLLM runs in this process."""
    from headrace.annex.llm.engines import VLLM

    try:
        given = json.loads(options or "{}")
        return VLLM(folder, **given)
    except (ValueError, TypeError) as error:
        if isinstance(error, HeadraceError):
            raise
        raise UsageMistake(
            f"--vllm-options {options}: it takes arguments of hr.llm.VLLM as a JSON object: {error}."
        ) from None


def _answer(files: BatchFiles, counts: BatchCounts, took: float) -> Answer:
    """Return what is said of a batch that was sent."""
    code = REJECTS if counts.failed else DONE
    data = {
        "command": "run-batch",
        "status": "done",
        "exit_code": code,
        "output": files.out,
        "errors": files.errors if counts.failed else None,
        "lines": counts.lines,
        "answered": counts.answered,
        "failed": counts.failed,
        "answered_before": counts.before,
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "seconds": round(took, 3),
    }
    text = (
        f"{counts.lines:,} requests, {counts.answered:,} answered, {counts.failed:,} not, in {duration(took)}"
    )
    if counts.before:
        text += f"; {counts.before:,} of them before"
    if counts.prompt_tokens:
        text += f"\n{counts.prompt_tokens:,} tokens in, {counts.completion_tokens:,} out"
    text += f"\n{files.out}" + (f"\nwithout an answer: {files.errors}" if counts.failed else "")
    return Answer(code, data, text)


@contextmanager
def _bar(*, shown: bool) -> Iterator[Progress]:
    """Show how many requests are done, if standard error is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda done, lines, batches: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task: Any = bar.add_task("asking", total=None)
        yield lambda done, lines, batches: bar.update(task, completed=done, total=lines)
