"""A model that has changed is never mixed in silence with what it made before."""

import headrace as hr


def old(batch):
    return batch["id"] * 2


def new(batch):
    return batch["id"] * 3


def careless(batch):
    if (batch["id"] == 700).any():
        raise ValueError("who could have known?")
    return batch["id"] * 2


def job(model, out, **options):
    rides = hr.range(1000).predict(model, inputs=["id"], output="score").with_options(shard_rows=100)
    return rides.write_parquet(out, **options)


def scores(out):
    return [row["score"] for row in hr.read_parquet(out).take_all()]


if __name__ == "__main__":
    job(old, "scores/")
    try:
        job(new, "scores/")
    except hr.errors.PlanChanged as error:
        assert "on_change" in str(error)
    else:
        raise AssertionError("the other model was taken for the same one")
    assert scores("scores/") == [2 * i for i in range(1000)]
    job(new, "scores/", on_change="restart")
    assert scores("scores/") == [3 * i for i in range(1000)]

    try:
        job(careless, "mended/")
    except hr.errors.StepError as error:
        assert "who could have known?" in str(error) and "700" in str(error)
    result = job(old, "mended/", on_change="continue")
    assert result.resumed and scores("mended/") == [2 * i for i in range(1000)]
