"""Ray's errors and amounts as text. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.human import size
from headrace.engines.deaths import Death
from headrace.errors import HeadraceError, ResourcesUnavailable


def cause_of_death(error: BaseException) -> tuple[str, bool]:
    """Say how an actor ended, and whether that was because its machine is gone."""
    text = str(error)
    preempted = bool(getattr(error, "preempted", False) or getattr(error, "_preempted", False))
    if preempted or re.search(r"node (was|is|has|died)|node has died|its node", text, re.IGNORECASE):
        return "the machine that it was on is gone", True
    found = re.search(r"exit detail: (.*?)(?:\. Some common causes|$)", text, re.DOTALL)
    pid = re.search(r"pid: (\d+)", text)
    who = f"worker process {pid.group(1)} ended" if pid else "a worker process ended"
    return f"{who}: {' '.join(found.group(1).split())}" if found else f"{who}: {first_line(error)}", False


def was_killed(error: BaseException) -> bool:
    """Say whether an actor ended because we killed it; or, as far as Ray knows, has not ended yet."""
    return bool(re.search(r"ray\.kill|unavailable", str(error), re.IGNORECASE))


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:500] or type(error).__name__


def never_ready(pool: str, deaths: Sequence[Death]) -> str:
    """Say that workers of a pool ended, one after another, before any of them could work."""
    last = deaths[-1]
    return (
        f"{len(deaths)} workers of {pool} in a row ended before they could work, the last one while "
        f"{last.preparing}: {last.last_words}. Something there takes the process down: try it in a Python process of "
        "its own to see what; or memory ran out."
    )


def not_shared(path: str, place: str) -> HeadraceError:
    """Say that a machine does not see the output."""
    return ResourcesUnavailable(
        f"The workers on {place} do not see the output folder: {path}, which this process has just written, is "
        "not there. On several machines the input and the output have to lie where all of them find them by the "
        "same path: in a network folder that each has mounted, or in an object store. For a table of a database, "
        "output= names the folder. Nothing was written there."
    )


def asked_for(options: Mapping[str, Any]) -> str:
    """Say what a worker needs.

    >>> asked_for({"num_cpus": 1.0, "num_gpus": 0, "memory": 1 << 31, "resources": {"disk": 1}})
    'CPU: 1, memory: 2 GiB, disk: 1'
    """
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    amounts = {named: options.get(name, name == "num_cpus") for name, named in names.items()}
    amounts |= {"memory": options.get("memory", 0), **options.get("resources", {})}
    labels = {f"label {name}": value for name, value in options.get("label_selector", {}).items()}
    return amounts_in_words(amounts) + "".join(f", {name}: {value}" for name, value in labels.items())


def amounts_in_words(amounts: Mapping[str, float]) -> str:
    """Say how much of each there is; nothing of what there is none of.

    >>> amounts_in_words({"CPU": 4.0, "GPU": 0, "memory": 1 << 30})
    'CPU: 4, memory: 1 GiB'
    """
    return ", ".join(
        f"{name}: {size(amount, digits=2)}" if "memory" in name else f"{name}: {amount:g}"
        for name, amount in amounts.items()
        if amount
    )
