"""What a model of XGBoost has to be, as JSON or UBJSON, checked before XGBoost reads it.

Its reader goes by sizes and indices that the file says: of arrays behind the file's end, of nodes that are not there,
of children that lead in a circle. The format: https://xgboost.readthedocs.io/en/stable/tutorials/saving_model.html ;
UBJSON: https://ubjson.org , as XGBoost writes it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from headrace.core.files.model_files import NotReadable, from_json
from headrace.predictors.trees import Integers, check_depth

_DEEPEST = 100  # levels of objects and arrays in a file; XGBoost writes ten
_CATEGORY = 1 << 24  # as XGBoost has it: numbers that a float32 holds exactly
_SETS = 256 << 20  # bits of sets of categories, above eight for each byte of the file
_MANY = 100_000  # classes or targets of a model whose trees do not show how many there are

_DTYPES = {b"d": ">f4", b"D": ">f8", b"i": "i1", b"U": "u1", b"I": ">i2", b"l": ">i4", b"L": ">i8"}
_NUMBERS = {
    b"i": struct.Struct(">b"),
    b"U": struct.Struct(">B"),
    b"I": struct.Struct(">h"),
    b"l": struct.Struct(">i"),
    b"L": struct.Struct(">q"),
    b"d": struct.Struct(">f"),
}
_CONSTANTS = {b"Z": None, b"T": True, b"F": False}
_RAW = dict[str, msgspec.Raw]


def check(data: bytes | bytearray, kind: str, *, older: bool = False) -> None:
    """Raise ``NotReadable`` unless the trees of a model are trees, and all that it refers to is there.

    ``older``: the XGBoost here is of before 3.1, which writes and reads vectors as leaves in another form.

    >>> check(b'{"learner": {}}', "json")
    Traceback (most recent call last):
    ...
    headrace.core.files.model_files.NotReadable: it has no gradient_booster
    """
    model = _from_json(data) if kind == "json" else _Reader(data).whole()
    learner = _part(model, "learner")
    booster = _part(learner, "gradient_booster")
    sizes = _part(learner, "learner_model_param")
    features = _count(sizes, "num_feature")
    classes, targets = _count(sizes, "num_class", 0), _count(sizes, "num_target", 1)
    groups = max(classes, targets, 1)
    _check_objective(learner, classes)
    for name in ("feature_names", "feature_types"):
        listed = _array(learner, name)
        if len(listed) not in (0, features):
            raise NotReadable(f"it has {features} features, and {len(listed)} {name}")
    if _text(booster, "name") == "gblinear":
        weights = _array(_part(booster, "model"), "weights")
        if len(weights) != (features + 1) * groups:
            raise NotReadable(f"it has {len(weights)} weights for {features} features and {groups} results")
        return
    if _text(booster, "name") == "dart":
        dropped = _array(booster, "weight_drop")
        booster = _part(booster, "gbtree")
        if len(dropped) != len(_list(_part(booster, "model"), "trees")):
            raise NotReadable("its weight_drop has not a weight for each tree")
    _check_forest(_part(booster, "model"), features, groups, len(data), older)


def _check_forest(model: Any, features: int, groups: int, size: int, older: bool) -> None:
    trees = _list(model, "trees")
    if len(trees) != _count(_part(model, "gbtree_model_param"), "num_trees"):
        raise NotReadable(f"it says that it has another number of trees than {len(trees)}")
    info = _whole(model, "tree_info", len(trees), 0, groups)
    starts = _whole(model, "iteration_indptr", None, 0, len(trees) + 1)
    if len(starts) and not _ascends(starts, len(trees)):
        raise NotReadable("its iteration_indptr does not lead through its trees")
    widths = {1}
    sets = 0
    for number, each in enumerate(trees):
        try:
            width, bits = _check_tree(_opened(each), features, older)
        except NotReadable as error:
            raise NotReadable(f"its tree number {number} is damaged: {error}") from None
        widths.add(width)
        sets += bits
    if sets > _SETS + 8 * size:
        raise NotReadable("its categories would need far more memory than the file is big")
    if not widths <= {1, groups}:
        raise NotReadable(f"its trees give other than {groups} results")
    if groups not in widths and groups > (info.max(initial=-1) + 1 if len(info) else _MANY):
        raise NotReadable(f"it has no trees for {groups} results")
    if _has(model, "cats"):
        _check_categories(_part(model, "cats"), features)


def _check_tree(tree: Any, features: int, older: bool) -> tuple[int, int]:
    """Check a tree; return how many results a leaf has, and how many bits its sets of categories take."""
    sizes = _part(tree, "tree_param")
    nodes = _count(sizes, "num_nodes")
    if not nodes or _count(sizes, "num_feature") > max(features, 1):
        raise NotReadable("it has no nodes, or other features than the model")
    width = max(_count(sizes, "size_leaf_vector", 1), 1)
    left = _whole(tree, "left_children", nodes, -1, nodes)
    leaves = left == -1
    right = _whole(tree, "right_children", nodes, -1, nodes)
    right = np.where(leaves, -1, right)
    inner = np.flatnonzero(~leaves)
    children = np.concatenate([left[inner], right[inner]])
    if (children < 1).any() or len(np.unique(children)) != len(children):
        raise NotReadable("its children make no tree")
    parents = _whole(tree, "parents", nodes, -1, 1 << 31)
    if not np.array_equal(parents[children], np.concatenate([inner, inner])) or parents[0] not in (
        -1,
        2147483647,
    ):
        raise NotReadable("its parents are not those of its children")
    check_depth(left, right)
    split = _whole(tree, "split_indices", nodes, -1, 1 << 32)
    if ((split < 0) | (split >= features))[inner].any():
        raise NotReadable("it goes by features that are not there")
    _check_length(tree, "split_conditions", nodes)
    for name in ("default_left", "loss_changes", "sum_hessian"):
        if _has(tree, name) or (width > 1 and not older):
            _check_length(tree, name, nodes)
    if width == 1:
        _check_length(tree, "base_weights", nodes)
    else:
        _check_leaves(tree, nodes, leaves, width, older)
    return width, _check_sets(tree, nodes, inner)


def _check_leaves(tree: Any, nodes: int, leaves: Any, width: int, older: bool) -> None:
    """Vectors as leaves: their places are in the right children of leaves."""
    if older and not _has(tree, "leaf_weights"):
        _check_length(tree, "base_weights", nodes * width)
        return
    weights = len(_array(tree, "leaf_weights"))
    places = _whole(tree, "right_children", nodes, -1, nodes)[leaves]
    if weights % width or (len(places) and places.max() >= weights // width):
        raise NotReadable("its leaves are not all there")
    _check_length(tree, "base_weights", nodes * width)


def _check_sets(tree: Any, nodes: int, inner: Integers) -> int:
    """Check which splits go by sets of categories, and that the sets are there; return their bits."""
    if not _has(tree, "split_type"):
        return 0
    kinds = _whole(tree, "split_type", nodes, 0, 2)
    by_set = np.flatnonzero(kinds == 1)
    where = _whole(tree, "categories_nodes", None, 0, nodes)
    if not np.array_equal(by_set, where) or not np.isin(where, inner).all():
        raise NotReadable("its categories are those of other nodes")
    values = _whole(tree, "categories", None, 0, _CATEGORY)
    starts = _whole(tree, "categories_segments", len(where), 0, len(values) + 1)
    counts = _whole(tree, "categories_sizes", len(where), 1, len(values) + 1)
    if (starts + counts > len(values)).any():
        raise NotReadable("its categories are not all there")
    return sum(
        int(values[start : start + count].max()) + 33
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
    )


def _check_categories(cats: Any, features: int) -> None:
    """Check the values of categories, by feature, which newer versions keep."""
    known = _list(cats, "enc")
    total = 0
    for each in known:
        one = _opened(each)
        values = _array(one, "values")
        count = len(values)
        if _has(one, "offsets"):
            offsets = _whole(one, "offsets", None, 0, len(values) + 1)
            if len(offsets) and not _ascends(offsets, len(values)):
                raise NotReadable("the values of its categories are damaged")
            count = max(len(offsets) - 1, 0)
            _as_text(values)
        total += count
    segments = _whole(cats, "feature_segments", None, 0, total + 1)
    if len(known) not in (0, features) or len(segments) != (len(known) + 1 if known else len(segments)):
        raise NotReadable("its categories are not those of its features")
    if len(segments) and not _ascends(segments, total):
        raise NotReadable("its categories are not those of its features")
    _whole(cats, "sorted_idx", total, 0, max(total, 1))


def _ascends(bounds: Integers, end: int) -> bool:
    return bool(bounds[0] == 0 and bounds[-1] == end and (np.diff(bounds) >= 0).all())


def _as_text(values: Any) -> None:
    try:
        np.asarray(values, np.int64).astype(np.uint8).tobytes().decode()
    except (UnicodeDecodeError, TypeError, ValueError, OverflowError):
        raise NotReadable("the values of its categories are no text") from None


def _check_objective(learner: Any, classes: int) -> None:
    """The results are as wide as the model's classes; an objective for more of them would write behind their end."""
    objective = _part(learner, "objective")
    name = _text(objective, "name")
    if not name.startswith("multi:"):
        return
    said = _count(_part(objective, "softmax_multiclass_param"), "num_class")
    if said != classes or not classes:
        raise NotReadable(f"its objective is not one of {classes} classes")


# ---------------------------------------------------------------- values


def _from_json(data: bytes | bytearray) -> Any:
    """Return the members of a model, which are decoded when they are looked at: as objects, all would be too big."""
    try:
        return msgspec.json.decode(data, type=_RAW)
    except msgspec.ValidationError as error:
        raise NotReadable(str(error)) from error
    except RecursionError:
        raise NotReadable("it nests too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return from_json(bytes(data))  # XGBoost writes NaN and Infinity, which are no JSON


def _opened(value: Any, type_: Any = _RAW) -> Any:
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.json.decode(value, type=type_)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotReadable(str(error)) from error


def _has(values: Any, name: str) -> bool:
    return isinstance(values, Mapping) and name in values


def _part(values: Any, name: str) -> Any:
    """Return the object ``name``, whose members may be undecoded."""
    if not _has(values, name):
        raise NotReadable(f"it has no {name}")
    found = _opened(values[name])
    if not isinstance(found, Mapping):
        raise NotReadable(f"its {name} is no object")
    return found


def _list(values: Any, name: str) -> Any:
    if not _has(values, name):
        raise NotReadable(f"it has no {name}")
    found = _opened(values[name], list[msgspec.Raw])
    if not isinstance(found, list):
        raise NotReadable(f"its {name} is no array")
    return found


def _array(values: Any, name: str) -> Any:
    """Return an array of numbers or texts."""
    if not _has(values, name):
        return []
    found = _opened(values[name], Any)
    if not isinstance(found, list | np.ndarray):
        raise NotReadable(f"its {name} is no array")
    return found


def _text(values: Any, name: str) -> str:
    found = _opened(values[name], Any) if _has(values, name) else None
    if not isinstance(found, str):
        raise NotReadable(f"its {name} is no text")
    return found


def _count(values: Any, name: str, otherwise: int | None = None) -> int:
    """Return a number that XGBoost writes as text."""
    if otherwise is not None and not _has(values, name):
        return otherwise
    text = _text(values, name)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise NotReadable(f"its {name} is {text[:40]!r}")
    return int(text)


def _check_length(values: Any, name: str, count: int) -> None:
    found = _array(values, name)
    if len(found) != count:
        raise NotReadable(f"its {name} has {len(found)} values, and should have {count}")
    try:
        if np.asarray(found).dtype.kind not in "fiub":
            raise ValueError
    except (ValueError, OverflowError):
        raise NotReadable(f"its {name} holds what is no number") from None


def _whole(values: Any, name: str, count: int | None, least: int, end: int) -> Integers:
    """Return ``count`` whole numbers, each of them ``least`` or more and less than ``end``."""
    found = _array(values, name)
    try:
        array = np.asarray(found)
        if len(array) and array.dtype.kind not in "iub":
            raise ValueError
        made = array.astype(np.int64).reshape(-1)
    except (ValueError, OverflowError):
        raise NotReadable(f"its {name} holds what is no whole number") from None
    if len(made) != (len(found) if count is None else count):
        raise NotReadable(f"its {name} has {len(made)} values, and should have {count}")
    if len(made) and not (least <= made.min() and made.max() < end):
        raise NotReadable(f"its {name} leads to what is not there")
    return made


class _Reader:
    """UBJSON as XGBoost writes it: sizes as 64 bits, arrays of one type as they lie in the file."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = memoryview(data)
        self._at = 0

    def whole(self) -> Any:
        found = self._value(self._taken(1), 0)
        if self._at != len(self._data):
            raise NotReadable("something follows its end")
        return found

    def _taken(self, count: int) -> bytes:
        return bytes(self._view(count))

    def _view(self, count: int) -> memoryview:
        if count < 0 or self._at + count > len(self._data):
            raise NotReadable("its end is missing")
        self._at += count
        return self._data[self._at - count : self._at]

    def _value(self, kind: bytes, depth: int) -> Any:
        if depth > _DEEPEST:
            raise NotReadable("it nests too deep")
        if kind == b"{":
            return self._object(depth)
        if kind == b"[":
            return self._array(depth)
        if kind == b"S":
            return self._string()
        if kind in _NUMBERS:
            number = _NUMBERS[kind]
            return number.unpack(self._view(number.size))[0]
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        raise NotReadable(f"it has a value of the unknown kind {kind!r}")

    def _object(self, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        while (kind := self._taken(1)) != b"}":
            name = self._characters(kind)
            if name in made:
                raise NotReadable(f"it says {name[:40]!r} twice")
            made[name] = self._value(self._taken(1), depth + 1)
        return made

    def _array(self, depth: int) -> Any:
        kind = self._taken(1)
        if kind == b"$":
            type_ = _DTYPES.get(self._taken(1))
            if type_ is None or self._taken(1) != b"#":
                raise NotReadable("an array is of an unknown type")
            dtype = np.dtype(type_)
            return np.frombuffer(self._view(self._size(self._taken(1)) * dtype.itemsize), dtype)
        if kind == b"#":
            count = self._size(self._taken(1))
            if count > len(self._data) - self._at:
                raise NotReadable("its end is missing")
            return [self._value(self._taken(1), depth + 1) for _ in range(count)]
        made = []
        while kind != b"]":
            made.append(self._value(kind, depth + 1))
            kind = self._taken(1)
        return made

    def _string(self) -> str:
        return self._characters(self._taken(1))

    def _characters(self, kind: bytes) -> str:
        try:
            return self._taken(self._size(kind)).decode()
        except UnicodeDecodeError:
            raise NotReadable("it holds bytes that are no text") from None

    def _size(self, kind: bytes) -> int:
        if kind != b"L":
            raise NotReadable("a size is damaged")
        return int(_NUMBERS[b"L"].unpack(self._view(8))[0])
