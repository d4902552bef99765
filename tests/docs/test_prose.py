"""tools/prose.py finds long sentences and words to avoid in prose, and in nothing else."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from .pages import ROOT

LONG = "One two three four five six seven eight nine ten " * 3 + "end."
PAGE = f"""# Nobody reads headings

One has `a b`, e.g. this. Two is
[a link](nobody.md)! (Three.) "Four."

| a table | {LONG} |
|---|---|
| nobody | b |

```python
nobody = "{LONG}"
```

- An item,
  and nobody else. {LONG}
"""


@pytest.fixture(scope="module")
def prose() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        return importlib.import_module("prose")


def test_sentences_have_the_line_on_which_they_begin(prose: Any) -> None:
    assert [tuple(one) for one in prose.sentences(PAGE)] == [
        (3, "One has `a␣b`, e.g. this."),
        (3, "Two is a link!"),
        (4, "(Three.)"),
        (4, '"Four."'),
        (14, "An item, and nobody else."),
        (15, LONG),
    ]


def test_sentences_are_counted_in_prose_and_words_looked_for_in_all_but_code(prose: Any) -> None:
    assert [(one.line, why) for one, why in prose.too_long(PAGE)] == [(15, "31 words")]
    assert [(one.line, why[:8].lower()) for one, why in prose.odd_words(PAGE)] == [
        (at, '"nobody"') for at in (1, 8, 14)
    ]


def test_a_page_may_have_what_is_allowed_and_no_more(
    prose: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "BARS", tmp_path / "prose.txt")
    (tmp_path / "README.md").write_text(PAGE)
    prose.BARS.write_text("0 0 *\n2 3 README.md\n1 0 gone.md\n")
    assert prose.main([]) == 0
    assert "--lower" in capsys.readouterr().out
    assert prose.main(["--lower"]) == 0
    assert prose.BARS.read_text() == "0 0 *\n1 3 README.md\n"

    (tmp_path / "README.md").write_text(f"{PAGE}\n{LONG}\n")
    assert prose.main([]) == 1
    out = capsys.readouterr().out
    assert f"README.md:17: 31 words: {LONG}\n" in out
    assert "README.md: 2 of these; tools/prose.txt allows 1.\n" in out
