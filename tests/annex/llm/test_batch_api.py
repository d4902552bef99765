"""Batch files by way of a batch service: nothing sent twice, every line answered or told why not, in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import deque

import pytest

from forked import Forked
from headrace.annex.cli.app import carry_out
from headrace.annex.llm import batch_api as api
from headrace.annex.llm import batch_services as calls
from headrace.annex.llm.batch_file import run_batch
from headrace.annex.llm.batch_lines import BatchFiles
from headrace.annex.llm.batch_services import AnthropicBatches, OpenAIBatches
from headrace.annex.llm.client import Client
from headrace.annex.llm.endpoint import Endpoint
from headrace.errors import (
    EndpointRefused,
    EndpointUnavailable,
    OutputWriteFailed,
    PlanChanged,
    UnreadableFile,
)
from headrace.testing import FakeLLMServer

SETTLED = 0.05


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(api, "FIRST_LOOK", 0.005)
    monkeypatch.setattr(api, "LONGEST_LOOK", 0.02)
    monkeypatch.setattr(calls, "FIRST_WAIT", 0.005)
    monkeypatch.setattr(calls, "LONGEST_WAIT", 0.02)
    monkeypatch.setattr(calls, "UNSURE_WAIT", 0.02)
    monkeypatch.setattr(calls, "SETTLED", SETTLED)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def files(tmp_path):
    return BatchFiles(*(str(tmp_path / name) for name in ("in.jsonl", "out.jsonl", "errors.jsonl")))


def chat(i, text="a b", model="m", **body):
    body = {"model": model, "messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": f"id {i}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def messages(i, text="a b", **params):
    asked = {"model": "c", "max_tokens": 9, "messages": [{"role": "user", "content": text}], **params}
    return {"custom_id": f"id {i}", "params": asked}


def write(files, lines):
    with open(files.source, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def ask(files, server, **options):
    return run_batch(files, Endpoint(server.url, "x", **options), via_batch_api=True)


def said(line):
    if "result" in line:
        return line["result"]["message"]["content"][0]["text"]
    return line["response"]["body"]["choices"][0]["message"]["content"]


KINDS = pytest.mark.parametrize(
    ("line", "service"), [(chat, OpenAIBatches), (messages, AnthropicBatches)], ids=["openai", "anthropic"]
)


@KINDS
def test_parts_are_within_the_limits_and_answers_in_order(files, monkeypatch, line, service):
    monkeypatch.setattr(service, "most_lines", 4)
    write(files, [line(i, f"say {i}") for i in range(11)])
    with FakeLLMServer(str.upper, key="sk-1") as server:
        monkeypatch.setenv("KEY", "sk-1")
        server.batches.looks = 3
        counts = ask(files, server, api_key_env="KEY")
    assert sorted(len(batch.requests) for batch in server.batches.all) == [3, 4, 4]
    assert (counts.lines, counts.answered, counts.failed, counts.before) == (11, 11, 0, 0)
    assert (counts.prompt_tokens, counts.completion_tokens) == (22, 22)
    lines = read(files.out)
    assert [each["custom_id"] for each in lines] == [f"id {i}" for i in range(11)]
    assert [said(each) for each in lines] == [f"SAY {i}" for i in range(11)]
    assert not os.path.exists(files.errors) and not os.path.exists(files.state)
    if service is OpenAIBatches:
        assert len(server.batches.files) == 3 == len(server.batches.deleted)
        tags = {batch.metadata["headrace"] for batch in server.batches.all}
        assert len(tags) == 3


def test_one_model_and_one_address_for_each_batch_and_bytes_count(files, monkeypatch):
    embed = {
        "custom_id": "e",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "m", "input": ["abc"]},
    }
    write(files, [chat(0), chat(1, model="other"), embed, chat(3), chat(4, "x" * 3000), chat(5)])
    monkeypatch.setattr(OpenAIBatches, "most_bytes", 3300)
    with FakeLLMServer() as server:
        assert ask(files, server).answered == 6
        ids = [
            [each["custom_id"].rpartition("-")[2] for each in batch.requests] for batch in server.batches.all
        ]
        urls = [batch.endpoint for batch in server.batches.all]
    assert sorted(zip(ids, urls, strict=True)) == [
        (["1", "4"], "/v1/chat/completions"),
        (["2"], "/v1/chat/completions"),
        (["3"], "/v1/embeddings"),
        (["5"], "/v1/chat/completions"),
        (["6"], "/v1/chat/completions"),
    ]
    assert [line["custom_id"] for line in read(files.out)] == ["id 0", "id 1", "e", "id 3", "id 4", "id 5"]
    monkeypatch.setattr(OpenAIBatches, "most_bytes", 500)
    again = BatchFiles(files.source, files.out + "2", files.errors + "2")
    with FakeLLMServer() as server, pytest.raises(UnreadableFile, match=r"line 5: it has 3,\d{3} bytes"):
        ask(again, server)
    assert not server.batches.calls


@KINDS
def test_faults_of_the_service_cost_no_line_and_no_second_batch(files, line, service):
    write(files, [line(i, f"say {i}") for i in range(6)])
    with FakeLLMServer() as server:
        server.batches.faults = {
            "upload": deque(["429", "lost"]),
            "create": deque(["429", "500", "lost"]),
            "look": deque(["500", "429", "lost"]),
            "list": deque(["500", "429"]),
            "download": deque(["500", "cut", "lost"]),
        }
        server.batches.looks = 2
        counts = ask(files, server)
    assert len(server.batches.all) == 1 and len(server.batches.files) <= 1
    assert counts.answered == 6 and [said(each) for each in read(files.out)] == [f"say {i}" for i in range(6)]


@KINDS
def test_what_somebody_has_cancelled_is_not_sent_again_by_itself(files, line, service):
    write(files, [line(i, f"say {i}") for i in range(6)])
    with FakeLLMServer() as server:
        server.batches.ends = deque(["cancelled"])
        with pytest.raises(EndpointRefused, match="was cancelled"):
            ask(files, server)
        assert len(server.batches.all) == 1
        counts = ask(files, server)
    assert [len(batch.requests) for batch in server.batches.all] == [6, 3]
    assert (counts.answered, counts.before) == (6, 3)
    assert [said(each) for each in read(files.out)] == [f"say {i}" for i in range(6)]


@KINDS
@pytest.mark.parametrize("end", ["expired", "missing", "double"])
def test_what_a_batch_does_not_answer_goes_into_another(files, line, service, end):
    write(files, [line(i, f"say {i}") for i in range(6)])
    with FakeLLMServer() as server:
        server.batches.ends = deque([end])
        counts = ask(files, server)
    sent = [len(batch.requests) for batch in server.batches.all]
    assert sent == {"expired": [6, 3], "missing": [6, 1], "double": [6]}[end]
    assert counts.answered == 6 and [said(each) for each in read(files.out)] == [f"say {i}" for i in range(6)]


def test_lines_without_an_answer_have_their_reason(files, capsys):
    def answer(prompt):
        if "bad" in prompt:
            raise ValueError("no")
        return prompt

    write(files, [chat(0, "bad"), chat(1), chat(2, "w " * 40), chat(3)])
    command = ["run-batch", "-i", files.source, "-o", files.out, "--errors", files.errors, "--via-batch-api"]
    with FakeLLMServer(answer, context=20) as server:
        assert carry_out([*command, "--endpoint", server.url, "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["lines"], told["answered"], told["failed"]) == (4, 2, 2)
    assert [len(batch.requests) for batch in server.batches.all] == [4, 1, 1]  # 500: three times; 400: once
    assert [each["custom_id"] for each in read(files.out)] == ["id 1", "id 3"]
    bad, long = read(files.errors)
    assert bad["error"]["code"] == "NoAnswer" and "3 batches" in bad["error"]["message"]
    assert "500: the server has failed: no" in bad["error"]["message"]
    assert long["custom_id"] == "id 2" and long["error"]["code"] == "context_length_exceeded"


def test_anthropics_reasons(files):
    write(files, [messages(0, "w " * 40), messages(1)])
    with FakeLLMServer(context=20) as server:
        counts = ask(files, server)
    assert (counts.answered, counts.failed) == (1, 1)
    (failed,) = read(files.errors)
    assert failed["custom_id"] == "id 0" and failed["result"]["type"] == "errored"
    assert failed["result"]["error"]["error"]["type"] == "invalid_request_error"


def test_batches_that_are_not_taken(files):
    write(files, [chat(i, f"say {i}") for i in range(4)])
    with FakeLLMServer() as server:
        server.batches.ends = deque(["wrong", "failed"])
        with pytest.raises(
            EndpointRefused, match=r"did not take a batch of 3 requests .*invalid_model: it is failed"
        ):
            ask(files, server)
        server.batches.ends = deque(["cancelled"])
        with pytest.raises(EndpointRefused, match="was cancelled"):
            ask(files, server)
        counts = ask(files, server)
    assert [len(batch.requests) for batch in server.batches.all] == [4, 3, 3, 2]
    assert (
        len(server.batches.files) == 4 and len(server.batches.deleted) == 3
    )  # all but the one that ended it
    assert (counts.answered, counts.failed, counts.before) == (3, 1, 2)
    (failed,) = read(files.errors)
    assert failed["custom_id"] == "id 0" and "invalid_request: it is wrong" in failed["error"]["message"]


def test_where_too_much_waits_a_batch_comes_later(files, monkeypatch):
    monkeypatch.setattr(OpenAIBatches, "most_lines", 2)
    write(files, [chat(i) for i in range(6)])
    with FakeLLMServer() as server:
        server.batches.ends, server.batches.looks = deque(["completed", "full"]), 3
        assert ask(files, server).answered == 6
    assert len(server.batches.all) == 4


def test_what_a_server_is_asked_that_has_no_such_service(files, monkeypatch, tmp_path):
    write(files, [chat(0)])
    with FakeLLMServer(key="sk-1") as server:
        with pytest.raises(EndpointRefused, match=r"does not let us in \(401\)"):
            ask(files, server)
        monkeypatch.setenv("KEY", "sk-1")
        elsewhere = Endpoint(server.url.replace("/v1", "/v2"), "x", api_key_env="KEY")
        with pytest.raises(EndpointRefused, match=r"has nothing at /v2/files .*leave it out"):
            run_batch(files, elsewhere, via_batch_api=True)
        with pytest.raises(PlanChanged, match="begun with --via-batch-api"):
            run_batch(files, elsewhere)
        assert not server.batches.all
    with pytest.raises(EndpointUnavailable, match="does not answer"):
        ask(files, server, max_retries=1)
    for more in (["--requests-per-minute", "9"], ["--max-in-flight", "9"], ["--vllm", str(tmp_path)]):
        who = [] if "--vllm" in more else ["--endpoint", server.url]
        assert (
            carry_out(["run-batch", "-i", files.source, "-o", files.out, "--via-batch-api", *who, *more]) == 2
        )


def test_anothers_batch_of_the_same_size_is_not_taken_for_ours(files):
    write(files, [messages(i, f"say {i}") for i in range(2)])
    with FakeLLMServer() as server:
        other = {"custom_id": "theirs", "params": messages(0)["params"]}
        server.batches._begin([other, {**other, "custom_id": "theirs too"}])
        server.batches._looked_at(server.batches.all[0])
        server.batches.faults = {"create": deque(["lost"])}
        assert ask(files, server).answered == 2
    assert len(server.batches.all) == 2 and [said(each) for each in read(files.out)] == ["say 0", "say 1"]


def test_a_file_that_changed_and_another_service_are_refused_before_anything_gets_a_wrong_name(files):
    write(files, [chat(i, f"say {i}") for i in range(3)])
    before = os.stat(files.source)

    def change():
        write(files, [chat(i, f"SAY {i}") for i in range(3)])

    with FakeLLMServer() as server, FakeLLMServer() as other:
        server.batches.faults = {"download": deque([change])}
        with pytest.raises(PlanChanged, match="has changed while its batches were at work"):
            ask(files, server)
        with pytest.raises(PlanChanged, match="begun for another input"):
            ask(files, server)
        write(files, [chat(i, f"say {i}") for i in range(3)])
        os.utime(files.source, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(PlanChanged, match=f"begun at the batch service of {server.url}, and"):
            ask(files, other)
        assert ask(files, server).answered == 3 and not other.batches.calls
    assert len(server.batches.all) == 1 and [said(each) for each in read(files.out)] == [
        "say 0",
        "say 1",
        "say 2",
    ]


def test_a_service_that_repeats_the_key_has_it_written_nowhere(files, monkeypatch):
    monkeypatch.setenv("KEY", "sk-secret")
    write(files, [chat(0)])
    with FakeLLMServer(key="sk-secret") as server:
        endpoint = Endpoint(server.url, "x", api_key_env="KEY")
        server.batches._begin([])
        server.batches.all[0].metadata = {"headrace": "by sk-secret"}

        async def listed():
            client = Client(endpoint)
            await client.open()
            try:
                return await client.call("GET", "/batches")
            finally:
                await client.close()

        said = asyncio.run(listed())
    assert b"by \xe2\x80\xa6" in said and b"sk-secret" not in said


def test_a_journal_that_cannot_be_read_is_told(files):
    write(files, [chat(0)])
    os.mkdir(files.state)
    with open(os.path.join(files.state, "batches.sqlite"), "w") as file:
        file.write("no database " * 100)
    with (
        FakeLLMServer() as server,
        pytest.raises(OutputWriteFailed, match=r"out\.jsonl\.headrace: file is not a"),
    ):
        ask(files, server)
    assert not server.batches.calls


def test_half_of_a_character_in_an_answer_costs_no_line(files):
    write(files, [chat(i, "a\u2028b\x85c") for i in range(2)])
    with FakeLLMServer(lambda prompt: f"{prompt} \ud83d") as server:
        for via in (True, False):
            assert (
                run_batch(files, Endpoint(server.url, "x"), via_batch_api=via, overwrite=True).answered == 2
            )
            assert [said(each) for each in read(files.out)] == ["a\u2028b\x85c \ufffd"] * 2


JOB = """
import sys
from headrace.annex.llm import batch_api as api, batch_services as calls
api.FIRST_LOOK = calls.FIRST_WAIT = calls.UNSURE_WAIT = 0.01
calls.SETTLED = 0.05
from headrace.annex.llm.batch_file import run_batch
from headrace.annex.llm.batch_lines import BatchFiles
from headrace.annex.llm.endpoint import Endpoint
run_batch(BatchFiles(*sys.argv[2:]), Endpoint(sys.argv[1], "x"), via_batch_api=True)
"""


@pytest.mark.local
@KINDS
def test_killed_at_each_step_no_batch_is_made_twice(files, line, service):
    write(files, [line(i, f"say {i}") for i in range(5)])
    job: list[Forked] = []

    def kill():
        job[0].send_signal(signal.SIGKILL)

    with FakeLLMServer() as server:
        server.batches.looks = 2
        steps = (
            ["create", "look", "download"]
            if service is AnthropicBatches
            else ["upload", "create", "look", "download"]
        )
        server.batches.faults = {step: deque([kill]) for step in steps}
        for step in [*steps, ""]:
            command = [sys.executable, "-c", JOB, server.url, files.source, files.out, files.errors]
            job[:] = [Forked(command)]
            assert job[0].wait() == (-signal.SIGKILL if step else 0), step
    assert len(server.batches.all) == 1 and len(server.batches.files) == (service is OpenAIBatches)
    assert [said(each) for each in read(files.out)] == [f"say {i}" for i in range(5)]
    assert not os.path.exists(files.state)
