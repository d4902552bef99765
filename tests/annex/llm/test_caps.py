"""A cap is one budget for all workers of a run: what the server counted is never more."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

import headrace as hr
from forked import Forked
from headrace.annex.llm.refusals import BadRow
from headrace.annex.llm.store import AnswerStore, Caps, Spent
from headrace.annex.llm.usage import most_tokens
from headrace.core.process import when_free
from headrace.errors import OutputWriteFailed, PlanError
from headrace.testing import FakeLLMServer

JOB = """
import sys, headrace as hr

if __name__ == "__main__":
    url, out, cap = sys.argv[1], sys.argv[2], float(sys.argv[3])
    rows = hr.read_csv(sys.argv[4])
    model = hr.llm.Endpoint(
        url, "m", max_in_flight=36, prices={"input": 1e6, "output": 1e6}, max_retries=20, timeout=20,
        hedge="hedge" in sys.argv,
    )
    model = model.with_options(sampling={"max_tokens": 100}, budget=hr.llm.Budget(run=cap), repairs=2, guided=False)
    schema = ["yes", "no"] if "repairs" in sys.argv else None
    asked = rows.prompt("{i}", model, schema=schema, concurrency=3)
    asked = asked.with_options(shard_rows=20, workers=3, progress=False, on_error="reject")
    asked.write_parquet(out) if out else asked.take_all()
"""


@pytest.fixture(autouse=True)
def prepared(monkeypatch, tmp_path):
    """Each test has rows for three workers."""
    (tmp_path / "in").mkdir()
    for part in range(12):
        lines = [f"{part:02}{i:02} b c d" for i in range(20)]
        (tmp_path / "in" / f"{part}.csv").write_text("\n".join(["i", *lines]) + "\n")
    monkeypatch.chdir(tmp_path)


def billed(server) -> int:
    """Return the tokens of all requests that the server worked on, whether anybody heard of its answer or not."""
    sizes = [sum(len(each["content"].split()) for each in body["messages"]) for body in server.requests]
    free = server.outcomes["429"] + server.outcomes["500"]
    return sum(sizes) + 100 * (len(sizes) - free) - free * min(sizes, default=0)


def long(prompt):
    """As many words as an answer may have."""
    return "word " * 100


def job(server, out, cap, *options):
    command = [sys.executable, "-c", JOB, server.url, str(out), str(cap), "in", *options]
    return Forked(command, workers=True, start_new_session=True, stderr=subprocess.PIPE, text=True)


def capped(server, out, cap, *options) -> str:
    """Run a job that ends at its cap, and return what it says."""
    running = job(server, out, cap, *options)
    said = running.communicate()[1]
    assert running.returncode and "SpendingCapReached" in said, said
    return said.strip().splitlines()[-1]


@pytest.mark.local
@pytest.mark.parametrize("kept", [True, False], ids=["output", "none"])
def test_three_workers_have_one_budget(tmp_path, kept):
    first = iter([2.0] * 24)  # so long that all workers ask before any of them has an answer
    with FakeLLMServer(long, latency=lambda random: next(first, 0.01)) as server:
        capped(server, tmp_path / "out" if kept else "", 4000)
        assert 2000 < billed(server) <= 4000


@pytest.mark.local
@pytest.mark.parametrize("options", [(), ("hedge",), ("repairs",)], ids=str)
def test_whatever_goes_wrong_the_cap_is_kept(tmp_path, options):
    """Requests that fail, that come too late, that are asked again: the server may have counted all of them."""
    faults = {"too_many": 0.1, "resets": 0.1, "malformed": 0.1, "failures": 0.1}
    with FakeLLMServer(long, latency=lambda random: random.random() / 5, **faults) as server:
        capped(server, tmp_path / "out", 6000, *options)
        assert 2000 < billed(server) <= 6000


@pytest.mark.local
def test_a_killed_run_goes_on_within_its_cap(tmp_path):
    jobs = []

    def answer(prompt):
        if len(server.requests) >= 30 and len(jobs) == 1:
            jobs.append("killed")
            os.killpg(jobs[0].pid, signal.SIGKILL)  # driver and workers, at one moment
        return long(prompt)

    with FakeLLMServer(answer, latency=lambda random: random.random() / 5) as server:
        jobs.append(job(server, tmp_path / "out", 12_000))
        jobs[0].communicate()
        assert jobs[0].returncode == -signal.SIGKILL
        asked = len(server.requests)
        said = capped(server, tmp_path / "out", 12_000)
        assert asked < len(server.requests) and billed(server) <= 12_000
        assert "without a known end" in said
        running = job(server, tmp_path / "out", 80_000)
        said = running.communicate()[1]
        assert running.returncode == 0, said
        assert len(server.requests) <= 240 + 2 * 36  # nothing else was asked twice


def test_the_loop_goes_on_while_another_worker_writes(tmp_path):
    one, other = AnswerStore(str(tmp_path)), AnswerStore(str(tmp_path))
    caps = Caps(tokens=100)

    async def waits() -> str:
        other._run_statement("begin immediate")  # as a worker has it that was stopped in the middle
        one.count(lost_tokens=30)  # never waits
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, other._run_statement, "commit")  # never called, if the loop stood still
        return await when_free(one.reserve, 60, 0.0, caps, Spent())

    assert asyncio.run(asyncio.wait_for(waits(), 30)) == "reserved"
    assert other.spent().most_tokens == 90
    other._run_statement("begin immediate")
    one.count(lost_tokens=5)
    assert one.spent().most_tokens == 90
    other._run_statement("rollback")
    one.close()
    assert other.spent().most_tokens == 95


def test_an_answer_is_on_disk_as_soon_as_it_is_counted(tmp_path):
    async def work() -> tuple[int, dict[bytes, bytes]]:
        store, other = AnswerStore(str(tmp_path)), AnswerStore(str(tmp_path))
        store.count(requests=1)
        store.add_and_tell(b"key", b"answer", (asyncio.get_running_loop().create_future(), None))
        store.reserve(1, 0.0, Caps(tokens=9), Spent())  # another request: killed now, none is paid twice
        found = other.spent().requests, other.find([b"key"])
        store.close()
        other.close()
        return found

    assert asyncio.run(work()) == (1, {b"key": b"answer"})


def test_on_a_cluster_one_worker_counts_in_the_folder_of_the_run():
    def step(**options):
        model = hr.llm.Endpoint("http://localhost:1/v1", "m", prices={"input": 1, "output": 1})
        model = model.with_options(sampling={"max_tokens": 1}, **options)
        asked = hr.from_items([{"i": 1}]).prompt("{i}", model)
        return asked._plan.steps[-1]

    step(budget=hr.llm.Budget(run=1)).check_cluster(1, "folder")
    step(budget=hr.llm.Budget(run=1), cache="answers").check_cluster(1, "")
    step().check_cluster(3, "")
    with pytest.raises(PlanError, match=r"prompt\(m\) has a budget, .* count for itself: say concurrency=1"):
        step(budget=hr.llm.Budget(run=1)).check_cluster(3, "folder")
    with pytest.raises(PlanError, match="count for itself: write to a folder"):
        step(budget=hr.llm.Budget(run_tokens=1)).check_cluster(1, "")
    model = hr.llm.Endpoint("http://localhost:1/v1", "m").with_options(budget=hr.llm.Budget(output_tokens=1))
    (vectors,) = hr.from_items([{"i": "a"}]).embed("i", model)._plan.steps
    with pytest.raises(PlanError, match=r"has a budget, .* count for itself: say concurrency=1"):
        vectors.check_cluster(3, "folder")
    with pytest.raises(PlanError, match="counted in its folder"):
        vectors.check_output("")


def test_a_run_that_goes_on_elsewhere_counts_on(tmp_path, monkeypatch):
    """As on another machine: where it was before, it left a database of its own."""
    caps = Caps(tokens=100)
    first = AnswerStore(str(tmp_path))
    assert first.reserve(40, 0.0, caps, first.spent_elsewhere()) == "reserved"
    first.count(reserved_tokens=-40, requests=1, prompt=30, completion=5)
    assert first.reserve(20, 0.0, caps, first.spent_elsewhere()) == "reserved"
    first.close()
    monkeypatch.setattr("platform.node", lambda: "another")
    second = AnswerStore(str(tmp_path), clock=lambda: time.time() + 3600)
    assert second.spent().most_tokens == 0
    elsewhere = second.spent_elsewhere()
    assert (elsewhere.most_tokens, elsewhere.requests, elsewhere.at_work) == (55, 1, 0)
    assert second.reserve(46, 0.0, caps, elsewhere) == "never"
    assert second.reserve(45, 0.0, caps, elsewhere) == "reserved"
    assert second.reserve(1, 0.0, caps, elsewhere) == "later"  # it may use less than that
    second.close()


def test_a_request_costs_at_most_what_its_bytes_and_its_answer_may():
    image = "data:image/png;base64," + "A" * 400_000
    parts = [
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "text", "text": "é" * 50},
    ]
    prompt, answer = most_tokens({"messages": [{"role": "user", "content": parts}], "max_tokens": 7})
    assert 100_100 < prompt < 100_400 and answer == 7
    both = {"messages": [], "max_tokens": 7, "max_completion_tokens": 9}
    assert most_tokens(both)[1] == 9
    assert most_tokens({"messages": []}, 4096)[1] == 4096
    tools = {**both, "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert most_tokens(tools)[0] > 1000  # Anthropic's server adds hundreds of its own
    for part, least in {
        "image_url": 50_000,  # a blank page in a few hundred bytes has thousands of tokens
        "input_audio": 16_000_000 // 16,  # an hour has 115,200 of Gemini's
    }.items():
        held = {"url": "data:image/png;base64,AAAA"} if part == "image_url" else {"data": "A" * 16_000_000}
        body = {"messages": [{"role": "user", "content": [{"type": part, part: held}]}], "max_tokens": 1}
        assert least < most_tokens(body)[0] < least + 200
    video = [{"type": "video_url", "video_url": {"url": "http://x/y.mp4"}}]
    with pytest.raises(BadRow, match="what 'video_url' costs is not known"):
        most_tokens({"messages": [{"role": "user", "content": video}], "max_tokens": 1})
    with pytest.raises(BadRow, match="a budget needs max_tokens"):
        most_tokens({"messages": []})


COUNTS = """
import sys
from headrace.annex.llm.store import AnswerStore
store = AnswerStore(sys.argv[1])
store.count(sent=1)
store.settle()
print(store.spent().sent)
store.close()
"""


def test_what_one_process_counts_twice_over_another_does_not_lose(tmp_path):
    """A second account of a process ended the locks of its first; another process then took its file away."""
    one, other = (AnswerStore(str(tmp_path), what=what) for what in ("one", "other"))

    def elsewhere():
        return int(
            Forked([sys.executable, "-c", COUNTS, str(tmp_path)], stdout=subprocess.PIPE).communicate()[0]
        )

    for turn in range(3):
        for store in (one, other):
            store.count(sent=1)
            store.settle()
        assert elsewhere() == 3 * (turn + 1) == one.spent().sent == other.spent().sent
    one.close()
    other.close()
    assert elsewhere() == 10


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_a_link_in_the_place_of_a_database_is_not_followed(tmp_path, ending):
    AnswerStore(str(tmp_path), host="here").close()
    (tmp_path / "theirs").write_bytes(b"theirs")
    path = tmp_path / f"answers-here.sqlite{ending}"
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "theirs")
    with pytest.raises(OutputWriteFailed, match="it is a link, which no run puts there"):
        AnswerStore(str(tmp_path), host="here")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
