"""The predictor behind ``Dataset.embed`` over an endpoint: texts to vectors, many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from headrace.annex.llm.ahead import Ahead
from headrace.annex.llm.asking import Asking
from headrace.annex.llm.batch_ledger import NotAsked
from headrace.annex.llm.client import Reply
from headrace.annex.llm.endpoint import Endpoint
from headrace.annex.llm.refusals import Again, BadRow, ContextTooLong, Malformed, RequestRefused, RowError
from headrace.annex.llm.store import key_of
from headrace.annex.llm.usage import usage_of
from headrace.core.answered import Answered, with_answered
from headrace.core.failures import RowsFailed
from headrace.core.process import when_free

Vector: TypeAlias = "np.ndarray[Any, Any]"
_kept = msgspec.msgpack.Decoder(tuple[int, bytes]).decode
"""A vector by a batch, and the tokens of its text."""
NO_VECTOR = "the vector has values that are not numbers (null, NaN or infinite)"


class Embedder(Asking):
    """Asks for the vectors of a batch of texts with one request; equal texts of a batch are sent once.

    A request that the server refuses is divided, until the texts at fault are alone.
    """

    path = "/embeddings"

    def __init__(
        self,
        endpoint: Endpoint,
        output: str,
        dimensions: int | None = None,
        via: str = "requests",
        run: str = "",
    ) -> None:
        super().__init__("embed", endpoint, via, ("embed", endpoint.model, output), run)
        self.asked = endpoint
        self._output, self._dimensions = output, dimensions

    def identity(self) -> Any:
        """Return what decides about the vectors."""
        return ("embed", self.model.model, self._dimensions)

    @property
    def ahead(self) -> Ahead:
        """What a batch service does for all rows before the run."""
        return Ahead(self)

    def read_line(self, data: Mapping[str, Any]) -> bytes:
        """Return the vector in a line of a batch."""
        (vector,) = _vectors_in(data, 1)
        if not np.isfinite(vector).all():
            raise Malformed(NO_VECTOR)
        return msgspec.msgpack.encode((usage_of(data)[0] or 0, vector.tobytes()))

    async def predict(self, batch: pa.Table) -> pa.RecordBatch:
        """Return the vectors, float32 (n, d), or raise ``RowsFailed`` with those that there are."""
        texts = batch.column(0).to_pylist()
        wanted = [text for text in dict.fromkeys(texts) if isinstance(text, str)]
        found: dict[str, Vector | RowError] = {}
        uses: list[Answered] = []
        begun = self.begun
        if begun.batches is not None:
            await self._look_up(wanted, found, uses)
        if self.looks:
            return self._column([None] * len(texts))
        try:
            await self._ask([text for text in wanted if text not in found], found, uses)
        finally:
            if self._begun is begun:  # else it was closed
                await begun.used.written()
                begun.given += len(texts)
                begun.note(over=True)
        errors: dict[int, BaseException] = {}
        vectors: list[Vector | None] = []
        for row, text in enumerate(texts):
            kind = "is null" if text is None else f"holds {type(text).__name__}, and no text"
            column = f"column {batch.column_names[0]!r}"
            said = found[text] if isinstance(text, str) else BadRow(f"{column} {kind}")
            vectors.append(None if isinstance(said, RowError) else said)
            if isinstance(said, RowError):
                errors[row] = said
        results = with_answered(self._column(vectors), sum(uses, Answered(len(texts), len(errors))))
        if errors:
            raise RowsFailed(errors, results)
        return results

    async def _look_up(
        self, texts: list[str], found: dict[str, Vector | RowError], uses: list[Answered]
    ) -> None:
        """Add what a batch service has answered; note the other texts for it, where that is what rows are for."""
        batches = self.begun.batches
        assert batches is not None
        left: list[NotAsked] = []
        for text in texts:
            body = self._body([text])
            key = key_of(body, "embed")
            try:
                said = await when_free(batches.answer, key, "", exact=True)
            except RowError as error:
                found[text] = error
                continue
            if said is None:
                left.append(NotAsked(key, "", body))
            else:
                read, vector = _kept(said)
                found[text] = np.frombuffer(vector, np.float32)
                uses.append(Answered(prompt_tokens=read, cost=self.model.cost(read, 0, batch=True)))
        if self.looks:
            await when_free(batches.note, left, self.most)
        elif left and self.via == "batch":
            raise self.other_rows()

    async def _ask(self, texts: list[str], found: dict[str, Vector | RowError], uses: list[Answered]) -> None:
        """Add the vectors of texts, or their errors, and what requests have used."""
        if not texts:
            return

        def read(reply: Reply) -> Any:
            vectors = _vectors_in(reply.data, len(texts))
            read, latency = reply.usage[0] or 0, round(reply.latency * len(texts), 6)
            uses.append(Answered(prompt_tokens=read, latency=latency, cost=self.model.cost(read, 0)))
            return vectors

        try:
            made = await self.begun.ways[0].asker.ask(self._body(texts), read=read)
        except (RequestRefused, ContextTooLong) as error:
            if len(texts) > 1:
                half = len(texts) // 2
                await self._ask(texts[:half], found, uses)
                await self._ask(texts[half:], found, uses)
            else:
                found[texts[0]] = error
        except RowError as error:  # had all its tries: nobody knows of which text that is
            found.update(dict.fromkeys(texts, error))
        else:
            for text, vector in zip(texts, made, strict=True):
                found[text] = vector if np.isfinite(vector).all() else Malformed(NO_VECTOR)

    def _body(self, texts: list[str]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model.model, "input": texts, "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        return body

    def _column(self, vectors: Sequence[Vector | None]) -> pa.RecordBatch:
        """Return the vectors as a column; rows without one have zeros, which nobody sees."""
        width = next((len(vector) for vector in vectors if vector is not None), 1)
        values = np.zeros((len(vectors), width), np.float32)
        for row, vector in enumerate(vectors):
            if vector is not None:
                values[row] = vector
        column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)
        return pa.record_batch({self._output: column})


def _vectors_in(data: Mapping[str, Any], count: int) -> np.ndarray[Any, Any]:
    """Return the vectors of an answer for so many texts; raises ``Again`` for something else."""
    try:
        placed = sorted(data["data"], key=lambda each: int(each["index"]))
        with np.errstate(over="ignore"):  # what float32 does not hold becomes infinite, and is refused
            found = np.array([each["embedding"] for each in placed], np.float32)
        numbers = [int(each["index"]) for each in placed]
    except (KeyError, TypeError, ValueError):
        raise Again(Malformed, "200, and the answer has no vectors of one length") from None
    if numbers != list(range(count)) or found.ndim != 2 or not found.shape[1]:
        raise Again(Malformed, f"200, with {len(numbers):,} vectors for {count:,} texts")
    return found
