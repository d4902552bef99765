"""`headrace watch`: the page of a run while it goes on."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.annex.cli import texts
from headrace.annex.cli.answer import Answer, UsageMistake
from headrace.annex.cli.status import answer_of_status
from headrace.core.terminal import say

EXAMPLES = """\
  headrace watch fares/
  headrace watch fares/ --open                    in a browser
  headrace watch s3://bucket/fares/               a run on another machine
  ssh -L 8900:127.0.0.1:8900 box headrace watch fares/ --port 8900
"""


def watch(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="An output folder or address.", show_default=False)
    ],
    *,
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65535, help="Serve it there. Default: a free port."),
    ] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> Answer:
    """Serve the page of a run while it goes on, until it has ended.

    The page shows rows, speed, workers, failed rows and what was written, always up to date. It is served to this
    machine alone, at an address that ends with a token. Ctrl-C ends the page, not the run. Exit codes are those of
    `headrace status`.
    """
    from headrace.annex.report.facts import History
    from headrace.annex.report.follow import Follower
    from headrace.annex.report.live import Pages, Server

    follower = Follower(texts.output_of(out), kind=History)
    found = follower.poll()
    if not found.ended:
        try:
            server = Server(Pages(follower), port)
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
        found = follower.poll()
    return answer_of_status("watch", found)
