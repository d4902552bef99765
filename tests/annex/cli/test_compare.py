"""`headrace compare`, and what `--require` and `--against` make of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Said

Headrace = Callable[..., Said]

pytest.importorskip("duckdb")


def test_from_a_refused_run_to_the_page_that_shows_why(place: Path, headrace: Headrace) -> None:
    (place / "models.py").write_text(
        "def old(batch): return batch['km'] * 2.0\n"
        "def new(batch): return batch['km'] * 2.0 + (batch['id'] % 10 == 0)\n"
    )
    (place / "in.csv").write_text("id,km\n" + "".join(f"{i},{i % 17}\n" for i in range(500)))
    inputs = ("in.csv", "--inputs", "id,km", "--output", "fare")
    assert headrace("predict", "models:old", *inputs, "-o", "yesterday").code == 0
    asked = ("predict", "models:new", *inputs, "-o", "today", "--require", "changed<=0.05")
    assert "need against=" in headrace(*asked).err
    assert headrace(*asked, "--against", "nowhere").code == 2
    refused = headrace(*asked, "--against", "yesterday")
    assert refused.code == 4 and "changed is 0.1, compared with yesterday" in refused.err
    shown = headrace("compare", "yesterday", "today", "--report", "page.html", "--label", "km")
    assert shown.code == 0 and "450 the same, 50 changed (10 % not the same)" in shown.out
    page = (place / "page.html").read_text()
    assert "Rows that changed most" in page and "fare: histogram" in page
    found = headrace("compare", "yesterday", "today", "--columns", "fare", "--sample", "2", "--json").json
    assert (found["different"], found["exit_code"]) == (50, 0)
    assert [row["row"] for row in found["columns"]["fare"]["worst"]] == [0, 10]
    assert headrace(*asked[:-1], "changed<=0.2", "--against", "yesterday").code == 0
    assert headrace("compare", "yesterday", "yesterday").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["a.csv", "b.csv"], "Say which column or columns tell a row: --on key."),
        (["a.csv", "b.csv", "--on", "idd"], "a.csv has no column 'idd'. Did you mean 'id'?"),
        (["a.csv", "c.csv", "--on", "id"], "no 'c.csv'"),
        (["a.csv", "b.csv", "--on", "id", "--sample", "5000"], "sample=5000 is not a whole number"),
        (["a.csv", "b.csv", "--on", "id", "--report", "no/where/page.html"], "cannot be written"),
        (["a.csv"], "Missing argument 'NEW'"),
    ],
)
def test_what_cannot_be_compared(place: Path, headrace: Headrace, words: list[str], told: str) -> None:
    for name in ("a.csv", "b.csv"):
        (place / name).write_text("id,x\n1,2\n")
    said = headrace("compare", *words)
    assert said.code in (1, 2) and told in said.err and "Traceback" not in said.err
