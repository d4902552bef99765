"""Verbs that ask a language model about each row: nothing runs yet."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.annex.llm.prompt_arguments import (
    check_images,
    check_local,
    given_caps,
    given_count,
    given_flag,
    given_folder,
    given_model,
    given_order,
    given_overrides,
    given_sampling,
    given_schema,
    given_tools,
    given_truncation,
    is_endpoint,
    is_engine,
)
from headrace.core.arguments import Unsupported, known_arguments
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError
from headrace.plan.step_options import WorkerOptions

if TYPE_CHECKING:
    from headrace.annex.llm.endpoint import Endpoint, Endpoints
    from headrace.annex.llm.engines import VLLM, SGLang
    from headrace.annex.llm.transformers import Transformers
    from headrace.plan.steps.predict import Prompt

EMBED_WINDOW = 4
"""So many times the requests under way are read ahead: embeddings of so many texts take about the same time."""


_ELSEWHERE = {
    "max_in_flight": Unsupported("the endpoint has it, Endpoint(…, max_in_flight=16)."),
    "batch_size": Unsupported("rows are asked one by one; Transformers(…, batch_size=8) has one of its own."),
    "temperature": Unsupported("parameters of requests stand in sampling={'temperature': 0.0}."),
    "max_tokens": Unsupported("parameters of requests stand in sampling={'max_tokens': 200}."),
}


class PromptVerbs(DatasetBase):
    """Verbs that ask language models."""

    __slots__ = ()

    @known_arguments(also=_ELSEWHERE, options=WorkerOptions)
    def prompt(
        self,
        template: str | Sequence[Mapping[str, Any]],
        model: Endpoint | Endpoints | Transformers | VLLM | SGLang,
        *,
        output: str = "answer",
        system: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        overrides: Mapping[str, str] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        schema: Any = None,
        guided: bool = True,
        repairs: int = 1,
        on_truncated: str | int = "error",
        keep_raw: bool = False,
        max_cost: float | None = None,
        max_total_tokens: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        order: str | None = None,
        keep: str | Sequence[str] | None = "all",
        replace: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> Self:
        """Ask a language model about each row, and add its answers; every other column is carried unchanged.

        Answers come in the order of the rows, whichever is there first. Rows without an answer follow ``on_error``.
        In an output, what was answered is kept beside it until the run has ended: killed and run again, it asks for
        what was under way, and for nothing else.

        Parameters
        ----------
        template
            A text with names of columns in braces, ``"Summarise: {text}"`` (braces that stand for themselves are
            doubled), or a list of chat messages with such texts:
            ``[{"role": "user", "content": "{question}"}]``. In a part of a message of the kind ``image_url``, a
            column with the bytes of an image may stand for the address; in one of the kind ``input_audio``, a column
            with the bytes of a sound for its ``data``. A template that is one column, ``"{chat}"``, may hold whole
            chats: lists of messages with ``role`` and ``content``.
        model
            Where it is asked: ``hr.llm.Endpoint(base_url, model)``, ``hr.llm.Endpoints([…])``; or what workers load:
            ``hr.llm.VLLM(folder)``, ``hr.llm.SGLang(folder)``, or ``hr.llm.Transformers(folder)``, which
            is only told of ``schema``.
        output
            The name of the column of the answers, of type string. Beside it there are ``answer_finish_reason``
            (string), ``answer_prompt_tokens`` and ``answer_completion_tokens`` (int64), and ``answer_latency``
            (float64, seconds), if it is ``"answer"``.
        system
            What stands before the messages as the system's.
        sampling
            Parameters of each request, as the server knows them: ``{"temperature": 0.0, "max_tokens": 200}``. With
            a temperature of 0, or with a ``seed``, equal requests are asked once. Otherwise each row gets an answer
            of its own.
        overrides
            Parameters of each request that a column gives, by their names: ``{"max_tokens": "limit"}``. A null leaves
            what ``sampling`` says.
        tools
            Tools that the model may call, as OpenAI describes them. Nobody carries them out: what it calls is in
            ``answer_tool_calls`` as JSON text, null for none, and ``answer`` is null where it says nothing else.
        schema
            What an answer has to be: a JSON schema, a pydantic model, a list of choices, or ``re.compile(…)``. The
            server is asked to enforce it, and each answer is checked. The column has the type of the schema: a struct
            for an object with properties. Properties that the schema does not name are left out. With a pydantic
            model, its own validators run, and the values that they return are written.
        guided
            False: the server is not asked to enforce ``schema``; it is only described to the model.
        repairs
            How often the model is asked again, with a message that says what is wrong with its answer.
        on_truncated
            What to do with an answer that ended at ``max_tokens``. ``"error"``: the row has no answer. ``"keep"``:
            the short answer is kept. A whole number: the model is asked once more, with this ``max_tokens``.
        keep_raw
            Keep the whole response of the server, as JSON text, in ``answer_raw``.
        max_cost, max_total_tokens
            Limits for the run, for all workers together: its cost by the endpoint's ``prices``, and its tokens, in
            and out. An endpoint needs ``max_tokens`` in ``sampling`` for that. No request is sent that might go
            beyond a limit. Then the run ends with ``SpendingCapReached``; with a higher limit, it goes on.
        cache
            A folder in which answers are kept after the run, also for other runs that ask the same. Equal requests
            are then asked once, whatever ``sampling`` says.
        order
            The order in which waiting requests are sent. ``"arrival"``: in the order of the rows. ``"prefix"``:
            prompts with the same beginning one after another, for models that cache beginnings (the default for
            ``VLLM``). ``"longest"``: near the end of the input, the longest prompts first; this helps if they have
            the longest answers. The output always has the order of the rows.
        keep, replace
            As in ``predict``.
        compute, concurrency, num_cpus, num_gpus, memory, ray_remote_args, version
            As in ``map_batches``, but there is one worker unless more are asked for: it waits more than it works.

        Raises
        ------
        UnknownColumn
            The template names a column that is not there.
        EndpointRefused, EndpointUnavailable, SpendingCapReached
            When the plan runs: the run ends, whatever ``on_error`` says, and may go on.
        MissingLibrary
            the extra ``llm`` is not installed.

        Examples
        --------
        >>> import headrace as hr
        >>> from headrace.testing import FakeLLMServer
        >>> with FakeLLMServer(lambda prompt: prompt.upper()) as server:
        ...     rows = hr.from_items([{"word": "mill"}, {"word": "race"}])
        ...     asked = rows.prompt("Say {word}", hr.llm.Endpoint(server.url, "fake"))
        ...     asked.select_columns(["word", "answer"]).with_options(engine="inline").take_all()
        [{'word': 'mill', 'answer': 'SAY MILL'}, {'word': 'race', 'answer': 'SAY RACE'}]
        """
        from headrace.annex.llm.answers import Asked
        from headrace.annex.llm.template import Template
        from headrace.session.models import given_output

        asked = Asked(
            Template(template, system),
            given_model(model),
            given_output(output),
            given_sampling(sampling),
            given_truncation(on_truncated, sampling or {}),
            given_schema(schema, guided, model),
            given_count("repairs", repairs),
            given_flag("keep_raw", keep_raw),
            given_caps(max_cost, max_total_tokens, model, sampling or {}),
            "" if cache is None else given_folder(cache),
            given_order(order, model),
            given_overrides(overrides, model),
            given_tools(tools, model, schema),
        )
        check_images(asked, model)
        if is_engine(model):
            engine: Any = model
            engine.check_sampling(asked.sampling)
            asked = dataclasses.replace(asked, endpoint=engine.on_gpus(options.get("num_gpus")))
        elif not is_endpoint(model):
            check_local(asked, max_cost, max_total_tokens, cache)
            return self.with_step(_local_step(asked, keep, replace, options))
        return self.with_step(_step(asked, keep, replace, options))

    @known_arguments(options=WorkerOptions)
    def embed(
        self,
        column: str,
        model: Any,
        *,
        output: str = "embedding",
        batch_size: int = 64,
        dimensions: int | None = None,
        keep: str | Sequence[str] | None = "all",
        replace: bool = False,
        **options: Unpack[WorkerOptions],
    ) -> Self:
        """Add vectors (n, d) of float32 for a column of texts; every other column is carried unchanged.

        Parameters
        ----------
        column
            The column with the texts.
        model
            ``hr.llm.Endpoint(base_url, model)``, which is asked by ``/embeddings``; or what
            ``SentenceTransformersPredictor`` takes: such a predictor, a ``SentenceTransformer``, or its folder.
        output
            The name of the column of vectors.
        batch_size
            How many texts, in rows, a request or the model gets at a time.
        dimensions
            How long vectors shall be, where an endpoint's model can shorten them.
        keep, replace
            As in ``predict``.
        compute, concurrency, num_cpus, num_gpus, memory, ray_remote_args, version
            As in ``map_batches``. Where an endpoint is asked, there is one worker unless more are asked for.

        Raises
        ------
        UnknownColumn
            The column is not there. The rest as in ``prompt``, and for models as in ``predict``.

        Examples
        --------
        >>> import headrace as hr
        >>> from headrace.testing import FakeLLMServer
        >>> with FakeLLMServer() as server:  # its vectors are how long a text is, how many e there are, and 1
        ...     rows = hr.from_items([{"text": "mill"}, {"text": "race"}])
        ...     made = rows.embed("text", hr.llm.Endpoint(server.url, "fake")).with_options(engine="inline")
        ...     [row["embedding"].tolist() for row in made.take_all()]
        [[4.0, 0.0, 1.0], [4.0, 1.0, 1.0]]
        """
        from headrace.session.models import given_output, given_predict

        if not isinstance(column, str) or not column:
            raise ArgumentError(f"embed({column!r}): it takes the name of a column of texts.")
        predictor, depth = _given_embedder(model, given_output(output), batch_size, dimensions)
        if depth is not None and not any(
            options.get(name) is not None for name in ("compute", "concurrency")
        ):
            options = {**options, "concurrency": 1}
        step = given_predict(
            predictor,
            inputs=[column],
            output=output,
            keep=keep,
            replace=replace,
            batch_size=batch_size if depth is not None else "auto",
            max_in_flight=depth,
            **options,
        )
        return self.with_step(step)


def _given_embedder(model: Any, output: str, batch_size: Any, dimensions: Any) -> tuple[Any, int | None]:
    """Return the predictor of ``embed``, and how many batches of it may be under way, if it waits for them."""
    from headrace.annex.llm.endpoint import Endpoint

    if not given_count("batch_size", batch_size):
        raise ArgumentError("batch_size=0: it takes a whole number of at least 1.")
    if isinstance(model, Endpoint):
        from headrace.annex.llm.embedder import Embedder

        if dimensions is not None and not given_count("dimensions", dimensions):
            raise ArgumentError("dimensions=0: it takes a whole number of at least 1.")
        return Embedder(model, output, dimensions), model.max_in_flight * EMBED_WINDOW
    if is_endpoint(model):
        raise ArgumentError("embed: hr.llm.Endpoints is for prompt; give one hr.llm.Endpoint.")
    if dimensions is not None:
        raise ArgumentError("dimensions= is for endpoints; a SentenceTransformer has truncate_dim.")
    from headrace.predictors.sentence_transformers import SentenceTransformersPredictor

    if isinstance(model, SentenceTransformersPredictor):
        return model, None
    return SentenceTransformersPredictor(model, batch_size=batch_size), None


def _step(asked: Any, keep: Any, replace: bool, options: Any) -> Prompt:
    from headrace.annex.llm.prompter import BATCH_ROWS, WINDOW, Prompter
    from headrace.plan.functions import Function
    from headrace.plan.parameters import given_resources
    from headrace.plan.steps.predict import Model, Prompt
    from headrace.session.models import given_keep

    version = options.get("version")
    if version is not None and not isinstance(version, str):
        raise ArgumentError(f"prompt: version={version!r} is not a string.")
    if not any(options.get(name) is not None for name in ("compute", "concurrency")):
        options = {**options, "concurrency": 1}
    prompter: Any = Prompter(asked)
    model = Model(
        Function(prompter, version=version, model=True),
        asked.output,
        asked.columns,
        False,
        BATCH_ROWS,
        "pyarrow",
        given_resources(options),
        max(1, asked.endpoint.max_in_flight * WINDOW // BATCH_ROWS),
        own_names=True,
    )
    return Prompt((model,), given_keep(keep), given_flag("replace", replace))


def _local_step(asked: Any, keep: Any, replace: bool, options: Any) -> Prompt:
    from headrace.annex.llm.transformers import ROWS_PER_BATCH, LocalPrompter
    from headrace.plan.functions import Function
    from headrace.plan.parameters import given_resources
    from headrace.plan.steps.predict import LocalPrompt, Model
    from headrace.session.models import given_keep

    if all(
        options.get(name) is None for name in ("compute", "concurrency", "num_cpus", "num_gpus", "memory")
    ):
        options = {**options, "concurrency": 1}  # each worker would load a model of its own
    prompter: Any = LocalPrompter(asked)
    model = Model(
        Function(prompter, version=options.get("version"), model=True),
        asked.output,
        asked.columns,
        False,
        asked.endpoint.batch_size * ROWS_PER_BATCH,
        "pyarrow",
        given_resources(options),
        own_names=True,
    )
    return LocalPrompt((model,), given_keep(keep), given_flag("replace", replace))
