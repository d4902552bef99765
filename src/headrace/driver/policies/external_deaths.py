"""Deaths that no row can have caused: the worker was not ready, or its machine is gone."""

from __future__ import annotations

from headrace.driver.policy import Policy, Verdict, WorkerDeath
from headrace.errors import NeverReady, NodeLost


class ExternalDeaths(Policy):
    """Charges no shard with the death of a worker that could not work yet, or whose machine is gone."""

    def on_death(self, death: WorkerDeath) -> Verdict | None:
        """Decide on deaths from outside; leave the others to the next policy."""
        return Verdict(charged=False) if isinstance(death.error, (NeverReady, NodeLost)) else None
