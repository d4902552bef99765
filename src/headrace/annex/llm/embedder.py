"""The predictor behind ``Dataset.embed`` over an endpoint: texts to vectors, many at a time."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.annex.llm.ahead import Ahead, name_of
from headrace.annex.llm.answers import way_of
from headrace.annex.llm.batch_ledger import BatchLedger, NotAsked, other_rows
from headrace.annex.llm.client import Client
from headrace.annex.llm.endpoint import Endpoint
from headrace.annex.llm.refusals import Again, BadRow, ContextTooLong, Malformed, RequestRefused, RowError
from headrace.annex.llm.store import key_of
from headrace.core.failures import RowsFailed
from headrace.core.process import when_free

Vector: TypeAlias = "np.ndarray[Any, Any]"
NO_VECTOR = "the vector has values that are not numbers (null, NaN or infinite)"


class Embedder:
    """Asks for the vectors of a batch of texts with one request; equal texts of a batch are sent once.

    A request that the server refuses is divided, until the texts at fault are alone.
    """

    batch_format = "pyarrow"

    def __init__(
        self, endpoint: Endpoint, output: str, dimensions: int | None = None, via: str = "requests"
    ) -> None:
        self.label = endpoint.model
        self._endpoint, self._output, self._dimensions, self._via = endpoint, output, dimensions, via
        self._client: Client | None = None
        self._folder = ""  # of the run, if it has one
        self._name = name_of("embed", self.label, output)
        self._batches: BatchLedger | None = None
        self.looks = False  # for what rows ask: what nobody has asked is noted for a batch service

    def identity(self) -> Any:
        """Return what decides about the vectors."""
        return ("embed", self._endpoint.model, self._dimensions)

    def weights(self) -> str:
        """Describe where the model is, and how it is asked."""
        return f"the model is at {self._endpoint.base_url}{way_of(self._endpoint, self._via)}"

    @property
    def retried(self) -> deque[str] | None:
        """Why requests were sent again, since somebody looked."""
        return self._client.retried if self._client is not None else None

    @property
    def ahead(self) -> Ahead:
        """What a batch service does for all rows before the run."""
        looking, label = copy.copy(self), f"embed({self.label})"
        looking.looks = True

        def read(data: Mapping[str, Any]) -> bytes:
            (vector,) = _vectors_in(data, 1)
            if not np.isfinite(vector).all():
                raise Malformed(NO_VECTOR)
            return bytes(vector.tobytes())

        return Ahead(looking, self._endpoint, label, self._name, "/embeddings", read, self._via)

    def keep_in(self, folder: str) -> None:
        """Find in the folder of the run what a batch service has answered."""
        self._folder = folder

    async def load(self) -> None:
        """Make ready to ask."""
        self._client = Client(self._endpoint, "/embeddings")
        await self._client.open()
        if BatchLedger.there(self._folder, self._name):
            self._batches = BatchLedger(self._folder, self._name)

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()
        if self._batches is not None:
            batches, self._batches = self._batches, None
            batches.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_batches": None}

    async def predict(self, batch: pa.Table) -> pa.RecordBatch:
        """Return the vectors, float32 (n, d), or raise ``RowsFailed`` with those that there are."""
        texts = batch.column(0).to_pylist()
        wanted = [text for text in dict.fromkeys(texts) if isinstance(text, str)]
        found: dict[str, Vector | RowError] = {}
        if self._batches is not None:
            await self._look_up(self._batches, wanted, found)
        if self.looks:
            return self._column([None] * len(texts))
        await self._ask([text for text in wanted if text not in found], found)
        errors: dict[int, BaseException] = {}
        vectors: list[Vector | None] = []
        for row, text in enumerate(texts):
            kind = "is null" if text is None else f"holds {type(text).__name__}, and no text"
            column = f"column {batch.column_names[0]!r}"
            said = found[text] if isinstance(text, str) else BadRow(f"{column} {kind}")
            vectors.append(None if isinstance(said, RowError) else said)
            if isinstance(said, RowError):
                errors[row] = said
        if errors:
            raise RowsFailed(errors, self._column(vectors))
        return self._column(vectors)

    async def _look_up(
        self, batches: BatchLedger, texts: list[str], found: dict[str, Vector | RowError]
    ) -> None:
        """Add what a batch service has answered; note the other texts for it, where that is what rows are for."""
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
                found[text] = np.frombuffer(said, np.float32)
        if self.looks:
            await when_free(batches.note, left, lambda body: (0, 0.0))
        elif left and self._via == "batch":
            raise other_rows(f"embed({self.label})")

    async def _ask(self, texts: list[str], found: dict[str, Vector | RowError]) -> None:
        """Add the vectors of texts, or their errors."""
        if not texts:
            return
        assert self._client is not None
        try:
            made = await self._client.ask(
                self._body(texts), read=lambda reply: _vectors_in(reply.data, len(texts))
            )
        except (RequestRefused, ContextTooLong) as error:
            if len(texts) > 1:
                half = len(texts) // 2
                await self._ask(texts[:half], found)
                await self._ask(texts[half:], found)
            else:
                found[texts[0]] = error
        except RowError as error:  # had all its tries: nobody knows of which text that is
            found.update(dict.fromkeys(texts, error))
        else:
            for text, vector in zip(texts, made, strict=True):
                found[text] = vector if np.isfinite(vector).all() else Malformed(NO_VECTOR)

    def _body(self, texts: list[str]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._endpoint.model, "input": texts, "encoding_format": "float"}
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
