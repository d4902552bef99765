"""The predictor behind ``Dataset.embed`` over an endpoint: texts to vectors, many at a time."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.annex.llm.answers import asked_again
from headrace.annex.llm.client import Client
from headrace.annex.llm.endpoint import Endpoint
from headrace.annex.llm.refusals import Again, BadRow, ContextTooLong, Malformed, RequestRefused, RowError
from headrace.core.failures import RowsFailed

BYTES_PER_TOKEN = 4


class Embedder:
    """Asks for the vectors of a batch of texts with one request; equal texts of a batch are sent once.

    A request that the server refuses is divided, until the texts at fault are alone.
    """

    batch_format = "pyarrow"

    def __init__(self, endpoint: Endpoint, output: str, dimensions: int | None = None) -> None:
        self.label = endpoint.model
        self._endpoint, self._output, self._dimensions = endpoint, output, dimensions
        self._client: Client | None = None

    def identity(self) -> Any:
        """Return what decides about the vectors."""
        return ("embed", self._endpoint.model, self._dimensions)

    def weights(self) -> str:
        """Describe where the model is."""
        return f"the model is at {self._endpoint.base_url}"

    @property
    def retried(self) -> deque[str] | None:
        """Why requests were sent again, since somebody looked."""
        return self._client.retried if self._client is not None else None

    async def load(self) -> None:
        """Make ready to ask."""
        self._client = Client(self._endpoint, "/embeddings")
        await self._client.open()

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    async def predict(self, batch: pa.Table) -> pa.RecordBatch:
        """Return the vectors, float32 (n, d), or raise ``RowsFailed`` with those that there are."""
        texts = batch.column(0).to_pylist()
        errors: dict[int, BaseException] = {}
        rows_of: dict[str, list[int]] = {}
        for row, text in enumerate(texts):
            if isinstance(text, str):
                rows_of.setdefault(text, []).append(row)
            else:
                kind = "is null" if text is None else f"holds {type(text).__name__}, and no text"
                errors[row] = BadRow(f"column {batch.column_names[0]!r} {kind}")
        vectors: dict[int, np.ndarray[Any, Any]] = {}
        await self._vectors(list(rows_of), rows_of, vectors, errors)
        results = self._column(len(texts), vectors)
        if errors:
            raise RowsFailed(errors, results)
        return results

    async def _vectors(
        self,
        texts: list[str],
        rows_of: dict[str, list[int]],
        vectors: dict[int, np.ndarray[Any, Any]],
        errors: dict[int, BaseException],
    ) -> None:
        """Add the vectors of texts, or their errors, by the numbers of their rows."""
        if not texts:
            return
        assert self._client is not None
        try:
            found = await asked_again(
                lambda: self._ask(texts), self._endpoint.max_retries, self._client.retried
            )
        except (RequestRefused, ContextTooLong) as error:
            if len(texts) > 1:
                half = len(texts) // 2
                await self._vectors(texts[:half], rows_of, vectors, errors)
                await self._vectors(texts[half:], rows_of, vectors, errors)
                return
            errors.update(dict.fromkeys(rows_of[texts[0]], error))
            return
        except RowError as error:  # had all its tries: nobody knows of which text that is
            errors.update({row: error for text in texts for row in rows_of[text]})
            return
        for text, vector in zip(texts, found, strict=True):
            if np.isfinite(vector).all():
                vectors.update(dict.fromkeys(rows_of[text], vector))
            else:
                no_vector = Malformed("the vector has values that are not numbers (null, NaN or infinite)")
                errors.update(dict.fromkeys(rows_of[text], no_vector))

    async def _ask(self, texts: list[str]) -> np.ndarray[Any, Any]:
        assert self._client is not None
        body: dict[str, Any] = {"model": self._endpoint.model, "input": texts, "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        tokens = sum(len(text.encode("utf-8", "replace")) for text in texts) // BYTES_PER_TOKEN + 1
        reply = await self._client.ask(body, tokens)
        try:
            placed = sorted(reply.data["data"], key=lambda each: int(each["index"]))
            with np.errstate(over="ignore"):  # what float32 does not hold becomes infinite, and is refused
                found = np.array([each["embedding"] for each in placed], np.float32)
            numbers = [int(each["index"]) for each in placed]
        except (KeyError, TypeError, ValueError):
            raise Again(Malformed, "200, and the answer has no vectors of one length") from None
        if numbers != list(range(len(texts))) or found.ndim != 2 or not found.shape[1]:
            raise Again(Malformed, f"200, with {len(numbers):,} vectors for {len(texts):,} texts")
        return found

    def _column(self, rows: int, vectors: dict[int, np.ndarray[Any, Any]]) -> pa.RecordBatch:
        """Return the vectors as a column; rows without one have zeros, which nobody sees."""
        width = len(next(iter(vectors.values()))) if vectors else 1
        values = np.zeros((rows, width), np.float32)
        for row, vector in vectors.items():
            values[row] = vector
        column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)
        return pa.record_batch({self._output: column})
