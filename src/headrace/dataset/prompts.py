"""Verbs that ask a language model about each row: nothing runs yet."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.arguments import known_arguments
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError
from headrace.plan.step_options import WorkerOptions

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from headrace.llm.endpoint import Endpoint
    from headrace.llm.spending import Caps
    from headrace.llm.transformers import Transformers
    from headrace.plan.steps.predict import Prompt

EMBED_WINDOW = 4
"""So many times the requests under way are read ahead: embeddings of so many texts take about the same time."""

_OWN = {
    "model": "the Endpoint names it",
    "messages": "the template makes them",
    "n": "each row gets one answer; flat_map before makes several rows of one",
    "stream": "answers are read as a whole",
    "tools": "answers are texts, and nobody here would carry out what a model calls",
    "tool_choice": "answers are texts, and nobody here would carry out what a model calls",
    "response_format": "say schema=",
}


class PromptVerbs(DatasetBase):
    """Verbs that ask language models."""

    __slots__ = ()

    @known_arguments(options=WorkerOptions)
    def prompt(
        self,
        template: str | Sequence[Mapping[str, Any]],
        model: Endpoint | Transformers,
        *,
        output: str = "answer",
        system: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        schema: Any = None,
        guided: bool = True,
        repairs: int = 1,
        on_truncated: str | int = "error",
        keep_raw: bool = False,
        max_cost: float | None = None,
        max_total_tokens: int | None = None,
        cache: str | os.PathLike[str] | None = None,
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
            column with the bytes of an image may stand for the address.
        model
            Where it is asked: ``hr.llm.Endpoint(base_url, model)``; or ``hr.llm.Transformers(folder)``, which each
            worker loads, and which is only told of ``schema``.
        output
            The name of the column of the answers, of type string. Beside it there are ``answer_finish_reason``
            (string), ``answer_prompt_tokens`` and ``answer_completion_tokens`` (int64), and ``answer_latency``
            (float64, seconds), if it is ``"answer"``.
        system
            What stands before the messages as the system's.
        sampling
            Parameters of each request, as the server knows them: ``{"temperature": 0.0, "max_tokens": 200}``.
        schema
            What an answer has to be: a JSON schema, a pydantic model, a list of choices, or ``re.compile(…)``. The
            server is asked to see to it, each answer is checked, and the column has its type: a struct for an object
            with properties. What the schema does not name is left out.
        guided
            False: the server is not asked to see to ``schema``, but the model is told of it.
        repairs
            How often a model is shown what is wrong with its answer, and asked again.
        on_truncated
            What becomes of an answer that ended at ``max_tokens``: ``"error"`` (the row has no answer), ``"keep"``,
            or a whole number: it is asked once more with so many.
        keep_raw
            Keep the whole response of the server, as JSON text, in ``answer_raw``.
        max_cost, max_total_tokens
            What the run may cost by the endpoint's ``prices``, and how many tokens it may use, in and out. No request
            begins that may go beyond. Then the run ends with ``SpendingCapReached``, and goes on with a higher cap.
        cache
            A folder to keep answers in, beyond the run, and for others that ask the same.
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
            ``headrace[llm]`` is not installed.

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
        from headrace.llm.answers import Asked
        from headrace.llm.template import Template
        from headrace.session.models import given_output

        asked = Asked(
            Template(template, system),
            _given_model(model),
            given_output(output),
            _given_sampling(sampling),
            _given_truncation(on_truncated, sampling or {}),
            _given_schema(schema, guided, model),
            _given_count("repairs", repairs),
            _given_flag("keep_raw", keep_raw),
            _given_caps(max_cost, max_total_tokens, model),
            "" if cache is None else _given_folder(cache),
        )
        if not _is_endpoint(model):
            _check_local(asked, max_cost, max_total_tokens, cache)
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
    from headrace.llm.endpoint import Endpoint

    if not _given_count("batch_size", batch_size):
        raise ArgumentError("batch_size=0: it takes a whole number of at least 1.")
    if isinstance(model, Endpoint):
        from headrace.llm.embedder import Embedder

        if dimensions is not None and not _given_count("dimensions", dimensions):
            raise ArgumentError("dimensions=0: it takes a whole number of at least 1.")
        return Embedder(model, output, dimensions), model.max_in_flight * EMBED_WINDOW
    if dimensions is not None:
        raise ArgumentError("dimensions= is for endpoints; a SentenceTransformer has truncate_dim.")
    from headrace.predictors.sentence_transformers import SentenceTransformersPredictor

    if isinstance(model, SentenceTransformersPredictor):
        return model, None
    return SentenceTransformersPredictor(model, batch_size=batch_size), None


def _step(asked: Any, keep: Any, replace: bool, options: Any) -> Prompt:
    from headrace.llm.prompter import BATCH_ROWS, WINDOW, Prompter
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
        asked.template.columns,
        False,
        BATCH_ROWS,
        "pyarrow",
        given_resources(options),
        max(1, asked.endpoint.max_in_flight * WINDOW // BATCH_ROWS),
        own_names=True,
    )
    return Prompt((model,), given_keep(keep), _given_flag("replace", replace))


def _local_step(asked: Any, keep: Any, replace: bool, options: Any) -> Prompt:
    from headrace.llm.transformers import ROWS_PER_BATCH, LocalPrompter
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
        asked.template.columns,
        False,
        asked.endpoint.batch_size * ROWS_PER_BATCH,
        "pyarrow",
        given_resources(options),
        own_names=True,
    )
    return LocalPrompt((model,), given_keep(keep), _given_flag("replace", replace))


def _check_local(asked: Any, max_cost: Any, max_total_tokens: Any, cache: Any) -> None:
    """Refuse what only endpoints have."""
    from headrace.llm.transformers import check_sampling

    check_sampling(asked.sampling)
    for name, value in {"max_cost": max_cost, "max_total_tokens": max_total_tokens, "cache": cache}.items():
        if value is not None:
            raise ArgumentError(
                f"{name}= is for endpoints; a Transformers model computes here, and costs nothing."
            )


def _is_endpoint(model: Any) -> bool:
    from headrace.llm.endpoint import Endpoint

    return isinstance(model, Endpoint)


def _given_model(model: Any) -> Any:
    if not _is_endpoint(model):
        kind = type(model)
        if kind.__module__ == "headrace.llm.transformers" and kind.__name__ == "Transformers":
            return model
        raise ArgumentError(
            f"prompt: the model is {kind.__name__}; it is an endpoint, "
            "hr.llm.Endpoint('http://localhost:8000/v1', 'name of the model'), or hr.llm.Transformers('folder')."
        )
    return model


def _given_sampling(value: Any) -> dict[str, Any]:
    import json

    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ArgumentError(
            f"sampling={value!r:.80}: it takes a dict of parameters, such as {{'temperature': 0.0}}."
        )
    for name in value:
        if name in _OWN:
            raise ArgumentError(f"sampling= has {name!r}, and that is not for here: {_OWN[name]}.")
    try:
        return dict(json.loads(json.dumps(dict(value), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"sampling={value!r:.80}: it cannot be sent as JSON: {error}.") from None


def _given_truncation(value: Any, sampling: Mapping[str, Any]) -> str | int:
    if isinstance(value, str) and value in ("error", "keep"):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(
            f"on_truncated={value!r}: it takes 'error', 'keep', or with how many tokens to ask once more."
        )
    first = sampling.get("max_completion_tokens", sampling.get("max_tokens"))
    if not isinstance(first, int) or first >= value:
        raise ArgumentError(
            f"on_truncated={value}: it has to be more than max_tokens, which sampling= has to have "
            f"({first!r} there): else nothing would be different the second time."
        )
    return value


def _given_schema(value: Any, guided: Any, model: Any) -> Any:
    if not isinstance(guided, bool):
        raise ArgumentError(f"guided={guided!r}: it takes True or False.")
    if value is None:
        return None
    from headrace.llm.schema import AnswerSchema

    return AnswerSchema(value, guided=guided and _is_endpoint(model))


def _given_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentError(f"{name}={value!r}: it takes a whole number of at least 0.")
    return value


def _given_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}={value!r}: it takes True or False.")
    return value


def _given_folder(value: Any) -> str:
    from headrace.core.files.paths import absolute

    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ArgumentError(f"cache={value!r}: it takes the path of a folder.")
    return str(absolute(os.fspath(value), "The folder of cache="))


def _given_caps(max_cost: Any, max_total_tokens: Any, model: Any) -> Caps:
    from headrace.llm.spending import Caps

    if max_cost is not None:
        if isinstance(max_cost, bool) or not isinstance(max_cost, (int, float)) or not max_cost > 0:
            raise ArgumentError(f"max_cost={max_cost!r}: it takes a number above 0.")
        if _is_endpoint(model) and model.prices is None:
            raise ArgumentError(
                f"max_cost={max_cost!r}: nobody knows what a token costs. Say it to the endpoint: "
                "Endpoint(…, prices={'input': 0.15, 'output': 0.6}), per million tokens."
            )
    if max_total_tokens is not None and _given_count("max_total_tokens", max_total_tokens) < 1:
        raise ArgumentError("max_total_tokens=0: it takes a whole number of at least 1.")
    return Caps(None if max_cost is None else float(max_cost), max_total_tokens)
