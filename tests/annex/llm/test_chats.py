"""Columns that hold whole chats, and sounds in messages."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

import headrace as hr
from headrace.annex.llm.refusals import BadRow
from headrace.annex.llm.template import Template
from headrace.dataset.estimate import estimate
from headrace.testing import FakeLLMServer

JPEG, WAV = b"\xff\xd8\xff\xe0abc", b"RIFF\x24\x00\x00\x00WAVEfmt "
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello {you}"},
        {"role": "user", "content": "Why?"},
    ],
]


def inline(data: Any, **options: Any) -> Any:
    return data.with_options(engine="inline", progress=False, **options)


def sent(rows: Any, template: Any, **options: Any) -> list[Any]:
    """Return the messages that were sent, in the order of the rows."""
    with FakeLLMServer(lambda prompt: "yes") as server:
        model = hr.llm.Endpoint(server.url, "m", max_in_flight=1)
        made = inline(rows.prompt(template, model.with_options(**options))).take_all()
        assert [row["answer"] for row in made] == ["yes"] * len(made)
    return [each["messages"] for each in server.requests]


def test_a_column_of_chats_is_asked_as_it_is() -> None:
    rows = hr.from_items([{"chat": chat} for chat in CHATS])
    assert sent(rows, "{chat}") == CHATS
    assert sent(rows.limit(1), "{chat}", system="Rhyme.") == [
        [{"role": "system", "content": "Rhyme."}, *CHATS[0]]
    ]


def test_the_system_of_a_chat_is_of_its_row_too() -> None:
    rows = hr.from_items([{"chat": CHATS[0], "who": "a poet"}])
    said = {"role": "system", "content": "You are a poet, and write {}."}
    assert sent(rows, "{chat}", system="You are {who}, and write {{}}.") == [[said, *CHATS[0]]]


def test_chats_have_parts_and_tools() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": JPEG}},
                {"type": "input_audio", "input_audio": {"data": WAV}},
            ],
        },
    ]
    called = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]
    assert sent(hr.from_items([{"chat": chat}]), "{chat}")[0][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4GFiYw=="}},
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}},
    ]
    ((user, assistant, tool),) = sent(hr.from_items([{"chat": called}]), "{chat}")
    assert (user, tool) == (called[0], called[2])
    assert assistant == {**called[1], "content": None}


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        ([], "a chat without messages"),
        (["Hi"], "message 1 of column 'chat' is 'Hi'; a message has a role and a content"),
        ([{"role": "bot", "content": "Hi"}], "message 1 of column 'chat' has the role 'bot'"),
        ([{"from": "human", "value": "Hi"}], "a message has a role and a content"),
        ([CHATS[0][0], {"role": "user", "content": None}], "message 2 of column 'chat' has no content"),
        ([{"role": "user", "content": [{"type": "video"}]}], "has the part {'type': 'video'}"),
        ([{"role": "user", "content": "Hi", "country": "NO"}], "has 'country'; a message has only"),
        (
            [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": b"?"}}]}],
            "not a WAV, MP3, FLAC",
        ),
        (CHATS[1], "has a message of the system, and system= gives another"),
    ],
)
def test_what_is_no_chat_is_an_error_of_its_row(chat: Any, words: str) -> None:
    with pytest.raises(BadRow, match=re.escape(words)):
        Template("{chat}", "Rhyme.").render({"chat": chat})


def test_a_chat_at_fault_leaves_the_others(tmp_path: Any) -> None:
    chats = [CHATS[0], [{"role": "bot", "content": "Hi"}], None, CHATS[1]]
    rows = hr.from_items([{"id": i, "chat": chat} for i, chat in enumerate(chats)])
    with FakeLLMServer() as server:
        asked = rows.prompt("{chat}", hr.llm.Endpoint(server.url, "m"))
        result = inline(asked, on_error="reject").write_parquet(tmp_path / "out")
        assert (result.rows, result.rejected) == (2, 2)
        assert len(server.requests) == 2
    rejected = str(hr.read_rejected(tmp_path / "out").to_arrow().to_pylist())
    assert "has the role 'bot'" in rejected and "column 'chat' is null" in rejected


def test_chats_are_estimated() -> None:
    rows = hr.from_items([{"chat": CHATS[0]}] * 5)
    with FakeLLMServer() as server:
        found = estimate(inline(rows.prompt("{chat}", hr.llm.Endpoint(server.url, "m"))), 60)
    assert found.read is not None and found.read.likely == 5


def test_a_chat_is_the_whole_template() -> None:
    with pytest.raises(BadRow, match=re.escape("asked where its column is the whole template: '{chat}'")):
        Template("Go on: {chat}").render({"chat": CHATS[0]})


def test_sounds_stand_in_messages() -> None:
    def message(**sound: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]}]

    data = base64.b64encode(WAV).decode()
    rows = hr.from_items([{"sound": WAV}])
    assert sent(rows, message(data="{sound}")) == [message(data=data, format="wav")]
    assert sent(rows, message(data="{sound}", format="pcm16")) == [message(data=data, format="pcm16")]
    for start, kind in {b"ID3\x04": "mp3", b"\xff\xfb\x90": "mp3", b"fLaC": "flac", b"OggS": "ogg"}.items():
        (made,) = Template(message(data="{sound}")).render({"sound": start})
        assert made["content"][0]["input_audio"]["format"] == kind
    for wrong, words in {
        b"?": "column 'sound' holds bytes that are not a WAV",
        None: "'sound' is null",
    }.items():
        with pytest.raises(BadRow, match=words):
            Template(message(data="{sound}")).render({"sound": wrong})
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "{sound}"}}]}]
    with pytest.raises(BadRow, match="column 'sound' holds bytes that are not a JPEG"):  # RIFF is WebP, too
        Template(image).render({"sound": WAV})


def test_a_prompt_without_a_word_is_not_asked() -> None:
    with pytest.raises(BadRow, match="the prompt is empty"):
        Template("{text}", "Be brief.").render({"text": ""})


def test_a_column_that_is_not_there_is_refused_before_anything_is_asked() -> None:
    with FakeLLMServer() as server:
        rows = hr.from_items([{"zones": "a"}])
        model = hr.llm.Endpoint(server.url, "m")
        for data in (rows, rows.map_batches(lambda batch: batch)):
            with pytest.raises(hr.errors.UnknownColumn, match=r"'zone'.*Did you mean 'zones'"):
                inline(data.prompt("{zone}", model)).take_all()
        assert server.requests == []
