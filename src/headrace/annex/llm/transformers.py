"""A language model in the worker itself, by Hugging Face's transformers: for small models, and machines
without GPU."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from headrace.annex.llm.answers import AnswerColumns, Asked, added
from headrace.annex.llm.refusals import BadRow, ContextTooLong, RowError
from headrace.annex.llm.settings import LanguageModel
from headrace.annex.llm.store import Answer
from headrace.annex.llm.template import Messages, prompt_tokens
from headrace.core.arguments import known_arguments
from headrace.core.files.artifacts import Artifact
from headrace.errors import ArgumentError
from headrace.predictors.huggingface import json_in
from headrace.predictors.text import TextPredictor

MAX_TOKENS = 256
ROWS_PER_BATCH = 8
"""So many times ``batch_size`` rows are sorted by length before they are put into batches."""
SAMPLING = (
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "seed",
)


class Transformers(TextPredictor, LanguageModel):
    """A causal language model of Hugging Face's transformers, which each worker loads.

    Parameters
    ----------
    path
        A folder saved by ``save_pretrained``, with its tokenizer. A name of the hub is refused: nothing is
        downloaded.
    device
        ``"cuda"``, ``"cuda:1"``, ``"cpu"``, …. Default: CUDA if there is a GPU.
    dtype
        ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"auto"``. Default: the library's.
    batch_size
        How many prompts, in rows, the model works on at a time; they are sorted by length for that.
    trust_pickle
        Allows weights in ``pytorch_model.bin``, a pickle.
    sha256
        Pins the content of the folder.

    Messages go through the tokenizer's chat template; without one, their texts follow one another. ``sampling=`` of
    ``prompt`` takes ``max_tokens`` (256 by default), ``temperature`` (0, the default, takes the likeliest token),
    ``top_p``, ``top_k``, ``repetition_penalty`` and ``seed``.

    Raises ``ModelUnreadable``, ``ModelChanged`` and ``UntrustedPickle`` for the folder, ``ArgumentError`` for a model
    of another kind.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.llm.Transformers("qwen3-0.6b")
    Traceback (most recent call last):
        ...
    headrace.errors.ArgumentError: 'qwen3-0.6b' is not a folder here. If it is a model of the Hugging Face...
    """

    library = "transformers"
    extra = "transformers"
    model_class = "PreTrainedModel"
    marker = "config.json"
    dtypes = ("auto", *TextPredictor.dtypes)
    sampling_names = SAMPLING
    streams = False
    refuses: ClassVar[Mapping[str, str]] = {
        "overrides": "is for endpoints and engines; a Transformers model computes rows together",
        "tools": "is for endpoints: the server finds a model's tool calls in its text",
        "columns": "is for endpoints; here, there are no other columns",
        "n": "is for endpoints; repeat rows before, flat_map(lambda row: [row] * 3), and have temperature above 0",
        "fallback": "is for endpoints",
        "deadline": "is for endpoints",
        "order": "is for models that work on many requests at once; this one gets batches",
        **dict.fromkeys(
            ("cache", "budget", "runaway"),
            "is for endpoints; a Transformers model computes here, and costs nothing",
        ),
    }

    @known_arguments
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int = 8,
        trust_pickle: bool = False,
        sha256: str | None = None,
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(
                f"Transformers: it takes the path of a folder, as text, not {type(path).__name__}."
            )
        self._tokenizer: Any = None
        self._open(
            path, device=device, dtype=dtype, batch_size=batch_size, trust_pickle=trust_pickle, sha256=sha256
        )
        assert self._artifact is not None
        names = (json_in(self._artifact.path, "config.json") or {}).get("architectures") or ["?"]
        if not str(names[0]).endswith(("ForCausalLM", "LMHeadModel")):
            raise ArgumentError(
                f"The model {self.label} is a {names[0]}, which goes on with no text. It takes one "
                "for causal language "
                "modelling; predict with hr.TransformersPredictor is for others."
            )

    @property
    def batch_size(self) -> int:
        """How many prompts at a time."""
        return self._batch_size

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_tokenizer": None}

    def close(self) -> None:
        """Release the model."""
        super().close()
        self._tokenizer = None

    def _load_folder(self, artifact: Artifact) -> Any:
        import torch
        import transformers

        self._tokenizer = transformers.AutoTokenizer.from_pretrained(
            artifact.path, local_files_only=True, trust_remote_code=False, padding_side="left"
        )
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token or self._tokenizer.unk_token
        model = transformers.AutoModelForCausalLM.from_pretrained(
            artifact.path,
            local_files_only=True,
            trust_remote_code=False,
            **self._weight_files(),
            **self._precision(),
        )
        return model.to(self._device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def _options(self) -> tuple[Any, ...]:
        return ("generate", self._dtype)

    def check_value(self, name: str, value: Any) -> None:
        """Refuse what is no number."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise ArgumentError(f"sampling={{{name!r}: {value!r}}}: it takes a number of at least 0.")
        super().check_value(name, value)

    # ------------------------------------------------------------ generating

    def answers(
        self, prompts: Sequence[Messages], sampling: Mapping[str, Any], *, keep_raw: bool = False
    ) -> list[Answer | RowError]:
        """Return the answer to each prompt, in their order."""
        tokens: list[list[int]] = []
        made: list[Answer | RowError] = []
        for messages in prompts:
            error = BadRow("the prompt is empty")
            try:
                tokens.append(prompt_tokens(self._tokenizer, messages, "Transformers"))
            except BadRow as refused:
                tokens.append([])
                error = refused
            made.append(error)
        limit = int(sampling.get("max_completion_tokens", sampling.get("max_tokens", MAX_TOKENS)))
        room = self._room()
        fitting = []
        for place, each in enumerate(tokens):
            if room is not None and each and len(each) + limit > room:
                made[place] = ContextTooLong(
                    f"the prompt has {len(each):,} tokens and the answer may have {limit:,}; the model takes {room:,}"
                )
            elif each:
                fitting.append(place)
        fitting.sort(key=lambda place: -len(tokens[place]))
        for start in range(0, len(fitting), self._batch_size):
            places = fitting[start : start + self._batch_size]
            found = self._generated([tokens[place] for place in places], limit, sampling, keep_raw=keep_raw)
            for place, answer in zip(places, found, strict=True):
                made[place] = answer
        return made

    def _room(self) -> int | None:
        config = self._loaded.config
        room = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        return room if isinstance(room, int) else None

    def _generated(
        self, prompts: list[list[int]], limit: int, sampling: Mapping[str, Any], *, keep_raw: bool
    ) -> list[Answer]:
        """Generate for prompts of about one length, at once."""
        import torch

        pad = self._tokenizer.pad_token_id or 0
        width = max(map(len, prompts))
        ids = torch.tensor(
            [[pad] * (width - len(each)) + each for each in prompts], device=self._loaded.device
        )
        mask = torch.tensor(
            [[0] * (width - len(each)) + [1] * len(each) for each in prompts], device=ids.device
        )
        began = time.monotonic()
        with torch.inference_mode(), torch.random.fork_rng(enabled="seed" in sampling):
            if "seed" in sampling:
                torch.manual_seed(int(sampling["seed"]))
            options = _options_of(sampling)
            whole = self._loaded.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=limit, pad_token_id=pad, **options
            )
        seconds = round(time.monotonic() - began, 6)
        ends = self._ends()
        answers = []
        for prompt, row in zip(prompts, whole[:, width:].tolist(), strict=True):
            stop = next((place for place, token in enumerate(row) if token in ends), None)
            kept = row if stop is None else row[:stop]
            text = self._tokenizer.decode(kept, skip_special_tokens=True)
            count = len(row) if stop is None else stop + 1
            reason = "length" if stop is None else "stop"
            raw = json.dumps({"text": text, "token_ids": row[:count]}) if keep_raw else ""
            answers.append(Answer(text, reason, len(prompt), count, seconds, raw))
        return answers

    def _ends(self) -> frozenset[int]:
        """Return the tokens that end an answer."""
        ends = self._loaded.generation_config.eos_token_id
        if ends is None:
            ends = self._tokenizer.eos_token_id
        return frozenset(ends if isinstance(ends, list) else [ends] if ends is not None else [])


def _options_of(sampling: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"do_sample": bool(sampling.get("temperature", 0.0))}
    names = ("temperature", "top_p", "top_k") if options["do_sample"] else ()
    options |= {name: sampling[name] for name in (*names, "repetition_penalty") if name in sampling}
    if not options["do_sample"]:
        # Else those of the folder are warned of.
        options |= {
            "temperature": None,
            "top_p": None,
            "top_k": None,
        }
    return options


class LocalPrompter(AnswerColumns):
    """The predictor behind ``Dataset.prompt`` for a model of this machine."""

    batch_format = "pyarrow"

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self.model: Transformers = asked.model

    def load(self) -> None:
        """Load the model."""
        self.model.load()

    def close(self) -> None:
        """Release the model."""
        self.model.close()

    def predict(self, batch: pa.Table) -> pa.RecordBatch:
        """Return the answers to some rows, or raise ``RowsFailed`` with those that there are."""
        prompts: dict[int, Messages] = {}
        answers: list[Answer | None] = [None] * batch.num_rows
        errors: dict[int, BaseException] = {}
        for place, row in enumerate(batch.to_pylist()):
            try:
                messages = self.asked.template.render(row)
            except RowError as error:
                errors[place] = error
            else:
                asking = (
                    {"messages": messages}
                    if self.schema is None
                    else self.schema.asking({"messages": messages})
                )
                prompts[place] = asking["messages"]
        for place, found in self._asked_until_good(prompts).items():
            if isinstance(found, Answer):
                answers[place] = found
            else:
                errors[place] = found
        return self.batch_of(answers, errors)

    def _asked_until_good(self, prompts: dict[int, Messages]) -> dict[int, Answer | RowError]:
        """Ask, and ask again what was cut, or is not as asked."""
        found = self._ask(prompts, {})
        larger = self.settings.on_truncated
        if isinstance(larger, int):
            cut = [
                place
                for place, each in found.items()
                if isinstance(each, Answer) and each.finish_reason == "length"
            ]
            again = self._ask({place: prompts[place] for place in cut}, {"max_tokens": larger})
            self._replace(found, again, asked_longer=True)
        for number in range(self.settings.repairs if self.schema is not None else 0):
            assert self.schema is not None
            wrong: dict[int, Messages] = {}
            for place, each in found.items():
                problem = self.problem_of(each) if isinstance(each, Answer) else None
                if problem is not None and isinstance(each, Answer):
                    request = {"messages": prompts[place]}
                    wrong[place] = self.schema.repairing(request, each.text or "", problem)["messages"]
            self._replace(found, self._ask(wrong, {}), repairs=number + 1)
            prompts = prompts | wrong
        return found

    def _ask(self, prompts: dict[int, Messages], more: dict[str, Any]) -> dict[int, Answer | RowError]:
        sampling = {
            name: value for name, value in self.settings.sampling.items() if not more or "tokens" not in name
        }
        made = self.model.answers(list(prompts.values()), sampling | more, keep_raw=self.settings.keep_raw)
        return dict(zip(prompts, made, strict=True))

    @staticmethod
    def _replace(found: dict[int, Answer | RowError], by: dict[int, Answer | RowError], **said: Any) -> None:
        for place, last in by.items():
            before = found[place]
            if isinstance(before, Answer) and isinstance(last, Answer):  # else the first answer says more
                found[place] = msgspec.structs.replace(added(before, last), **said)
