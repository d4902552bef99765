"""`headrace resume`: the command line that an output was written with, carried out again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.annex.cli.answer import DONE, REJECTS, Answer, UsageMistake, answer_of, in_flags
from headrace.annex.cli.scripts import check_outside_output
from headrace.annex.cli.texts import argument, flag, in_shell, output_of
from headrace.core.files.storage import absolute, output_at
from headrace.core.terminal import say
from headrace.core.work import FLEET, HOME
from headrace.plan.verb_options import OF_RUNS
from headrace.session import invocation

if TYPE_CHECKING:
    from headrace.output.runs import SavedRun

RESUME_EXAMPLES = """\
  headrace resume fares/
  headrace resume fares/ --dry-run                    only show the command
  headrace resume fares/ --workers 8
  headrace resume fares/ --on-change continue         the code was fixed since
"""

JOIN_EXAMPLES = """\
  headrace join /shared/fares/
  headrace join /shared/fares/ --workers 8
"""

RETRY_REJECTED_EXAMPLES = """\
  headrace rejected fares/ --to repaired.csv
  headrace retry-rejected fares/ --fix repaired.csv      once it was edited
  headrace retry-rejected fares/ --on-change continue    the code was corrected
"""

_MAY = ("predict", "run", "sql")

Folder = Annotated[Path, argument("OUT", "An output folder.")]
DryRun = Annotated[bool, flag("--dry-run", "Show the command, and do nothing.")]
Workers = Annotated[str | None, flag("--workers -w N", "Another number of workers than before.")]
OnChange = Annotated[str, flag("--on-change WHAT", OF_RUNS["on_change"])]
JsonAgain = Annotated[bool, flag("--json", "As for the command that is carried out: one JSON object.")]


def retry_rejected(
    context: typer.Context,
    out: Folder,
    *,
    fix: Annotated[
        Path | None,
        flag("--fix FILE", "What `headrace rejected OUT --to FILE` wrote, with other values in it."),
    ] = None,
    dry_run: DryRun = False,
    workers: Workers = None,
    on_change: OnChange = "refuse",
    json: JsonAgain = False,
) -> Answer | int:
    """Try the rejected rows of an output again, and no others: those that succeed get their places.

    The command that OUT was written with is given again, with --refresh rejected; `headrace resume` says how it is
    read, and what is refused. Rows that fail again stay rejected. --require asks again.
    """
    root = _folder_of(out)
    again = (
        "run that program again; its write_… verb tries rejected rows again by the options refresh and fix"
    )
    known = _known(_last_run(root).folder, root, again)
    repaired = [] if fix is None else ["--fix", absolute(str(fix), "--fix")]
    more = ["--mode", "resume", "--refresh", "rejected", *repaired, *_more(known, json=json, workers=workers)]
    end = _end(known["argv"])
    argv = [word for i, word in enumerate(known["argv"]) if word != "--incremental" or i > end]
    argv = _with(argv, [*more, "--on-change", on_change])
    return _carry_out(context, root, known, argv, dry_run=dry_run)


def resume(
    context: typer.Context,
    out: Folder,
    *,
    dry_run: DryRun = False,
    workers: Workers = None,
    on_change: OnChange = "refuse",
    json: JsonAgain = False,
) -> Answer | int:
    """Go on with a run that was killed or failed: the command that OUT was written with is given again.

    It is read from OUT as words, shown, and carried out in the folder in which it was given. Nothing else in OUT is
    used, and nothing there is ever executed: a script or a model inside OUT is refused, and so is a command that
    somebody else may have written. A run that is complete is left alone.
    """
    from headrace.output.places.place import place_at
    from headrace.output.verification import gone

    root = _folder_of(out)
    run = _last_run(root)
    if run.complete and not gone(place_at(root), run):
        code = REJECTS if run.state.ledger.rejected else DONE
        data = {"status": "complete", "output": str(root), "run": run.name}
        return Answer(code, data, f"{out} is complete: there is nothing left to do.")
    known = _known(run.folder, root, "run that program again, and it goes on where it stopped")
    more = _more(known, json=json, workers=workers)
    argv = _with(known["argv"], [*more, "--on-change", on_change])
    return _carry_out(context, root, known, argv, dry_run=dry_run)


def join(
    context: typer.Context,
    out: Folder,
    *,
    dry_run: DryRun = False,
    workers: Workers = None,
    json: JsonAgain = False,
) -> Answer | int:
    """Work on an output that other machines write (--fleet): the command of the first of them is given here, too.

    `headrace resume` says how it is read, and what is refused. The folder in which it was given, and what it names,
    have to be here by the same paths.
    """
    root = _folder_of(out)
    folder = root / HOME / FLEET
    if not folder.is_dir():
        raise UsageMistake(
            f"No machines work on {out} together: none was started with --fleet, or all is complete."
        )
    known = _known(folder, root, "run that program here, and it joins the others")
    argv = _with(known["argv"], _more(known, json=json, workers=workers))
    return _carry_out(context, root, known, argv, dry_run=dry_run)


def _more(known: dict[str, Any], *, json: bool, workers: str | None) -> list[str]:
    more = ["--json"] if json and "--json" not in known["argv"] else []
    return [*more, "--workers", workers] if workers is not None else more


def _carry_out(
    context: typer.Context, root: Path, known: dict[str, Any], argv: list[str], *, dry_run: bool
) -> Answer | int:
    """Show a command line, and carry it out where the known one was given."""
    say(f"cd {in_shell([known['cwd']])} && headrace {in_shell(argv)}", sys.stderr)
    if dry_run:
        return Answer(DONE, {"status": "dry run", "argv": argv, "cwd": known["cwd"]})
    with invocation.running(known["argv"], origin=root, words=in_flags):
        check_outside_output(Path(known["cwd"]), None)
        _enter(known["cwd"])
        return answer_of(context.find_root().command, argv)


def _folder_of(out: Path) -> Path:
    """Return the folder of an output whose command may be carried out."""
    return Path(
        output_at(output_of(out)).on_disk(
            f"{output_of(out)} is in a store, where others may write, so a command from there is not run. Run the "
            "command that wrote it again, on any machine, and it goes on where it stopped."
        )
    )


def _last_run(root: Path) -> SavedRun:
    """Read the run that was begun last."""
    from headrace.output import runs

    runs.check_is_output(root)
    for run in runs.begun_runs(root):
        return run
    raise UsageMistake(f"No run has begun in {root}: there is nothing to resume.")


def _enter(folder: str) -> None:
    """Go where the command was given."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageMistake(
            f"The folder {folder}, in which the command was given, cannot be entered: {error.strerror}. Bring it "
            "back, or run the command yourself, in the folder that replaced it."
        ) from error


def _known(folder: Path, root: Path, again: str) -> dict[str, Any]:
    """Read the command that a run was made with; refuse what is not ours, or not meant for this folder."""
    path = folder / invocation.COMMAND
    known = invocation.recorded(folder)
    if known is None:
        how = "It is damaged" if path.exists() else "It was written by a program, not by a command"
        raise UsageMistake(f"{path} has no command line. {how}: {again}.")
    for each in (path, folder):
        status = each.stat()
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
            raise UsageMistake(
                f"{each} belongs to another user, or others may write to it, so its command was not run. If you want "
                f"this, run it yourself: cd {in_shell([known['cwd']])} && headrace {in_shell(known['argv'])}"
            )
    if not known["argv"] or known["argv"][0] not in _MAY:
        raise UsageMistake(f"{path} holds no command that can be run again: {in_shell(known['argv'])}.")
    _check_place(known["output"], root, known["argv"])
    if os.path.isdir(known["cwd"]):
        _check_place(known["cwd"], None, known["argv"])
    return known


def _check_place(recorded: str, root: Path | None, argv: list[str]) -> None:
    """Refuse a folder that is not named by its one full path, or that is not ``root``.

    ``.``, a link or ``/proc/self/cwd`` would be wherever this output was unpacked, and whatever lies there would run.
    """
    if not os.path.isabs(recorded) or _real(recorded) != recorded:
        raise UsageMistake(
            f"The command that was found in the output names the folder {recorded!r}, which is not a full path "
            "without links. Headrace has not written that, so it was not run. If you want this, run it yourself: "
            f"headrace {in_shell(argv)}"
        )
    if root is not None and recorded != os.path.realpath(root):
        raise UsageMistake(
            f"{root} was written as {recorded}, and the command still names that folder. Move it back, or run the "
            f"command yourself with the new folder: headrace {in_shell(argv)}"
        )


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # a NUL in it, or no characters
        return ""


def _end(argv: list[str]) -> int:
    return argv.index("--") if "--" in argv else len(argv)


def _with(argv: list[str], more: list[str]) -> list[str]:
    """Add options; the last one of a name counts, and what stands behind ``--`` is the script's."""
    end = _end(argv)
    return [*argv[:end], *more, *argv[end:]]
