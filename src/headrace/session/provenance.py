"""What a run was made with: command, inputs, models, packages; and the event that says so."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headrace.core.events import RunDescribed, StageDescribed
from headrace.core.files.artifacts import Artifact
from headrace.core.table_changes import position_text
from headrace.options import RunOptions
from headrace.plan.logical import Plan
from headrace.plan.physical import Stage
from headrace.plan.steps.base import Step
from headrace.predictors import MODELS
from headrace.session import invocation, provenance
from headrace.session.explain import described
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.core.work import Shard
    from headrace.session.execution_plan import ExecutionPlan


_INPUTS = 5
_PACKAGES = (
    "numpy",
    "pyarrow",
    "pandas",
    *MODELS.ours,
    "tensorflow",
    "PIL",
    "ray",
)
_SECRET = re.compile(r"(?i)(pass(word|wd)?|secret|token|credential|api[-_]?key|access[-_]?key)")
_USERINFO = re.compile(r"(://[^/@\s:]*):[^/\s]*@")  # of an address: user and password
_COMMAND = 2_000  # characters


def command_line(argv: Sequence[str] | None = None) -> str:
    """Return the command that this process was started with, as a shell takes it; empty where nobody typed one.

    Words that look like secrets are left out, and so is code after ``-c``.

    >>> command_line(["python", "score.py", "--token", "s3cret", "--password=x", "a b"])
    "python score.py --token … --password=… 'a b'"
    >>> command_line(["python", "score.py", "postgresql://ada:s3cret@db/shop"])
    'python score.py postgresql://ada:…@db/shop'
    """
    words = list(sys.orig_argv if argv is None else argv)
    if argv is None and ("ipykernel" in sys.modules or hasattr(sys, "ps1")):
        return ""
    shown: list[str] = []
    hide = False
    for i, word in enumerate(words):
        if i == 0:
            shown.append(os.path.basename(word))
        elif hide:
            shown.append("…")
        elif words[i - 1] == "-c":
            shown.append("…")
            break
        else:
            name, sign, _ = word.partition("=")
            shown.append(f"{name}=…" if sign and _SECRET.search(name) else shlex.quote(word))
        hide = word.startswith("-") and "=" not in word and bool(_SECRET.search(word))
    return _USERINFO.sub(r"\1:…@", " ".join(shown))[:_COMMAND]


def working_folder() -> str:
    """Return the folder in which the program works; empty if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def inputs(plan: Plan) -> tuple[tuple[str, ...], int]:
    """Return the first of the paths that the source was given, or its table, and how many files they have."""
    described = plan.source.describe()
    paths = described.get("paths") or described.get("path") or described.get("table") or ()
    listed = [paths] if isinstance(paths, str) else list(paths)
    if "table" in described and (version := position_text(plan.source.position())):
        listed = [f"{path}, {version}" for path in listed]
    return tuple(str(path) for path in listed[:_INPUTS]), len(plan.source.files())


def source_name(plan: Plan) -> str:
    """Return what the source reads, in a word, such as ``"Parquet"`` or ``"Images"``."""
    return type(plan.source).__name__.removesuffix("Source") or "the source"


def models(steps: Sequence[Step], code: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the step of each model with the digest of its file, or with the fingerprint of what was given.

    ``code`` has the fingerprints of ``plan.identity.code_of``; nothing is read or computed again.
    """
    found = []
    for i, step in enumerate(steps):
        prints = [print_ for place, print_ in code.items() if place.startswith(f"{i}: ")]
        for each in step.functions():
            if not each.predicts:
                continue
            files = [artifact for artifact in _artifacts(each.function.call) if artifact.seen]
            digests = [f"{artifact.path}, SHA-256 {artifact.seen[-1]}" for artifact in files]
            digests += [version] if (version := each.function.parts.prompt_version) else []
            found.append((each.label, "; ".join(digests or [f"fingerprint {print_}" for print_ in prints])))
    return tuple(found)


def _artifacts(model: Any) -> list[Artifact]:
    values = getattr(model, "__dict__", {}).values()
    return [value for value in values if isinstance(value, Artifact)]


def packages() -> dict[str, str]:
    """Return the versions of those libraries that this process has imported."""
    found = {}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


# ---------------------------------------------------------------- the event that describes a run before it begins

_ABOUT_REPORTING = ("progress", "observers", "report", "watch")


def describe(
    run: str,
    plan: Plan,
    execution: ExecutionPlan,
    shards: Sequence[Shard],
    *,
    elapsed: float = 0.0,
    code: Mapping[str, str] = MappingProxyType({}),
    output: str = "",
) -> RunDescribed:
    """Return the event that describes a run before it begins; it contains no value of any row.

    ``code`` has the fingerprints of ``plan.identity.code_of``.
    """
    system = os.uname()
    options = execution.options
    paths, files = provenance.inputs(plan)
    command = provenance.command_line()
    typed = invocation.current() is not None
    return RunDescribed(
        run,
        __version__,
        platform.python_version(),
        f"{system.sysname} {system.release} {system.machine}",
        system.nodename,
        os.getpid(),
        execution.capacity.cpus,
        execution.memory_limit,
        options.engine_name,
        {name: _in_words(value) for name, value in changed(options)},
        described(plan, execution, shards),
        tuple(step.label() for step in plan.steps),
        _stages(execution),
        round(elapsed, 3),
        provenance.source_name(plan),
        paths,
        files,
        command,
        f"headrace resume {shlex.quote(output)}" if typed and output else command,
        provenance.working_folder(),
        provenance.models(plan.steps, code),
        provenance.packages(),
        every_row=needs_every_row(plan),
    )


def needs_every_row(plan: Plan) -> bool:
    """Say whether no row may be set aside, as the table that is written to has each of them already."""
    return plan.sink is not None and plan.sink.target is not None and plan.sink.target.every_row


def describe_reading(plan: Plan, execution: ExecutionPlan, *, elapsed: float) -> RunDescribed:
    """Return the same for a run whose rows are read: only what its progress shows."""
    return RunDescribed(
        "",
        __version__,
        "",
        "",
        "",
        os.getpid(),
        execution.capacity.cpus,
        0,
        execution.options.engine_name,
        {"on_error": execution.options.on_error},
        "",
        tuple(step.label() for step in plan.steps),
        _stages(execution),
        round(elapsed, 3),
    )


def _stages(execution: ExecutionPlan) -> tuple[StageDescribed, ...]:
    return tuple(
        StageDescribed(
            stage_name(stage),
            stage.workers,
            tuple(step.label() for step in stage.steps),
            next((step.label() for step in stage.steps if any(each.workers for each in step.needs())), ""),
            stage.num_gpus,
            {
                each.label: each.batch_size
                for step in stage.steps
                for each in step.functions()
                if each.batch_size is not None
            },
        )
        for stage in execution.stages
    )


def stage_name(stage: Stage) -> str:
    """Return the labels of a stage's steps."""
    return " → ".join(step.label() for step in stage.steps if not step.metrics) or "read"


def changed(options: RunOptions) -> list[tuple[str, Any]]:
    """Return the options that differ from the defaults, without those about reporting.

    >>> changed(RunOptions(workers=2, progress=False))
    [('workers', 2)]
    """
    usual = RunOptions()
    return [
        (field.name, getattr(options, field.name))
        for field in fields(options)
        if field.name not in _ABOUT_REPORTING and getattr(options, field.name) != getattr(usual, field.name)
    ]


def _in_words(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple):
        return ", ".join(map(_in_words, value))
    return str(value)
