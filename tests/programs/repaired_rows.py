"""Rows that fail are set aside, read back, repaired and run."""

import headrace as hr

TEXTS = [f"{i}.5" if i % 10 else f"{i},5" for i in range(1000)]


def score(batch):
    return [float(text) for text in batch["text"]]


if __name__ == "__main__":
    rows = hr.from_items([{"id": i, "text": text} for i, text in enumerate(TEXTS)])
    scored = rows.predict(score, inputs=["text"], output="score").with_options(on_error="reject")
    result = scored.write_parquet("scores/")
    assert (result.rows, result.rejected) == (900, 100)

    rejected = hr.read_rejected("scores/")
    assert all("could not convert" in row["_error"] for row in rejected.take_all())
    assert [row["_row"] for row in rejected.take_all()] == list(range(0, 1000, 10))
    repaired = rejected.map(lambda row: {"id": row["id"], "text": row["text"].replace(",", ".")})
    repaired.predict(score, inputs=["text"], output="score").write_parquet("repaired/")
    both = [*hr.read_parquet("scores/").take_all(), *hr.read_parquet("repaired/").take_all()]
    assert sorted((row["id"], row["score"]) for row in both) == [(i, i + 0.5) for i in range(1000)]
