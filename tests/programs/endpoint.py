"""A language model behind an endpoint; the program is killed amid the answers, and run again."""

import multiprocessing
import signal

import headrace as hr
from headrace.testing import FakeLLMServer

ROWS, IN_FLIGHT = 300, 8


def ask(url):
    words = hr.from_items([{"id": i, "text": f"word {i}"} for i in range(ROWS)])
    model = hr.llm.Endpoint(url, "any", max_in_flight=IN_FLIGHT)
    asked = words.prompt("Say it: {text}", model.with_options(sampling={"temperature": 0}))
    asked.write_parquet("answers/")


if __name__ == "__main__":
    first = None

    def answer(prompt):
        if first is not None and len(server.requests) >= ROWS // 2:
            first.kill()
        return prompt.upper()

    with FakeLLMServer(answer, latency=0.005) as server:
        spawn = multiprocessing.get_context("spawn")
        first = spawn.Process(target=ask, args=(server.url,))
        first.start()
        first.join()
        assert first.exitcode == -signal.SIGKILL, first.exitcode
        first = None
        ask(server.url)
        asked = len(server.requests)
    rows = hr.read_parquet("answers/").to_pandas()
    assert rows["id"].tolist() == list(range(ROWS))
    assert rows["answer"].tolist() == [f"SAY IT: WORD {i}" for i in range(ROWS)]
    assert ROWS <= asked <= ROWS + IN_FLIGHT, asked
