"""An output that may not differ too much from another one, and two models whose results are compared as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest

import headrace as hr
from headrace.errors import ArgumentError, HeadraceError, RequirementNotMet


def rides(share: float, rows: int = 1000, source: str = "") -> hr.Dataset:
    def fare(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "fare": batch["id"] * 2.0 + (batch["id"] < share * len(batch["id"]))}

    data = hr.read_parquet(source).select_columns(["id"]) if source else hr.range(rows)
    return data.map_batches(fare, batch_size=rows).with_options(engine="inline", progress=False)


@pytest.fixture(scope="module")
def yesterday(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("against") / "yesterday")
    rides(0).write_parquet(folder)
    return folder


def parts(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.parquet")]


def test_what_changed_too_much_stays_out_of_sight(yesterday: str, tmp_path: Path) -> None:
    out = tmp_path / "today"
    with pytest.raises(RequirementNotMet, match=r"changed is 0\.1, compared with .*yesterday") as found:
        rides(0.1).require(changed=hr.at_most(0.05), against=yesterday).write_parquet(str(out))
    assert found.value.figures[0].found == pytest.approx(0.1) and not parts(out)
    asked = rides(0.1).require(
        {"columns.fare.difference.most": hr.at_most(1), "columns.id.share": hr.at_most(0)},
        changed=hr.between(0.1, 0.1001),
        only_old=hr.at_most(0),
        rows=hr.at_least(1000),
        against=yesterday,
    )
    assert asked.write_parquet(str(out)).rows == 1000 and parts(out)  # nothing was computed again
    assert asked.write_parquet(str(out)).rows == 1000  # and it is asked when it is there
    with pytest.raises(RequirementNotMet, match="was published before"):
        rides(0.1).require(changed=hr.at_most(0.05), against=yesterday).write_parquet(str(out))


def test_an_output_is_compared_with_what_it_replaces(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    rides(0).write_parquet(out)
    for share, on in ((0.3, None), (0.01, None), (0.3, "id")):
        asked = rides(share).require(changed=hr.at_most(0.05), against=out, on=on)
        if share > 0.05:
            with pytest.raises(RequirementNotMet, match=r"changed is 0\.(29|3),"):
                asked.write_parquet(out, mode="overwrite")
            assert hr.compare(out, out, on=on).changed in (0.29, 0.3)  # with what waits
        else:
            asked.write_parquet(out, mode="overwrite")
        fares = ds.dataset(out).to_table(columns=["fare"]).column(0).to_numpy()
        assert (fares % 2).sum() == (10 if share == 0.01 or on else 0)


@pytest.mark.parametrize("on", [None, "id"])
def test_rows_that_are_made_again_are_compared_with_those_that_they_replace(
    yesterday: str, tmp_path: Path, on: str | None
) -> None:
    out = str(tmp_path / "out")
    rides(0, source=yesterday).write_parquet(out, incremental=True)
    asked = rides(0.1, source=yesterday).require(changed=hr.at_most(0.05), against=out, on=on)
    with pytest.raises(RequirementNotMet, match=r"changed is 0\.1, compared"):
        asked.write_parquet(out, incremental=True, refresh="changed")
    assert hr.compare(out, out, on=on).different == 100
    hr.publish(out, because="a test")
    assert hr.compare(out, out, on=on).rows == 1000


@pytest.mark.parametrize("on", [None, "id"])
def test_a_column_that_is_gone_is_a_change(yesterday: str, tmp_path: Path, on: str | None) -> None:
    """The other columns are the same, so nothing that both have has changed."""
    renamed = rides(0.5).map_batches(
        lambda batch: {"id": batch["id"], "score": batch["fare"], "one": batch["id"]}
    )
    asked = renamed.require(changed=hr.at_most(0.05), against=yesterday, on=on)
    with pytest.raises(RequirementNotMet, match=r"changed is unknown, as compare: .* has no column 'fare'"):
        asked.write_parquet(str(tmp_path / "out"))
    more = rides(0).with_column("one", hr.col("id") * 1)
    more.require(changed=hr.at_most(0), against=yesterday, on=on).write_parquet(str(tmp_path / "more"))


def test_other_rows_are_told_by_their_key(yesterday: str, tmp_path: Path) -> None:
    fewer = rides(0, rows=900)
    with pytest.raises(
        RequirementNotMet, match=r"changed is unknown, as compare: .*different inputs.*on='key'"
    ):
        fewer.require(changed=hr.at_most(0.05), against=yesterday).write_parquet(str(tmp_path / "out"))
    with pytest.raises(RequirementNotMet, match=r"only_old is 100, .*Met: changed is 0\.1"):
        fewer.require(
            changed=hr.at_most(0.1), only_old=hr.at_most(0), against=yesterday, on=["id"]
        ).write_parquet(str(tmp_path / "out"))


def test_an_old_output_whose_rows_moved_is_refused_before_any_work(tmp_path: Path) -> None:
    fewer, out = str(tmp_path / "fewer"), tmp_path / "out"
    rides(0).filter(expr="id > 5").write_parquet(fewer)
    for other, words in [
        (fewer, r"994 rows were made of 1,000\..*on='key'"),
        (f"{fewer}/*.parquet", "is no output of Headrace"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            rides(0).require(changed=hr.at_most(0.1), against=other).write_parquet(str(out))
        assert not out.exists()


def test_no_value_of_a_row_is_kept_with_the_figures(yesterday: str, tmp_path: Path) -> None:
    with pytest.raises(RequirementNotMet, match="has 2 rows of one key, so it is not said") as found:
        twice = hr.from_items([{"id": 712345}, {"id": 712345}]).with_options(engine="inline", progress=False)
        twice = twice.with_column("fare", hr.col("id") * 1.0)
        twice.require(changed=hr.at_most(1), against=yesterday, on="id").write_parquet(str(tmp_path / "out"))
    assert "712345" not in str(found.value)


def test_what_makes_no_sense_is_refused_before_any_work(yesterday: str, tmp_path: Path) -> None:
    data = rides(0)
    for asked, words in [
        (lambda: data.require(changed=hr.at_most(0.1)), "changed, only_old, only_new, columns need against="),
        (
            lambda: data.require(rows=hr.at_most(1), against=yesterday),
            "no figure of a comparison is asked for",
        ),
        (lambda: data.require(changed=hr.at_most(0.1), on="id"), "goes with against="),
        (lambda: data.require(changed=0.1, against=yesterday), "give hr.at_least"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            asked()
    for other, words in [("nowhere", "nowhere"), (yesterday, "no column 'idd'")]:
        with pytest.raises(HeadraceError, match=words):
            data.require(changed=hr.at_most(0.1), against=other, on="idd").write_parquet(
                str(tmp_path / "out")
            )
        assert not (tmp_path / "out").exists()
    asked = data.require(changed=hr.at_most(0.1), against=yesterday)
    with pytest.raises(ArgumentError, match=r"divided by partition_by.*on='key'"):
        asked.write_parquet(str(tmp_path / "out"), partition_by="fare")
    with pytest.raises(ArgumentError, match=r"those of a table.*on='key'"):
        asked.write_sql("t", f"sqlite:///{tmp_path}/a.db", output=str(tmp_path / "out"))


def test_a_figure_of_a_column(tmp_path: Path) -> None:
    """A name may have dots; what there is not is told with the reason, and what there cannot be before any work."""
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    data = hr.range(300).with_column("a.b", lambda batch: [f"text {i}" for i in batch["id"]], version="1")
    data = data.with_options(engine="inline", progress=False)
    data.write_parquet(old)
    for name, words in [
        ("columns.a.b.psii", "comparing gives changed, only_old"),
        ("columns.a.b", "comparing gives changed, only_old"),
        ("columns", "such as 'columns.score.psi'"),
        ("changed.x", "Did you mean 'changed'"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            data.require({name: hr.at_most(1)}, against=old)
    with pytest.raises(HeadraceError, match="no column 'a'"):
        data.require({"columns.a.psi": hr.at_most(1)}, against=old).write_parquet(new)
    assert not Path(new).exists()
    with pytest.raises(
        RequirementNotMet, match="none for a column of string, and no value changed; compared"
    ):
        data.require({"columns.a.b.psi": hr.at_most(1)}, against=old).write_parquet(new)
    assert data.require({"columns.a.b.share": hr.at_most(0)}, against=old).write_parquet(new).rows == 300


# ------------------------------------------------------------ two models in one run


def old(batch: dict[str, Any]) -> Any:
    return batch["id"] * 2.0


def new(batch: dict[str, Any]) -> Any:
    return np.where(batch["id"] % 10 == 0, batch["id"] * 3.0, batch["id"] * 2.0)


def named(model: Any, extra: str) -> Any:
    return lambda batch: {"fare": model(batch), "kind": model(batch) > 50, extra: batch["id"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_two_models_are_compared_as_they_are_written(tmp_path: Path, workers: int) -> None:
    options = {"engine": "local", "workers": workers} if workers else {"engine": "inline"}
    data = hr.range(1000).with_options(progress=False, shard_rows=150, **options)
    both = data.predict({"old": old, "new": new}, inputs=["id"])
    result = both.filter(expr="id > 99").write_parquet(str(tmp_path / "out"))
    found = result.metrics["shadow"]
    assert (found["rows"], found["changed"], found["difference"]["most"]) == (900, 90, 990.0)
    written = hr.read_parquet(str(tmp_path / "out")).evaluate(shadow=hr.Differences("old", "new"))["shadow"]
    assert written == found and hr.verify(str(tmp_path / "out")).good
    page = Path(result.report).read_text()
    assert "shadow: share" in page and '"other"' in page
    with pytest.raises(RequirementNotMet, match=r"shadow\.share is 0\.099"):
        both.require({"shadow.share": hr.at_most(0.05)}).write_parquet(str(tmp_path / "asked"))


def test_models_with_several_results_and_other_ways_on(tmp_path: Path) -> None:
    data = hr.range(1000).with_options(progress=False, engine="inline")
    several = data.predict({"old": named(old, "mine"), "new": named(new, "other")}, inputs=["id"])
    found = several.write_parquet(str(tmp_path / "several")).metrics["shadow"]
    assert (found["rows"], found["changed"], found["psi"]) == (1000, 99, None)  # 0 * 3 is 0 * 2
    both = data.predict({"old": old, "new": new}, inputs=["id"])
    assert "shadow" not in both.map_batches(lambda batch: batch).write_parquet(str(tmp_path / "map")).metrics
    own = both.accumulate(shadow=hr.Mean("new")).write_parquet(str(tmp_path / "own"))
    assert isinstance(own.metrics["shadow"], float)
    one = data.predict({"old": old, "new": named(new, "other")}, inputs=["id"])
    assert one.write_parquet(str(tmp_path / "one")).metrics["shadow"]["share"] == 1.0
