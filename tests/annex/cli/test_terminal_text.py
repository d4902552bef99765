"""What people read has no characters that a terminal obeys, wherever they came from; one place sees to that."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.annex.cli import main
from headrace.annex.report.template import cleaned
from headrace.core.events import CallRetried, RunStarted
from headrace.core.terminal import encodable, json_visible, one_line, say, visible, warn
from headrace.errors import StepError, UnreadableFile
from headrace.observers.progress import Progress
from headrace.observers.prometheus import families
from headrace.observers.run_state import RunState

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb\u2066\u200b\x7f\rc"
SOURCE = Path(hr.__file__).parent
SEEN = {0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}


def is_harmless(text: str) -> bool:
    return not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text if c not in "\n\t")


def test_whatever_is_no_sign_is_written_out() -> None:
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if code in SEEN or 0x13430 <= code <= 0x13455 or char in "\n\t":  # signs that join others
            assert visible(char) == char
        elif unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert visible(char).isascii() and visible(char).isprintable(), hex(code)


@given(st.text(st.characters(exclude_categories=())))
def test_text_that_is_made_visible_stays_as_it_is(text: str) -> None:
    assert visible(visible(text)) == visible(text) == encodable(visible(text))
    assert "\n" not in one_line(text)
    assert json.loads(json_visible(json.dumps(text, ensure_ascii=False))) == json.loads(json.dumps(text))
    assert encodable(text).encode().decode() == encodable(text)


@pytest.mark.parametrize(
    "text", ["fare €", "日本語", "naïve", "emoji 🎉", "tab\tand\nline", "→ … ·", "Ελληνικά", "עברית"]
)
def test_text_of_every_language_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_what_a_stream_cannot_encode_is_written_out() -> None:
    below = io.BytesIO()
    stream = io.TextIOWrapper(below, "ascii")
    say("fare → € \udcff", stream)
    assert below.getvalue() == rb"fare \u2192 \u20ac \udcff" + b"\n"
    say("nobody is there", None)


# ------------------------------------------------------------ wherever it comes from


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    path = tmp_path / f"in {EVIL}.parquet"
    pq.write_table(pa.table({EVIL: [EVIL, "x"], "id": [1, 2]}), path)
    return path


def read(path: Path) -> Any:
    return hr.read_parquet(str(path)).with_options(engine="inline")


def test_summaries_plans_and_errors_show_it(
    evil: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(row: dict[str, Any]) -> Any:
        if row["id"] == 1:
            raise type("Evil\x1b[2J", (Exception,), {})(EVIL)
        return row

    fails.__qualname__ = EVIL
    data = read(evil).map(fails).accumulate(**{EVIL: hr.Count()})
    told = [data.explain(), repr(data)]
    result = data.with_options(on_error="reject").write_parquet(tmp_path / f"out{EVIL}")
    told += [result.summary, str(result), data.stats(), str(hr.verify(result.path))]
    with pytest.raises(StepError) as caught:
        data.take_all()
    told.append(str(caught.value))
    read(evil).show()
    out, err = capsys.readouterr()
    told += [out, err]
    page = Path(result.report).read_text()
    assert "owned" in page and not set("\x1b\x07\x9b\u202e\u2066\x7f") & set(page)
    for text in told:
        assert is_harmless(text), text
    assert r"\x1b]0;owned" in result.summary


def test_errors_and_warnings_show_it() -> None:
    assert str(UnreadableFile(EVIL)) == visible(EVIL)
    hidden = UnreadableFile(f"row 1 holds {EVIL}").showing(EVIL).without_data()
    assert str(hidden) == "row 1 holds …", "it is hidden as it was before it was made visible"
    with pytest.warns(UserWarning) as caught:
        warn(EVIL)
    assert is_harmless(str(caught[0].message))


@pytest.mark.parametrize("as_json", [False, True])
def test_commands_show_it(
    as_json: bool, evil: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "inline")
    out = tmp_path / f"out{EVIL}"
    with contextlib.redirect_stderr(io.StringIO()):
        read(evil).accumulate(**{EVIL: hr.Count()}).write_parquet(out)
    more = ["--json"] if as_json else []
    for argv in (
        ["inspect", str(evil)],
        ["status", str(out)],
        ["verify", str(out)],
        ["clean", str(out)],
        ["verify", EVIL],
    ):
        capsys.readouterr()
        main([*argv, *more])
        said, complained = capsys.readouterr()
        assert said + complained
        assert is_harmless(said), said
        assert is_harmless(complained), complained
        if as_json:
            assert json.loads(said)


def test_progress_reports_and_prometheus_show_it() -> None:
    stream = io.StringIO()
    Progress(stream)._say(EVIL)
    assert stream.getvalue() == f"headrace: {visible(EVIL)}\n"
    ((name, value),) = cleaned({EVIL: [EVIL + "\0"]}).items()
    assert is_harmless(name) and is_harmless(value[0])
    pytest.importorskip("prometheus_client")
    from prometheus_client import generate_latest

    state = RunState()
    state.add(RunStarted("r", "/out", 1, 0, 0, 1, 1), 1.0)
    state.add(CallRetried(0, f"map({EVIL})\udcff\n", "ValueError"), 2.0)
    text = generate_latest(SimpleNamespace(collect=lambda: families(state))).decode()
    assert is_harmless(text) and "owned" in text
