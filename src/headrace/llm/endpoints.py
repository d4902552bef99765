"""Several servers of one model: asked by their weights, and one that does not answer is left alone for a while."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.arguments import known_arguments
from headrace.errors import ArgumentError
from headrace.llm.endpoint import Endpoint


class Endpoints:
    """Several servers of one model, as if they were one endpoint.

    Parameters
    ----------
    endpoints
        Two or more; all with the same ``model`` and ``prices``.
    weights
        Which share of the requests each gets, as long as all answer: ``[3, 1]`` gives the first three of four.
        Default: by their ``max_in_flight``.

    A server that does not answer is left alone, and its requests go to the others; after 10 seconds, then 20, 40, up
    to five minutes, it is tried again with one request. The run ends with ``EndpointUnavailable`` where none answers,
    and with ``EndpointRefused`` where one refuses the key, the address or the model.

    Raises ``ArgumentError`` for endpoints that do not go together.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.llm.Endpoints([hr.llm.Endpoint(f"http://gpu{i}:8000/v1", "qwen3-8b") for i in range(2)], weights=[3, 1])
    Endpoints('qwen3-8b' at http://gpu0:8000/v1, http://gpu1:8000/v1)
    """

    @known_arguments
    def __init__(self, endpoints: Sequence[Endpoint], *, weights: Sequence[float] | None = None) -> None:
        if (
            not isinstance(endpoints, Sequence)
            or len(endpoints) < 2
            or not all(isinstance(each, Endpoint) for each in endpoints)
        ):
            raise ArgumentError("Endpoints: it takes a list of two or more hr.llm.Endpoint.")
        first = endpoints[0]
        for each in endpoints[1:]:
            if each.model != first.model or each.prices != first.prices:
                raise ArgumentError(
                    f"Endpoints: {first!r} and {each!r} have different models or prices; answers of one run are "
                    "those of one model. Start the servers with one name (vLLM: --served-model-name)."
                )
        if len({each.base_url for each in endpoints}) < len(endpoints):
            raise ArgumentError("Endpoints: two of them have the same base_url.")
        if weights is not None and (
            not isinstance(weights, Sequence)
            or len(weights) != len(endpoints)
            or not all(isinstance(each, (int, float)) and 0 < each < float("inf") for each in weights)
        ):
            raise ArgumentError(
                f"weights={weights!r}: it takes a number above 0 for each of the {len(endpoints)}."
            )
        self.endpoints = tuple(endpoints)
        self.shares = tuple(float(each) for each in weights or (each.max_in_flight for each in endpoints))
        self.model, self.prices, self.cost = first.model, first.prices, first.cost

    def __repr__(self) -> str:
        return f"Endpoints({self.model!r} at {', '.join(each.base_url for each in self.endpoints)})"

    @property
    def max_in_flight(self) -> int:
        """How many requests may be under way, at all of them."""
        return sum(each.max_in_flight for each in self.endpoints)

    @property
    def max_retries(self) -> int:
        """How often a request is sent again that was not answered."""
        return max(each.max_retries for each in self.endpoints)

    @property
    def hedge(self) -> bool:
        """True if a request that is late may be sent to another of them."""
        return any(each.hedge for each in self.endpoints)

    def identity(self) -> tuple[str, ...]:
        """Return what decides about the answers: the model, not who serves it."""
        return (self.model,)

    def weights(self) -> str:
        """Describe where the model is."""
        return f"the model is at {', '.join(each.base_url for each in self.endpoints)}"
