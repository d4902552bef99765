"""Ray's ``ray.runtime_env``."""

from __future__ import annotations

from typing import Any


class RuntimeEnv(dict[str, Any]):
    """A ``runtime_env`` as a dict with these keys.

    >>> RuntimeEnv(env_vars={"MODE": "batch"})
    {'env_vars': {'MODE': 'batch'}}
    """

    def __init__(self, **given: Any) -> None:
        super().__init__({name: value for name, value in given.items() if value is not None})


class RuntimeEnvConfig(RuntimeEnv):
    """How long to wait until an environment is set up; there is nothing to wait for."""
