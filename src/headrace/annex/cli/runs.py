"""How runs are, or were: `headrace status` and `watch`, `runs` of a place, and the `report` of one."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headrace.annex.cli.answer import DONE, FAILED, UNPUBLISHED, Answer, UsageMistake, in_flags, wants_json
from headrace.annex.cli.outputs import Out
from headrace.annex.cli.texts import argument, flag, output_of
from headrace.core.tables import Table
from headrace.core.terminal import say, size_of

if TYPE_CHECKING:
    from headrace.annex.cli.fleets import FleetTold
    from headrace.annex.report.facts import Facts, History
    from headrace.annex.report.follow import Follower, RunStatus


RUNS_EXAMPLES = """\
  headrace runs predictions/                       how is each output there?
  headrace runs predictions/fares/                 one output: all its runs
  headrace runs s3://bucket/ --report runs.html    as a page, with charts
  headrace runs predictions/ --json | jq '.runs[].status'
"""


def runs(
    place: Annotated[Path, argument("PLACE", "A folder or an address with outputs, or an output.")],
    *,
    report: Annotated[Path | None, flag("--report FILE", "Write a page, with metrics over time.")] = None,
) -> Answer:
    """Show how all outputs below a place are: rows, rejected rows, metrics, cost, requirements, age.

    Of one output, all its runs are shown. Only small files are read: `headrace status` says more of one run, and
    `headrace verify` reads the parts. The exit code is 0, however the runs are.
    """
    from headrace.annex.report.catalogue import runs as found_in

    found = found_in(output_of(place))
    data: dict[str, Any] = {"place": found.place, "history": found.history}
    text = found.text(shutil.get_terminal_size().columns)
    if report is not None:
        data["report"] = str(found.write_report(report))
        text += f"\n\nreport: {data['report']}"
    return Answer(DONE, {**data, "runs": found.data()}, text)


STATUS_EXAMPLES = """\
  headrace status fares/
  headrace status fares/ --watch       Ctrl-C ends the display, not the run
  headrace status fares/ --json | jq .rows_per_second
"""

_LINES = 10.0  # seconds between two looks where there is no terminal


def status(
    out: Out,
    *,
    watch: Annotated[bool, flag("--watch -w", "Go on until the run has ended.")] = False,
) -> Answer:
    """Say how the run in an output is: rows, speed, time left, workers, memory, failed rows.

    May be asked at any time, from any terminal. Exit code 0: complete, or under way; 1: it ended and is not complete,
    so the same command, run again, goes on from there; or files, or the table with its rows, are gone since; 4: it is
    complete, and not published, as a requirement was not met. Where machines work together (--fleet), it lists them.
    """
    from headrace.annex.fleet.board import fleet_of
    from headrace.annex.report.follow import Follower

    fleet = fleet_of(output_of(out))
    if fleet is not None:
        from headrace.annex.cli.fleets import fleet_told

        return _of_fleet(output_of(out), fleet_told(fleet))
    follower = Follower(output_of(out))
    found = follower.poll()
    if watch and not found.ended:
        found = _watched(follower, found, shown=not wants_json())
    return _answer(found)


def _answer(found: RunStatus) -> Answer:
    """Return how a run is, as the answer of a command."""
    code = DONE if found.facts.status in ("complete", "under way") and not found.gone else FAILED
    code = UNPUBLISHED if found.facts.status == "unpublished" else code
    return Answer(code, found.data(), _status_text(found))


def _of_fleet(out: str, told: FleetTold) -> Answer:
    """Say what each of many machines has done of an output, which is complete when none is left."""
    machines = ["", *told.machines.text().splitlines()] if told.machines.rows else []
    shown = [*Table((), told.lines).text().splitlines(), *machines]
    return Answer(told.code, told.data, "\n".join([out, *(f"  {line}".rstrip() for line in shown)]))


def _status_text(found: RunStatus) -> str:
    driver = found.state.last
    typed = driver.described.resume if driver is not None and driver.described is not None else ""
    words = in_flags if typed.startswith("headrace ") else str  # as it was told where it ran
    lines = [(name, words(told) if name == "status" else told) for name, told in found.lines()]
    return "\n".join([found.facts.output, *(f"  {line}" for line in Table((), lines).text().splitlines())])


def _watched(follower: Follower, found: RunStatus, *, shown: bool) -> RunStatus:
    """Follow a run until it has ended, or until Ctrl-C."""
    try:
        if shown and sys.stdout.isatty():
            return _live(follower, found)
        due = 0.0
        while not found.ended:
            if shown and time.monotonic() >= due:
                say(f"{_status_text(found)}\n", sys.stdout)
                due = time.monotonic() + _LINES
            time.sleep(follower.pause)
            found = follower.poll()
    except KeyboardInterrupt:
        found = follower.poll()
    return found


def _live(follower: Follower, found: RunStatus) -> RunStatus:
    from headrace.observers.live_lines import ForgivingStream
    from headrace.observers.progress import TerminalView

    with contextlib.closing(TerminalView(ForgivingStream(sys.stdout))) as view:
        while not found.ended:
            view.draw(found.state, found.now, found.seconds_left, _status_text(found))
            time.sleep(follower.pause)
            found = follower.poll()
    return found


WATCH_EXAMPLES = """\
  headrace watch fares/
  headrace watch fares/ --open                    in a browser
  headrace watch s3://bucket/fares/               a run on another machine
  ssh -L 8900:127.0.0.1:8900 box headrace watch fares/ --port 8900
"""


def watch(
    out: Out,
    *,
    port: Annotated[int, flag("--port N", "Serve it there. Default: a free port.", least=0, most=65535)] = 0,
    open_browser: Annotated[bool, flag("--open", "Open it in a browser.")] = False,
) -> Answer:
    """Serve the page of a run while it goes on, until it has ended.

    The page shows rows, speed, workers, failed rows and what was written, always up to date. It is served to this
    machine alone, at an address that ends with a token. Ctrl-C ends the page, not the run. Exit codes are those of
    `headrace status`.
    """
    from headrace.annex.cli.fleets import OutputPages
    from headrace.annex.fleet.board import fleet_of
    from headrace.annex.report.facts import History
    from headrace.annex.report.follow import Follower
    from headrace.annex.report.serving import Server

    place = output_of(out)
    follower = Follower(place, kind=History)
    if fleet_of(place) is not None or not follower.poll().ended:
        try:
            server = Server(lambda: OutputPages(follower, place), port)
        except OSError as error:
            raise UsageMistake(
                f"No page can be served at port {port}: {error.strerror}. Without --port, a free one is taken.",
                "headrace watch",
            ) from error
        with contextlib.closing(server), contextlib.suppress(KeyboardInterrupt):
            say(f"{server.address}\nCtrl-C ends the page, not the run.", sys.stderr)
            if open_browser:
                import webbrowser

                webbrowser.open(server.address)
            while not server.pages.page()[1]:
                time.sleep(server.pages.pause)
    return status(out)


REPORT_EXAMPLES = """\
  headrace report fares/                          where is it? (made again)
  headrace report fares/ --open                   in a browser
  headrace report fares/ --values --to page.html  with some of the rejected rows
  headrace report before/ after/                  two runs side by side
"""


def report(
    out: Out,
    other: Annotated[Path | None, argument("[OUT2]", "Another, to compare the first with.")] = None,
    *,
    to: Annotated[Path | None, flag("--to FILE", "Put it there instead of beside the run's record.")] = None,
    values: Annotated[bool, flag("--values", "Show some of the rejected rows, with their values.")] = False,
    open_browser: Annotated[bool, flag("--open", "Open it in a browser.")] = False,
) -> Answer:
    """Make the report of a run again, and print where it is: one page, which needs no network.

    Every run leaves one when it ends; a run that was killed, or that goes on, has none until it is asked for. With
    two outputs, the page compares their runs, and the terminal shows the same in tables; it lies beside the record of
    the second.
    """
    from headrace.annex.report import page as pages
    from headrace.annex.report import template, writing
    from headrace.output.names import REPORT

    root, folder, (history, facts) = _read_run(out, values=values)
    name, page = REPORT, b""
    if other is not None:
        first = history, facts
        root, folder, (history, facts) = _read_run(other, values=values)
        name, page = writing.COMPARISON, pages.comparison_page(first, (history, facts))
    if to is None and folder is None:
        raise UsageMistake(
            f"{root} is in a store: say where to write the page, with --to FILE.", "headrace report"
        )
    place = template.write_page(to or Path(folder or "", name), page or pages.page(history, facts))
    text = str(place)
    if other is not None:
        text = f"{pages.in_words(first, (history, facts), size_of(sys.stdout)[0])}\n\n{text}"
    if open_browser:
        import webbrowser

        if not webbrowser.open(place.as_uri()):
            text += "\nNo browser was found to open it."
    data = {"status": facts.status, "output": root, "run": facts.run, "report": str(place)}
    return Answer(DONE, data, text)


def _read_run(out: Path, *, values: bool) -> tuple[str, Path | None, tuple[History, Facts]]:
    """Return an output's name, the folder of its run unless it is in a store, and what is known of it."""
    from headrace.annex.report import writing
    from headrace.output.places.place import looked_at

    with looked_at(output_of(out)) as output:
        folder = writing.folder_of(output.root)
        found = writing.read(output, folder, alive=output.writer() is not None, values=values)
        return output.name, None if output.copied else folder, found
