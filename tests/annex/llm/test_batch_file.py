"""Batch files against a real server: every line answered or told why not, in order, whatever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from forked import Forked
from headrace.annex.cli.app import carry_out
from headrace.annex.llm import batch_file, client
from headrace.annex.llm.batch_file import BatchFiles, run_batch
from headrace.annex.llm.endpoint import Endpoint
from headrace.errors import EndpointRefused, OutputExists, PlanChanged, RunLocked, UnreadableFile
from headrace.testing import FakeLLMServer


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(client, "FIRST_WAIT", 0.005)
    monkeypatch.setattr(client, "LONGEST_WAIT", 0.02)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def chat(text, **body):
    return "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": text}], **body}


def requests(*asked):
    return "".join(
        json.dumps({"custom_id": f"id-{i}", "method": "POST", "url": url, "body": body}) + "\n"
        for i, (url, body) in enumerate(asked)
    )


@pytest.fixture
def files(tmp_path):
    made = BatchFiles(*(str(tmp_path / name) for name in ("in.jsonl", "out.jsonl", "errors.jsonl")))

    def with_input(text: str) -> BatchFiles:
        with open(made.source, "w") as file:
            file.write(text)
        return made

    return with_input


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def test_all_kinds_of_requests_in_order(files):
    asked = [
        chat("hello", max_tokens=9),
        ("/v1/completions", {"model": "m", "prompt": "once"}),
        ("/v1/embeddings", {"model": "m", "input": ["abc", "eel"]}),
        ("/v1/responses", {"model": "m", "input": "tell"}),
        ("/v1/rerank", {"model": "m", "query": "a", "documents": ["bc", "aa", "ab"]}),
    ]
    batch = files("\n" + requests(*asked) + "\n")
    with FakeLLMServer(str.upper, latency=lambda random: random.random() / 50) as server:
        counts = run_batch(batch, Endpoint(server.url, "x"))
    assert (counts.lines, counts.answered, counts.failed) == (5, 5, 0)
    lines = read(batch.out)
    assert [line["custom_id"] for line in lines] == [f"id-{i}" for i in range(5)]
    assert all(line["error"] is None and line["response"]["status_code"] == 200 for line in lines)
    assert len({line["id"] for line in lines}) == 5
    bodies = [line["response"]["body"] for line in lines]
    assert bodies[0]["choices"][0]["message"]["content"] == "HELLO"
    assert bodies[1]["choices"][0]["text"] == "ONCE"
    assert [each["embedding"] for each in bodies[2]["data"]] == [[3.0, 0.0, 1.0], [3.0, 2.0, 1.0]]
    assert bodies[3]["output"][0]["content"][0]["text"] == "TELL"
    assert [each["index"] for each in bodies[4]["results"]] == [1, 2, 0]
    assert not os.path.exists(batch.errors) and not os.path.exists(batch.state)
    assert sorted(map(json.dumps, server.requests)) == sorted(json.dumps(body) for _, body in asked)


def test_anthropics_lines(files, monkeypatch):
    monkeypatch.setenv("KEY", "sk-ant")
    params = [
        {"model": "c", "max_tokens": n, "messages": [{"role": "user", "content": "a b c"}]} for n in (2, 9)
    ]
    lines = [{"custom_id": f"id-{i}", "params": each} for i, each in enumerate(params)]
    batch = files("".join(json.dumps(line) + "\n" for line in lines))
    with FakeLLMServer(key="sk-ant") as server:
        counts = run_batch(batch, Endpoint(server.url, "x", api_key_env="KEY"))
    assert (counts.answered, counts.prompt_tokens, counts.completion_tokens) == (2, 6, 5)
    first, second = read(batch.out)
    assert first["custom_id"] == "id-0" and first["result"]["type"] == "succeeded"
    assert first["result"]["message"]["content"] == [{"type": "text", "text": "a b"}]
    assert first["result"]["message"]["stop_reason"] == "max_tokens"
    assert second["result"]["message"]["stop_reason"] == "end_turn"


def test_what_has_no_answer_is_in_the_file_of_errors(files, capsys):
    batch = files(requests(*(chat("w " * (30 if i == 3 else 1)) for i in range(6))))
    with FakeLLMServer(context=20, too_many=0.2, resets=0.1, malformed=0.1, seed=5) as server:
        words = [
            "run-batch",
            "-i",
            batch.source,
            "-o",
            batch.out,
            "--errors",
            batch.errors,
            "--endpoint",
            server.url,
        ]
        assert carry_out([*words, "--json"]) == 3
        said = json.loads(capsys.readouterr().out)
        assert (said["lines"], said["answered"], said["failed"]) == (6, 5, 1)
        assert carry_out(words) == 2  # the output is there
        assert "is there already" in capsys.readouterr().err
    assert [line["custom_id"] for line in read(batch.out)] == ["id-0", "id-1", "id-2", "id-4", "id-5"]
    (failed,) = read(batch.errors)
    assert failed["custom_id"] == "id-3" and failed["response"] is None
    assert (
        failed["error"]["code"] == "ContextTooLong" and "maximum context length" in failed["error"]["message"]
    )


def test_nothing_is_sent_for_a_file_with_a_bad_line(files):
    good = requests(chat("a"))
    wrong = {
        "line 2: it is not a request": good + "{\n",
        "line 2: it is not a request of a batch: Object missing": good + "{}\n",
        "line 3: its custom_id 'id-0' is that of line 1": good + "\n" + good,
        "its method is 'GET'": good.replace("POST", "GET"),
        "its url is '/v1/files', which is none": good.replace("/v1/chat/completions", "/v1/files"),
        "its body is no object": '{"custom_id": "a", "url": "/v1/embeddings", "body": []}\n',
        "it asks for a stream": requests(chat("a", stream=True)),
        "of another kind": good + '{"custom_id": "b", "params": {}}\n',
        "its custom_id is empty": good.replace("id-0", ""),
        "its body cannot be read: Number out of range": requests(chat("a", seed=7)).replace("7", "1e999"),
        "recursion depth": good.replace('"a"', "[" * 5000 + "]" * 5000),
    }
    with FakeLLMServer() as server:
        for words, text in wrong.items():
            with pytest.raises(UnreadableFile, match=words):
                run_batch(files(text), Endpoint(server.url, "x"))
        assert not server.requests


def test_a_wrong_key_ends_it_and_with_the_right_one_it_goes_on(files, monkeypatch):
    batch = files(requests(*(chat(str(i)) for i in range(20))))
    monkeypatch.setenv("KEY", "wrong")
    with FakeLLMServer(key="right", latency=0.01) as server:
        endpoint = Endpoint(server.url, "x", api_key_env="KEY", max_in_flight=2)
        with pytest.raises(EndpointRefused, match="401"):
            run_batch(batch, endpoint)
        assert len(server.requests) <= 2
        monkeypatch.setenv("KEY", "right")
        assert run_batch(batch, endpoint).answered == 20


def test_what_was_written_is_not_asked_again_and_torn_ends_are_cut(files):
    batch = files(requests(*(chat("w " * (30 if i % 5 == 3 else 1) + str(i)) for i in range(40))))
    with FakeLLMServer(context=20) as server:
        run_batch(batch, Endpoint(server.url, "x"))
        whole, errors = (Path(each).read_bytes() for each in (batch.out, batch.errors))
        for out_lines, error_lines in ((0, 0), (10, 0), (0, 3), (20, 5), (32, 8), (9, 7)):
            before = len(server.requests)
            for path in (batch.out, batch.errors):
                os.unlink(path)
            os.mkdir(batch.state)
            for path, data, count in ((batch.out, whole, out_lines), (batch.errors, errors, error_lines)):
                kept = b"".join(data.splitlines(keepends=True)[:count])
                with open(path + ".part", "wb") as file:
                    file.write(kept + data[len(kept) :][:25])
            counts = run_batch(batch, Endpoint(server.url, "x"))
            assert [Path(each).read_bytes() for each in (batch.out, batch.errors)] == [whole, errors]
            assert counts.before + len(server.requests) - before == 40
            assert (counts.answered, counts.failed) == (32, 8)
            assert (counts.prompt_tokens, counts.completion_tokens) == (64, 64)  # of all, not of this process


def test_an_output_goes_on_with_its_own_input_only_and_is_for_one_process(files):
    batch = files(requests(chat("a")))
    with FakeLLMServer() as server:
        endpoint = Endpoint(server.url, "x")
        os.mkdir(batch.state)
        with open(os.path.join(batch.state, "input.json"), "w") as file:
            json.dump({"size": 1, "mtime_ns": 1, "errors": batch.errors}, file)
        with pytest.raises(PlanChanged, match="was begun for another input"):
            run_batch(batch, endpoint)
        import fcntl

        with open(os.path.join(batch.state, "lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(RunLocked):
                run_batch(batch, endpoint)
        os.unlink(os.path.join(batch.state, "input.json"))
        run_batch(batch, endpoint)
        with pytest.raises(OutputExists):
            run_batch(batch, endpoint)
        assert run_batch(batch, endpoint, overwrite=True).answered == 1


def test_what_the_command_line_refuses(files, tmp_path, capsys):
    batch = files(requests(chat("a")))
    command = ["run-batch", "-i", batch.source, "--endpoint", "http://localhost:1/v1", "-o"]
    refused = {
        "is a folder, and the output is a file": [str(tmp_path), "--overwrite"],
        ". is a folder": ["."],
        "is a folder, and": [batch.out, "--errors", str(tmp_path)],
        "--vllm-options is for --vllm": [batch.out, "--vllm-options", "{}"],
    }
    here = ["run-batch", "-i", batch.source, "--vllm", str(tmp_path), "-o", batch.out]
    for option in ("--max-in-flight", "--timeout", "--max-retries"):
        assert carry_out([*here, option, "9"]) == 2
        assert f"{option} is for --endpoint" in capsys.readouterr().err
    for words, more in refused.items():
        assert carry_out([*command, *more]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
    assert not os.path.exists(batch.state)


def test_an_output_that_another_process_has_made_meanwhile_is_not_paid_for_again(files, monkeypatch):
    batch = files(requests(chat("a")))
    looked = batch_file.check

    def slowly(path):
        Path(batch.out).write_text("theirs")
        return looked(path)

    monkeypatch.setattr(batch_file, "check", slowly)
    with FakeLLMServer() as server, pytest.raises(OutputExists):
        run_batch(batch, Endpoint(server.url, "x"))
    assert not server.requests and Path(batch.out).read_text() == "theirs"


@pytest.mark.parametrize("via", [False, True])
@pytest.mark.parametrize("bad", [0, 1])
def test_who_dies_while_the_output_gets_its_names_goes_on(files, monkeypatch, bad, via):
    batch = files(requests(*(chat(str(i)) for i in range(5)), *[chat("w " * 90)] * bad))
    monkeypatch.setattr("headrace.annex.llm.batch_api.FIRST_LOOK", 0.001)
    original = {"replace": os.replace, "rmtree": shutil.rmtree}
    with FakeLLMServer(context=50) as server:
        for step in ("errors", "out", "rmtree"):

            def replace(source, target, step=step):
                if target == getattr(batch, step, ""):
                    raise KeyboardInterrupt
                original["replace"](source, target)

            def rmtree(path, step=step, **options):
                if step == "rmtree":
                    raise KeyboardInterrupt

            monkeypatch.setattr(os, "replace", replace)
            monkeypatch.setattr(shutil, "rmtree", rmtree)
            with contextlib.suppress(KeyboardInterrupt):
                run_batch(batch, Endpoint(server.url, "x"), via_batch_api=via)
        monkeypatch.undo()
        counts = run_batch(batch, Endpoint(server.url, "x"), via_batch_api=via)
        assert (counts.answered, counts.failed, counts.before) == (5, bad, 5 + bad)
        assert (len(server.batches.all) if via else len(server.requests)) == (1 if via else 5 + bad)
    assert len(read(batch.out)) == 5 and os.path.exists(batch.errors) == bool(bad)
    assert not os.path.exists(batch.state)


def test_a_file_that_is_written_into_while_it_is_read_is_refused(files):
    batch = files(requests(*(chat(str(i)) for i in range(5))))

    def answer(prompt):
        with open(batch.source, "a") as file:
            file.write("\n")
        return prompt

    with FakeLLMServer(answer) as server:
        endpoint = Endpoint(server.url, "x", max_in_flight=1)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(PlanChanged, match="while it was read"):
            patch.setattr(batch_file, "WINDOW", 1)
            run_batch(batch, endpoint)
        with pytest.raises(PlanChanged, match="was begun for another input"):
            run_batch(batch, endpoint)
    assert not os.path.exists(batch.out)


@pytest.mark.local
def test_killed_twice_it_ends_as_if_nothing_had_been(files, tmp_path):
    batch = files(requests(*(chat(str(i)) for i in range(400))))
    killed_at = [120, 260]
    jobs: list[Forked] = []

    def answer(prompt):
        if killed_at and len(server.requests) >= killed_at[0]:
            killed_at.pop(0)
            os.kill(jobs[-1].pid, signal.SIGKILL)
        return prompt

    with FakeLLMServer(answer, latency=lambda random: random.random() / 200) as server:
        words = [
            "run-batch",
            "-i",
            batch.source,
            "-o",
            batch.out,
            "--endpoint",
            server.url,
            "--max-in-flight",
            "8",
        ]
        for code in (-signal.SIGKILL, -signal.SIGKILL, 0):
            jobs.append(Forked([sys.executable, "-m", "headrace", *words], stdout=subprocess.DEVNULL))
            assert jobs[-1].wait() == code
    lines = read(batch.out)
    assert [line["custom_id"] for line in lines] == [f"id-{i}" for i in range(400)]
    assert [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines] == [
        str(i) for i in range(400)
    ]
    asked = Counter(each["messages"][0]["content"] for each in server.requests)
    assert sum(asked.values()) - 400 <= 2 * 8
