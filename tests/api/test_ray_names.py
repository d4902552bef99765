"""Every name that Ray Data has is offered here, or answered with a reason: none is just missing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import S3FileSystem as S3

import headrace as hr
from headrace.errors import ArgumentError, HeadraceError, NotOffered, UnknownArgument
from headrace.plan import ray_unsupported

from .ray_names import ARGUMENTS

_SPEC = importlib.util.spec_from_file_location(
    "names_of_ray", Path(__file__).parents[2] / "tools/ray_names.py"
)
assert _SPEC is not None and _SPEC.loader is not None
_TOOL = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_TOOL)
VERBS = _TOOL.RAY["ray.data.Dataset"].split()
FUNCTIONS = [name for name in _TOOL.RAY["ray.data"].split() if name.startswith(("from_", "read_", "range"))]


def refusal(of: Any, name: str) -> str:
    assert not hasattr(of, name)
    with pytest.raises(NotOffered) as caught:
        getattr(of, name)
    assert isinstance(caught.value, (HeadraceError, AttributeError))
    return str(caught.value)


@pytest.mark.parametrize(("of", "names"), [(hr.range(3), VERBS), (hr, FUNCTIONS)], ids=["verbs", "functions"])
def test_names_are_here_or_say_why_not(of: Any, names: list[str]) -> None:
    absent = [name for name in names if not hasattr(of, name)]
    assert all(callable(getattr(of, name)) for name in names if name not in absent)
    for name in absent:
        said = refusal(of, name)
        assert said.startswith(f"Headrace has no {name}: ") and said.endswith(".") and "\n" not in said
        assert len(said.split()) > 8, "a reason, and what to do"
    reasons = ray_unsupported.NO_FUNCTIONS if of is hr else ray_unsupported.NO_VERBS
    assert {*reasons} - {"DataContext", "DatasetContext", "ExecutionOptions"} == {*absent}


def test_a_verb_that_nobody_has() -> None:
    assert (
        refusal(hr.range(3), "map_batch") == "A dataset has no verb 'map_batch'. Did you mean 'map_batches'?"
    )
    with pytest.raises(AttributeError):
        hr.range(3).__array__()


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_arguments_are_known(verb: str) -> None:
    """Each is taken, or refused with a reason; none is unknown."""
    owner, _, last = verb.rpartition(".")
    for name in ARGUMENTS[verb].split():
        call = getattr(hr.range(3) if owner else hr, last)
        try:
            call(**{name: object()})
        except Exception as error:
            assert "has no argument" not in str(error), (name, error)
            if not isinstance(error, HeadraceError):
                assert re.search(r"missing \d required positional", str(error)), (name, error)
            else:
                assert "\n" not in str(error), name


# ---------------------------------------------------------------- arguments without effect, and those refused


def same(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(
    "given",
    [
        {"zero_copy_batch": True, "max_concurrency": 4},
        {"udf_modifying_row_count": False},
        {"num_tpus": None, "resources": {}, "runtime_env": None, "label_selector": None},
        {"compute": hr.ActorPoolStrategy(min_size=1, max_size=2, initial_size=2)},
        {"compute": hr.ActorPoolStrategy(size=1, max_tasks_in_flight_per_actor=4)},
        {"concurrency": (1, 3, 2)},
        {"max_restarts": -1, "max_task_retries": -1},
    ],
)
def test_what_changes_nothing_is_taken(given: dict[str, Any]) -> None:
    assert hr.range(3).map_batches(same, **given).count() == 3


def test_what_changes_nothing_is_taken_by_others() -> None:
    data = hr.range(3, parallelism=200, override_num_blocks=4, concurrency=2)
    assert data.select_columns(["id"], num_cpus=0.5, concurrency=4).schema(fetch_if_missing=False).names == [
        "id"
    ]
    assert len(list(data.iter_batches(prefetch_batches=5, local_shuffle_seed=None))) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda d: d.map_batches(same, resources={"a": 1}),
            r"resources=\{'a': 1\}: a step says what its workers need",
        ),
        (lambda d: d.map(same, num_tpus=1), "num_tpus=1: there are no workers with TPUs"),
        (
            lambda d: d.map_batches(same, runtime_env={"pip": ["x"]}),
            "runtime_env=.*set what they need before",
        ),
        (lambda d: d.map_batches(same, max_retries=5), "max_retries=5: with_options"),
        (lambda d: d.write_numpy("x", "id", partition_cols=["id"]), "partition_cols=.*write_parquet"),
        (lambda d: d.write_parquet("x", min_bytes_per_file=10), "min_rows_per_file"),
        (lambda d: d.sort("id", boundaries=[3]), "there are no blocks"),
        (lambda d: hr.read_parquet("x", filesystem=3), "filesystem=3: an address names the store"),
        (lambda d: hr.read_parquet("x", filesystem=S3(access_key="a", secret_key="b")), "credentials in it"),
        (lambda d: hr.read_parquet("x", shuffle="files"), "shuffle='files': files are read in the order"),
        (lambda d: hr.ActorPoolStrategy(enable_true_multi_threading=True), "max_in_flight="),
    ],
)
def test_what_would_be_lost_is_refused(call: Any, words: str) -> None:
    with pytest.raises(UnknownArgument, match=words) as caught:
        call(hr.range(3))
    assert isinstance(caught.value, (TypeError, ArgumentError)) and "\n" not in str(caught.value)


def test_a_file_system_of_pyarrow_says_what_storage_options_say() -> None:
    given = S3(region="eu-north-1", anonymous=True, endpoint_override="localhost:9", scheme="http")
    by_name = {"region": "eu-north-1", "anonymous": True, "endpoint": "http://localhost:9"}
    expected = hr.read_csv("s3://bucket/x.csv", storage_options=by_name)
    found = hr.read_csv("s3://bucket/x.csv", filesystem=given)
    assert found._plan.source.describe() == expected._plan.source.describe()
    with pytest.raises(UnknownArgument, match="say the same"):
        hr.read_csv("s3://bucket/x.csv", filesystem=given, storage_options=by_name)
