"""Why an output is not opened for a plan, and what to do: nothing was touched."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence

import msgspec

from headrace.core.files.storage import storage_at
from headrace.core.human import sentence
from headrace.errors import ForeignOutput, OutputExists, PlanChanged
from headrace.output.inputs import InputFile
from headrace.output.layout import Output
from headrace.plan.identity import difference


def of_a_fleet(output: Output) -> PlanChanged:
    """Return the error where one machine is to work alone, and several have begun together."""
    return PlanChanged(
        f"Machines have begun {output} together, and have not completed it. Nothing was touched: run with "
        "fleet=True, also if one machine is to finish it; or write to another place."
    )


def seen_too_early(output: Output) -> PlanChanged:
    """Return the error where something is required of a run that readers see already."""
    return PlanChanged(
        f"Readers see the finished rows of {output}, and some rows are still to be made. So require() comes too late "
        "for this run: finish it without require(); or mode='overwrite' makes all rows again, out of sight."
    )


def withheld(output: Output) -> OutputExists:
    """Return the error where a complete run waits for somebody to decide about it."""
    return OutputExists(
        f"{output} holds a complete run of mode='overwrite' that is not published, as a requirement was not met. "
        f"Nothing was touched. Decide about it first: `headrace publish {output}` or `headrace discard {output}`; or "
        "run with mode='overwrite' again."
    )


def in_a_table(output: Output, why: str) -> PlanChanged:
    """Return the error where parts would be removed that are rows of a table."""
    return PlanChanged(
        f"The run in {output} cannot start from the beginning: {why}. Nothing was touched. on_change='continue' goes "
        "on with a run that is not finished; another output= makes all rows again, once those in the table are "
        "deleted. mode='overwrite' replaces all rows of the table."
    )


def finished(output: Output, mode: str, *, in_table: bool) -> OutputExists:
    """Return the error where a run has finished, and ``mode`` asks for an output without one."""
    if mode == "append":
        return OutputExists(
            f"The output {output} holds a finished run, and mode='append' does not add the rows of another run to "
            "it: it would not be known which rows are there twice. Nothing was touched: write each run to a folder "
            "of its own, and read them as a list of paths; or use incremental=True, which adds what is new in the "
            "input."
        )
    if in_table:
        return OutputExists(
            f"The run in {output} has finished, so its table is there, and mode='error' was asked for. Nothing was "
            "touched: mode='append' with another output= adds rows to the table, mode='overwrite' replaces its rows."
        )
    return OutputExists(
        f"The output {output} holds a finished run already. Nothing was touched: choose another folder, or use "
        "mode='ignore' to leave it as it is, or mode='overwrite' to replace it."
    )


def another_plan(output: Output, before: str, now: str, *, in_table: bool) -> PlanChanged:
    """Return the error where a run has another shape than the plan; says how they differ."""
    lines = difference(msgspec.json.decode(before), msgspec.json.decode(now))
    other = "write to another folder, or replace this output with mode='overwrite'"
    other = "give this run a folder of its own with another output=" if in_table else other
    return PlanChanged(
        f"The output {output} belongs to a run of another plan: {'; '.join(lines)}. Nothing was touched: {other}."
    )


def changed_before_a_query(output: Output, what: str) -> PlanChanged:
    """Return the error where code has changed by which the rows of a query were made."""
    return PlanChanged(
        f"{sentence(what)} has changed since the run in {output} was made. It comes before a query, whose result is "
        "made of all rows, so no finished row can be kept. Nothing was touched: on_change='restart' does all rows "
        "again."
    )


def unrecognised(output: Output, what: str) -> PlanChanged:
    """Return the error where it is not known whether code is the same."""
    return PlanChanged(
        f"The run in {output} cannot be recognised: it is not known whether {what} is the same as before. "
        "on_change='continue' keeps the rows that are finished and does the others. on_change='restart' does all "
        "rows again. With version='…', the step is recognised by that text from then on; or create the value "
        "inside the function."
    )


def other_code(output: Output, what: Sequence[str]) -> PlanChanged:
    """Return the error where code has changed."""
    named = sentence(", ".join(what))
    return PlanChanged(
        f"{named} is not the same as when the run in {output} was made. The code, or a value that "
        "it uses, such as a model, has changed. Nothing was touched: on_change='continue' keeps the rows that are "
        "finished and does the others with the new code. on_change='restart' does all rows again. If the results are "
        "the same and only the code looks different, give the step version='…': it is then recognised by that text."
    )


def other_schema(output: Output, change: str) -> PlanChanged:
    """Return the error where a finished output has other types than ``schema=`` asks for."""
    return PlanChanged(
        f"The output {output} is finished, and `schema=` asks for another schema than it has: {change}. Nothing was "
        "touched: on_change='restart' makes it again, mode='overwrite' keeps the old one readable until the new one "
        "is complete."
    )


# ------------------------------------------------------------ an output in its own input


def check_apart(root: str, arguments: Sequence[str], files: Sequence[InputFile]) -> None:
    """Refuse an output inside its own input, and an input inside its own output."""
    out = os.path.realpath(root)
    for argument in arguments:
        if _takes_in(argument, out):
            raise ForeignOutput(
                f"The output {root} lies inside its own input {argument}: a later run would read predictions as "
                "input. Write to a folder next to it."
            )
    within = {
        folder: _inside(os.path.realpath(folder), out) for folder in {_folder(path) for path, _, _ in files}
    }
    for path, _, _ in files:
        if within[_folder(path)] or (os.path.islink(path) and _inside(os.path.realpath(path), out)):
            raise ForeignOutput(
                f"The input file {path} lies inside the output {root}. Write to a folder of its own."
            )


def _folder(path: str) -> str:
    return path.rpartition(os.sep)[0] or os.sep


def _takes_in(argument: str, out: str) -> bool:
    """Say whether a path argument, a folder or a pattern, would also read parts in the folder ``out``."""
    if storage_at(argument).may_hold():
        return _inside(out, os.path.realpath(argument))
    parts = argument.split(os.sep)
    first = next((i for i, part in enumerate(parts) if re.search(r"[*?\[]", part)), None)
    if first is None:
        return False
    fixed = os.path.realpath(os.sep.join(parts[:first]) or os.sep)
    if not _inside(out, fixed):
        return False
    below = os.path.relpath(out, fixed)
    return _matches(parts[first:], ([] if below == "." else below.split(os.sep)) + [""])


def _matches(pattern: list[str], path: list[str]) -> bool:
    """Say whether ``path``, whose last name may be anything, or what is in it can match ``pattern``."""
    if not path:
        return not pattern
    if not pattern:
        return False
    if pattern[0] == "**":
        return _matches(pattern[1:], path) or len(pattern) == 1 or _matches(pattern, path[1:])
    if len(path) == 1:
        return len(pattern) == 1
    if not fnmatch.fnmatchcase(path[0], pattern[0]):
        return False
    return len(pattern) == 1 or _matches(pattern[1:], path[1:])


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
