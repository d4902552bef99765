"""`headrace publish` and `headrace discard`: what becomes of an output that is not as it was required."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.annex.cli import outcome
from headrace.annex.cli.answer import DONE, Answer
from headrace.annex.cli.texts import output_of
from headrace.annex.cli.verify import Catalog, Out, Uri

PUBLISH_EXAMPLES = """\
  headrace publish fares/ --because "the holiday has fewer rides"
"""
DISCARD_EXAMPLES = """\
  headrace discard fares/ --because "half of the input was missing"
"""

Because = Annotated[
    str, typer.Option("--because", metavar="TEXT", help="Why, for the record.", show_default=False)
]


def publish(out: Out, *, because: Because, catalog: Catalog = None, uri: Uri = None) -> Answer:
    """Publish an output that was kept back, as something that --require asks for is not met.

    Its parts appear, or its rows go into the table, as they would have at the end of the run. What is published
    already stays as it is. Killed and given again, it goes on.
    """
    from headrace.session.publishing import publish

    result = publish(output_of(out), because=because, catalog=catalog, uri=uri)
    return Answer(outcome.code_for(result), {"command": "publish", **outcome.of_result(result)}, str(result))


def discard(out: Out, *, because: Because = "") -> Answer:
    """Drop the rows of an output that was kept back, as something that --require asks for is not met.

    What readers see stays. The same command makes the rows again.
    """
    from headrace.session.publishing import discard

    discard(output_of(out), because=because)
    data = {"command": "discard", "status": "done", "exit_code": DONE, "output": output_of(out)}
    return Answer(DONE, data, f"{out}: the rows that were kept back are dropped.")
