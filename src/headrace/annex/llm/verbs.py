"""Verbs that ask a language model about each row: nothing runs yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.annex.llm.settings import (
    LanguageModel,
    RequestSettings,
    Settings,
    given_flag,
    given_model,
    given_positive,
    optional,
)
from headrace.core.arguments import Unsupported, known_arguments
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError
from headrace.plan.verb_options import WorkerOptions

if TYPE_CHECKING:
    from headrace.annex.llm.endpoint import Endpoint
    from headrace.annex.llm.engines import VLLM, SGLang
    from headrace.plan.steps.predict import Prompt

EMBED_WINDOW = 4
"""So many times the requests under way are read ahead: embeddings of so many texts take about the same time."""


_ELSEWHERE = {
    "max_in_flight": Unsupported("the endpoint has it, Endpoint(…, max_in_flight=16)."),
    "batch_size": Unsupported("rows are asked one by one."),
    **{
        name: Unsupported(f"the model has it: model.with_options(sampling={{{name!r}: …}}).")
        for name in ("temperature", "max_tokens")
    },
    **{
        name: Unsupported(f"the model has it: model.with_options({name}=…).")
        for name in Settings.__annotations__
    },
}


class PromptVerbs(DatasetBase):
    """Verbs that ask language models."""

    __slots__ = ()

    @known_arguments(also=_ELSEWHERE, options=WorkerOptions)
    def prompt(
        self,
        template: str | Sequence[Mapping[str, Any]],
        model: Endpoint | VLLM | SGLang,
        *,
        output: str = "answer",
        schema: Any = None,
        via: str = "requests",
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
            Where it is asked: ``hr.llm.Endpoint(base_url, model)``; or what workers load: ``hr.llm.VLLM(folder)`` or
            ``hr.llm.SGLang(folder)``. ``model.with_options(system=, sampling=, repairs=, budget=, …)`` says how it is
            asked: what stands before the messages, parameters of requests, limits, and what becomes of answers that
            are not as they should be.
        output
            The name of the column of the answers, of type string. Beside it there are ``answer_finish_reason``
            (string), ``answer_prompt_tokens`` and ``answer_completion_tokens`` (int64), and ``answer_latency``
            (float64, seconds), if it is ``"answer"``.
        schema
            What an answer has to be: a JSON schema, a pydantic model, a list of choices, or ``re.compile(…)``. The
            server is asked to enforce it, and each answer is checked. The column has the type of the schema: a struct
            for an object with properties. Properties that the schema does not name are left out. With a pydantic
            model, its own validators run, and the values that they return are written.
        via
            ``"requests"``: each row is asked by a request of its own. ``"batch"``: by the endpoint's batch service,
            for about half the price, within a day; the rows are written to a folder of this machine, and
            ``answer_latency`` is 0. ``"auto"``: by batches where the endpoint has such a service, they are cheaper
            by its ``prices``, and there is time for them by ``deadline=`` of ``with_options``.
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
        from headrace.annex.llm.prompter import Prompter
        from headrace.annex.llm.template import Template, has_images
        from headrace.session.models import given_output

        given_model("prompt", model)
        messages = Template(template, model.settings.system)
        if has_images(messages.messages) and not model.takes_images:
            raise ArgumentError(
                f"prompt: the messages have parts that are not text, such as images, and a {model.noun} model takes "
                "text alone. hr.llm.VLLM takes images, and so do endpoints, if the model can see."
            )
        form = None
        if schema is not None:
            from headrace.annex.llm.schema import AnswerSchema

            form = AnswerSchema(schema, guided=model.settings.guided)
        model.check_together(schema)
        way = given_via("prompt", via, model)
        model = model.on_gpus(options.get("num_gpus"))
        run = _run_of(self._plan.steps)
        prompter: Any = Prompter(messages, model, given_output(output), form, way, run)
        return self.with_step(_step(prompter, keep, replace, options))

    @known_arguments(options=WorkerOptions)
    def embed(
        self,
        column: str,
        model: Any,
        *,
        output: str = "embedding",
        batch_size: int = 64,
        dimensions: int | None = None,
        via: str = "requests",
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
            ``hr.llm.Endpoint(base_url, model)``, which is asked by ``/embeddings``; its ``with_options`` takes
            ``budget=`` and ``deadline=`` for this. Or what ``SentenceTransformersPredictor`` takes: such a predictor,
            a ``SentenceTransformer``, or its folder.
        output
            The name of the column of vectors.
        batch_size
            How many texts, in rows, a request or the model gets at a time.
        dimensions
            How long vectors shall be, where an endpoint's model can shorten them.
        via
            As in ``prompt``: ``"batch"`` has the endpoint's batch service embed each text.
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
        way = given_via("embed", via, model)
        run = _run_of(self._plan.steps)
        predictor, depth = _given_embedder(model, given_output(output), batch_size, dimensions, way, run)
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


def given_via(verb: str, value: Any, model: Any) -> str:
    """Read how a model is asked."""
    from headrace.annex.llm.endpoint import Endpoint

    if not isinstance(value, str) or value not in ("requests", "batch", "auto"):
        raise ArgumentError(f"{verb}: via={value!r}: it takes 'requests', 'batch' or 'auto'.")
    if value == "batch" and not isinstance(model, Endpoint):
        what = model.noun if isinstance(model, LanguageModel) else type(model).__name__
        raise ArgumentError(
            f"{verb}: via='batch' asks the batch service of one hr.llm.Endpoint, and not {what}."
        )
    if value != "requests" and isinstance(model, LanguageModel) and model.settings.runaway is not None:
        raise ArgumentError(
            f"{verb}: runaway= learns from answers as they come, and via={value!r} may send all requests at once. "
            "Leave one of them out; max_tokens in sampling= holds for batches, too."
        )
    return value


def _given_embedder(
    model: Any, output: str, batch_size: Any, dimensions: Any, via: str, run: str
) -> tuple[Any, int | None]:
    """Return the predictor of ``embed``, and how many batches of it may be under way, if it waits for them."""
    from headrace.annex.llm.endpoint import Endpoint

    given_positive("batch_size", batch_size)
    if isinstance(model, Endpoint):
        from headrace.annex.llm.embedder import Embedder

        settings = model.settings
        if settings != RequestSettings(deadline=settings.deadline, budget=settings.budget):
            raise ArgumentError(
                "embed: the endpoint has settings of with_options, which are for prompt. It takes budget= and "
                "deadline= alone."
            )
        model.check_budget(embeds=True)
        length = optional(given_positive, "dimensions", dimensions)
        return Embedder(model, output, length, via, run), model.max_in_flight * EMBED_WINDOW
    if isinstance(model, LanguageModel):
        raise ArgumentError(f"embed: hr.llm.{model.noun} is for prompt; give one hr.llm.Endpoint.")
    if dimensions is not None:
        raise ArgumentError("dimensions= is for endpoints; a SentenceTransformer has truncate_dim.")
    from headrace.predictors.sentence_transformers import SentenceTransformersPredictor

    if isinstance(model, SentenceTransformersPredictor):
        return model, None
    return SentenceTransformersPredictor(model, batch_size=batch_size), None


def _run_of(before: Sequence[Any]) -> str:
    """Return the name by which earlier steps count what they ask, as all of a run share its cap; "" without any."""
    from headrace.annex.llm.asking import Asking
    from headrace.plan.steps.base import innermost

    models = [model for step in map(innermost, before) for model in getattr(step, "models", ())]
    found: list[Any] = [model.function.predictor for model in models]
    return next((each.run for each in found if isinstance(each, Asking)), "")


def _step(prompter: Any, keep: Any, replace: bool, options: Any) -> Prompt:
    from headrace.annex.llm.prompter import BATCH_ROWS, WINDOW
    from headrace.plan.functions import Function
    from headrace.plan.parameters import given_resources
    from headrace.plan.steps.predict import Model, Prompt
    from headrace.session.models import given_keep

    version = options.get("version")
    if version is not None and not isinstance(version, str):
        raise ArgumentError(f"prompt: version={version!r} is not a string.")
    if options.get("compute") is None and options.get("concurrency") is None:
        # It waits more than it works, or each worker would load a model.
        options = {**options, "concurrency": 1}
    model = Model(
        Function(prompter, version=version, model=True),
        prompter.output,
        prompter.inputs,
        False,
        BATCH_ROWS,
        "pyarrow",
        given_resources(options),
        max(1, prompter.asked.max_in_flight * WINDOW // BATCH_ROWS),
        own_names=True,
    )
    return Prompt((model,), given_keep(keep), given_flag("replace", replace))
