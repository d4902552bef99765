"""docs/coming-from-ray.md says of every public name of Ray what becomes of it, and says what is so."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from .pages import ROOT


@pytest.fixture(scope="module")
def ray_names() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        return importlib.import_module("ray_names")


def test_the_page_is_what_the_code_answers(ray_names: Any) -> None:
    page = ray_names.PAGE.read_text()
    assert ray_names.written(page) == page, "python tools/ray_names.py writes this part of the page anew"


def test_each_name_has_its_text(ray_names: Any) -> None:
    assert set(ray_names.TITLES) == {*ray_names.RAY, *ray_names.AIR}
    for owner in ray_names.TITLES:
        for name in ray_names.names(owner):
            offered, text = ray_names.fate(owner, name)
            assert text and "\n" not in text, (
                f"{owner}.{name} is {'' if offered else 'not '}offered: say more"
            )
    for texts in (ray_names.DIFFERENT, ray_names.ABSENT):
        for owner, said in texts.items():
            written = {name for several in said for name in several.split()} - {"*"}
            assert written <= set(ray_names.names(owner)), f"names that {owner} does not have"


def test_what_is_asked_is_ours(ray_names: Any) -> None:
    """So that a name is never called absent because its owner was not found."""
    options = {"ray.remote of a function", "ray.remote of a class"}
    for owner in ray_names.TITLES.keys() - options:
        assert ray_names._ours(owner) is not None, owner
    assert ray_names.fate("ray.data.Dataset", "map_batches")[0]
    assert ray_names.fate("ray.util.ActorPool", "submit") == (True, "here")
    assert ray_names.fate("ray.remote of a function", "num_cpus") == (True, "here")
    assert ray_names.fate("ray.remote of a class", "object_store_memory") == (True, "taken, without effect")
    assert ray_names.fate("ray.remote of a class", "label_selector")[1].startswith("there is one machine")
    offered, text = ray_names.fate("ray.data.Dataset", "summary")
    assert not offered and text.startswith("aggregate(Sum")


def _members(owner: Any) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def test_the_names_are_those_of_ray(ray_names: Any) -> None:
    ray: Any = pytest.importorskip("ray")
    for name in ("data", "exceptions", "util", "data.preprocessors", "data.grouped_data"):
        importlib.import_module(f"ray.{name}")
    data, errors = ray.data, ray.exceptions
    options = importlib.import_module("ray._common.ray_option_utils")
    readers = {
        n for n in dir(data) if n.startswith(("from_", "read_", "range")) and callable(getattr(data, n))
    }
    modules = "data exceptions util air train workflow widgets internal autoscaler actor"
    theirs = {
        "ray": {n for n in ray.__all__ if not n.startswith("_")} - {*modules.split()},
        "ray.data": {*data.__all__, *readers},
        "ray.data.Dataset": _members(data.Dataset),
        "ray.data.DataIterator": _members(data.DataIterator),
        "ray.data.grouped_data.GroupedData": _members(data.grouped_data.GroupedData),
        "ray.data.preprocessors": set(data.preprocessors.__all__),
        "ray.remote of a function": {n for n in options.task_options if not n.startswith("_")},
        "ray.remote of a class": {n for n in options.actor_options if not n.startswith("_")},
        "ray.util": {n for n in ray.util.__all__ if not inspect.ismodule(getattr(ray.util, n, None))},
        "ray.util.ActorPool": _members(ray.util.ActorPool),
        "ray.ObjectRef": _members(ray.ObjectRef),
        "ray.exceptions": {
            n
            for n, kind in vars(errors).items()
            if isinstance(kind, type)
            and issubclass(kind, BaseException)
            and kind.__module__ == "ray.exceptions"
        },
    }
    assert {owner: set(ray_names.names(owner)) for owner in ray_names.RAY} == theirs
