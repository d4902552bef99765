"""Files whose readers trust them: what they refer to and is not there is found before they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.files.model_files import NotReadable
from headrace.errors import ModelUnreadable
from headrace.predictors import lightgbm_files, xgboost_files
from headrace.predictors.keras import hdf5_files
from headrace.predictors.lightgbm import LightGBMPredictor
from headrace.predictors.trees import DEEPEST
from headrace.predictors.xgboost import XGBoostPredictor

from . import seeds

LIGHTGBM = ("lightgbm", "lightgbm-categories", "lightgbm-linear")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    folder = tmp_path_factory.mktemp("seeds")
    return lambda name: Path(seeds.make(name, folder)).read_bytes()


@pytest.mark.parametrize("name", LIGHTGBM)
def test_what_lightgbm_writes_is_taken(made: Callable[[str], bytes], name: str) -> None:
    lightgbm_files.check(made(name))


@pytest.mark.parametrize("linear", [False, True])
def test_a_tree_of_one_leaf_is_taken(tmp_path: Path, linear: bool) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    rows = np.arange(30.0).reshape(10, 3)
    options = {"verbose": -1, "num_threads": 1, "linear_tree": linear}
    booster = lightgbm.train(options, lightgbm.Dataset(rows, rows[:, 0]), 2)
    booster.save_model(tmp_path / "m.txt")
    assert b"num_leaves=1\n" in (tmp_path / "m.txt").read_bytes()
    lightgbm_files.check((tmp_path / "m.txt").read_bytes())


def changed(text: bytes, field: bytes, value: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """Change the first field of this name in a tree, and the length of that tree in the head."""
    start = text.index(b"\n" + field + b"=", text.index(b"Tree=0")) + len(field) + 2
    end = text.index(b"\n", start)
    new = b" ".join(value(text[start:end].split()))
    number = text.count(b"\nTree=", 0, start) - 1
    made = text[:start] + new + text[end:]
    line = made.index(b"tree_sizes=") + len(b"tree_sizes=")
    sizes = made[line : made.index(b"\n", line)].split()
    sizes[number] = b"%d" % (int(sizes[number]) + len(new) - (end - start))
    return made[:line] + b" ".join(sizes) + made[made.index(b"\n", line) :]


def put(at: int, value: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda values: [*values[:at], value, *values[at:][1:]]


TREES: dict[str, tuple[str, bytes, Callable[[list[bytes]], list[bytes]]]] = {
    "a child that is not there": ("lightgbm", b"left_child", put(0, b"99999")),
    "a leaf that is not there": ("lightgbm", b"right_child", put(0, b"-99999")),
    "a circle": ("lightgbm", b"left_child", put(1, b"1")),
    "more leaves than values": ("lightgbm", b"num_leaves", put(0, b"200000000")),
    "a feature that is not there": ("lightgbm", b"split_feature", put(0, b"7")),
    "values that are missing": ("lightgbm", b"threshold", lambda values: values[1:]),
    "values that are none": ("lightgbm", b"leaf_weight", put(0, b"a1")),
    "a set that is not there": ("lightgbm-categories", b"threshold", put(0, b"9")),
    "a set without an end": ("lightgbm-categories", b"cat_boundaries", put(1, b"2000000000")),
    "sets that are missing": ("lightgbm-categories", b"num_cat", put(0, b"400000000")),
    "another feature in a leaf": ("lightgbm-linear", b"leaf_features", put(0, b"7")),
    "features that are missing": ("lightgbm-linear", b"num_features", put(0, b"3")),
}


@pytest.mark.parametrize("case", TREES)
def test_a_tree_that_is_none(tmp_path: Path, made: Callable[[str], bytes], case: str) -> None:
    name, field, change = TREES[case]
    (tmp_path / "m.txt").write_bytes(changed(made(name), field, change))
    with pytest.raises(ModelUnreadable, match=r"its tree number \d is damaged"):
        LightGBMPredictor(tmp_path / "m.txt").load()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"num_class=3", b"num_class=2", "not those of 2 classes"),
        (
            b"num_class=3\nnum_tree_per_iteration=3",
            b"num_class=1\nnum_tree_per_iteration=1",
            "not one of 1 classes",
        ),
        (b"num_class:3", b"num_class:300", "not one of 3 classes"),
        (b"max_feature_idx=2", b"max_feature_idx=900000000", "feature_names are 3"),
        (b"[num_leaves: 5]", b"[num_leaves 5]", "parameter .* is damaged"),
        (b"[num_leaves: 5]", b"[num_leaves: \r5]", "parameter .* is damaged"),
        (b"end of parameters", b"end of parameter", "parameter end of parameter is damaged"),
        (b"pandas_categorical:null", b"pandas_categorical:5", "pandas are no lists"),
        (b"Column_0", b"Column_\xff", "no text"),
    ],
)
def test_a_head_or_an_end_that_is_damaged(
    tmp_path: Path, made: Callable[[str], bytes], old: bytes, new: bytes, words: str
) -> None:
    text = made("lightgbm-categories")
    assert old in text
    (tmp_path / "m.txt").write_bytes(text.replace(old, new, 1))
    with pytest.raises(ModelUnreadable, match=words):
        LightGBMPredictor(tmp_path / "m.txt").load()


def test_a_tree_that_is_too_deep() -> None:
    nodes = DEEPEST + 1
    left = np.append(np.arange(1, nodes), -nodes - 1)
    with pytest.raises(NotReadable, match="levels deep"):
        xgboost_files.check_depth(left, -1 - np.arange(nodes))


# ---------------------------------------------------------------- XGBoost


def models() -> dict[str, Any]:
    xgboost = pytest.importorskip("xgboost")
    dice = np.random.default_rng(0)
    rows = dice.normal(size=(200, 3))
    some = {"max_depth": 3, "nthread": 1}
    data, classes = xgboost.DMatrix(rows, rows[:, 0] > 0), xgboost.DMatrix(rows, np.arange(200) % 3)
    categories = xgboost.DMatrix(
        dice.integers(0, 9, (200, 3)).astype(np.float32),
        np.arange(200) % 3,
        feature_types=["c", "c", "q"],
        enable_categorical=True,
    )
    several = {"objective": "multi:softprob", "num_class": 3}
    vectors = {"multi_strategy": "multi_output_tree", "tree_method": "hist"}
    return {
        "binary": xgboost.train({**some, "objective": "binary:logistic"}, data, 2),
        "classes": xgboost.train({**some, **several}, classes, 2),
        "categories": xgboost.train({**some, **several, "max_cat_to_onehot": 1}, categories, 2),
        "dart": xgboost.train({**some, "booster": "dart", "rate_drop": 0.5}, data, 3),
        "linear": xgboost.train({**several, "booster": "gblinear", "nthread": 1}, classes, 3),
        "vectors": xgboost.train({**some, **vectors}, xgboost.DMatrix(rows, rows[:, :2]), 2),
        "targets": xgboost.train(some, xgboost.DMatrix(rows, rows[:, :2]), 2),
        "forest": xgboost.train({**some, "num_parallel_tree": 3}, data, 2),
        "pruned": xgboost.train({**some, "gamma": 5.0, "tree_method": "exact"}, data, 3),
        "one leaf": xgboost.train({**some, "gamma": 1e9}, data, 1),
    }


@pytest.fixture(scope="module")
def boosters() -> dict[str, Any]:
    return models()


@pytest.mark.parametrize("form", ["json", "ubj"])
def test_what_xgboost_writes_is_taken(boosters: dict[str, Any], form: Any) -> None:
    for booster in boosters.values():
        xgboost_files.check(bytes(booster.save_raw(form)), form)


def test_numbers_that_are_no_json_are_taken(boosters: dict[str, Any]) -> None:
    text = bytes(boosters["binary"].save_raw("json"))
    start = text.index(b'"loss_changes":[') + len(b'"loss_changes":[')
    xgboost_files.check(text[:start] + b"NaN" + text[text.index(b",", start) :], "json")


def _tree(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    def changed(model: Any) -> None:
        booster = model["learner"]["gradient_booster"]
        change(booster.get("gbtree", booster)["model"]["trees"][0])

    return changed


def _of_model(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda model: change(model["learner"]["gradient_booster"]["model"])


def _of_learner(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda model: change(model["learner"])


def _put(name: str, at: int, value: Any) -> Callable[[Any], Any]:
    return lambda values: values[name].__setitem__(at, value)


def _other_node(tree: Any) -> None:
    tree["categories_nodes"][0] = len(tree["parents"]) - 1


MODELS: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "a child that is not there": ("binary", _tree(_put("left_children", 0, 999)), "left_children leads to"),
    "a circle": ("binary", _tree(_put("left_children", 0, 0)), "children make no tree"),
    "two parents": ("binary", _tree(_put("left_children", 0, 2)), "children make no tree"),
    "parents that are others": ("binary", _tree(_put("parents", 1, 2)), "parents are not"),
    "a feature that is not there": ("binary", _tree(_put("split_indices", 0, 3)), "features that are not there"),
    "values that are missing": ("binary", _tree(lambda tree: tree["split_conditions"].pop()), "split_conditions has"),
    "texts for numbers": ("binary", _tree(_put("base_weights", 0, "x")), "what is no number"),
    "more nodes than are there": (
        "binary", _tree(lambda tree: tree["tree_param"].update(num_nodes="99999999")), "left_children has"),
    "a category that is too big": ("categories", _tree(_put("categories", 0, 1 << 30)), "categories leads to"),
    "sets that are missing": ("categories", _tree(_put("categories_segments", 0, 1 << 40)), "segments leads to"),
    "a set for another node": ("categories", _tree(_other_node), "categories are those"),
    "more trees than are there": (
        "binary", _of_model(lambda model: model["gbtree_model_param"].update(num_trees="9")), "number of trees"),
    "a tree of no class": ("classes", _of_model(_put("tree_info", 0, 7)), "tree_info leads to"),
    "rounds that are not there": ("binary", _of_model(_put("iteration_indptr", 1, 9)), "iteration_indptr leads to"),
    "results that are not there": (
        "binary", _of_learner(lambda learner: learner["learner_model_param"].update(num_class="900000")),
        "no trees for 900000 results"),
    "an objective of other classes": (
        "classes", _of_learner(lambda each: each["objective"]["softmax_multiclass_param"].update(num_class="9")),
        "not one of 3 classes"),
    "weights that are missing": ("linear", _of_model(lambda model: model["weights"].pop()), "11 weights"),
    "a tree that was not dropped": (
        "dart", lambda model: model["learner"]["gradient_booster"]["weight_drop"].pop(), "weight_drop"),
    "vectors without sums": ("vectors", _tree(lambda tree: tree.pop("sum_hessian")), "sum_hessian has"),
    "leaves that are missing": ("vectors", _tree(lambda tree: tree["leaf_weights"].pop()), "leaves are not all"),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_a_model_that_is_none(tmp_path: Path, boosters: dict[str, Any], case: str) -> None:
    name, change, words = MODELS[case]
    model = json.loads(boosters[name].save_raw("json"))
    change(model)
    (tmp_path / "m.json").write_text(json.dumps(model))
    with pytest.raises(ModelUnreadable, match=words):
        XGBoostPredictor(tmp_path / "m.json").load()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"[$l#L" + bytes(7), b"[$l#L" + bytes(3) + b"\xff" + bytes(3), "its end is missing"),
        (b"[#L" + bytes(7), b"[#L\x7f" + bytes(6), "its end is missing"),
        (b"[$l#", b"[$x#", "of an unknown type"),
        (b"learner{", b"learner" + b"[" * 100_000, "nests too deep"),
    ],
)
def test_sizes_that_are_none(
    tmp_path: Path, boosters: dict[str, Any], old: bytes, new: bytes, words: str
) -> None:
    data = bytes(boosters["binary"].save_raw("ubj"))
    assert old in data
    (tmp_path / "m.ubj").write_bytes(data.replace(old, new, 1))
    with pytest.raises(ModelUnreadable, match=words):
        XGBoostPredictor(tmp_path / "m.ubj").load()


def test_categories_do_not_fill_the_memory(boosters: dict[str, Any]) -> None:
    """Each set takes as many bits as its biggest category, and the file has only the category."""
    model = json.loads(boosters["categories"].save_raw("json"))
    trees = model["learner"]["gradient_booster"]["model"]
    tree = next(each for each in trees["trees"] if each["categories_nodes"])
    tree["categories"][0] = (1 << 24) - 1
    at = trees["trees"].index(tree)
    trees["trees"] += [tree] * 60
    trees["gbtree_model_param"]["num_trees"] = str(len(trees["trees"]))
    trees["tree_info"] += [trees["tree_info"][at]] * 60
    trees["iteration_indptr"][-1] = len(trees["trees"])
    with pytest.raises(NotReadable, match="far more memory"):
        xgboost_files.check(json.dumps(model).encode(), "json")


# ---------------------------------------------------------------- HDF5


def _written(folder: Path, fill: Callable[[Any], None]) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "m.h5", "w") as file:
        fill(file)
    return str(folder / "m.h5")


HDF5: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no bytes": (lambda file: file.create_dataset("a", (1 << 30,), "f4"), "bigger than the file"),
    "inflated": (lambda file: file.create_dataset("a", (1 << 30,), "f4", chunks=(1 << 20,)), "inflate"),
    "elsewhere": (
        lambda file: file.create_dataset("a", (8,), "f4", external=[("/etc/passwd", 0, 32)]), "another file"),
    "a link": (lambda file: file.__setitem__("a", _h5py().SoftLink("/b")), "holds a link"),
    "a link to a file": (lambda file: file.__setitem__("a", _h5py().ExternalLink("x.h5", "/")), "holds a link"),
}  # fmt: skip


def _h5py() -> Any:
    return pytest.importorskip("h5py")


@pytest.mark.parametrize("case", HDF5)
def test_weights_that_are_none(tmp_path: Path, case: str) -> None:
    fill, words = HDF5[case]
    with pytest.raises(NotReadable, match=words):
        hdf5_files.check(_written(tmp_path, fill))


def test_weights_in_every_form_are_taken(tmp_path: Path) -> None:
    def fill(file: Any) -> None:
        file.create_dataset("a/b/plain", data=np.ones((100, 100), np.float32))
        file.create_dataset("packed", data=np.ones((100, 100), np.float32), compression="gzip")
        file.create_dataset("empty", (0, 4), "f4")
        file.create_dataset("one", data=3)
        file.create_dataset("texts", data=["a", "b"], dtype=_h5py().string_dtype())
        file["again"] = file["a"]

    hdf5_files.check(_written(tmp_path, fill))


def test_no_file_of_that_kind(tmp_path: Path) -> None:
    (tmp_path / "m.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(NotReadable):
        hdf5_files.check(str(tmp_path / "m.h5"))
