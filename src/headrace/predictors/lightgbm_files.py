"""What a text model of LightGBM has to be, checked before LightGBM reads it.

Its reader trusts the file: it goes by child indices, lengths and sizes without a look at what is there. Where they
lead elsewhere it ends the process, reads memory of others, or never comes back. The format is that of
``Tree::ToString`` and ``GBDT::SaveModelToString``: https://github.com/microsoft/LightGBM/tree/v4.6.0/src .
"""

from __future__ import annotations

import re

import numpy as np

from headrace.core.files.model_files import NotReadable, from_json
from headrace.predictors.trees import Integers, check_depth

Fields = dict[bytes, bytes]

_OF_NUMBERS = b"0123456789+-.eEinfaN "
_RANGE = re.compile(rb"none|\[[^:\]]*:[^:\]]*\]|[^\[\]]+")
_PARAMETER = re.compile(rb"\[\w+: .*\]")
_CATEGORIES = b"pandas_categorical:"
_LINE_END = re.compile(rb"[\r\n]")
_SIZES = re.compile(rb"\d{1,12}(?: \d{1,12})*")

_OF_NODES = (b"split_gain", b"threshold", b"internal_value", b"internal_weight", b"internal_count")
_OF_LEAVES = (b"leaf_value", b"leaf_weight", b"leaf_count")
_NEEDED = (b"split_feature", b"threshold", b"left_child", b"right_child", b"leaf_value")


def check(data: bytes) -> None:
    """Raise ``NotReadable`` unless every tree is where the head says, is a tree, and has all its numbers.

    >>> check(b"tree\\nversion=v4\\nmax_feature_idx=0\\n")
    Traceback (most recent call last):
    ...
    headrace.core.files.model_files.NotReadable: it has no trees, or its head does not say how long they are
    """
    if b"\0" in data:
        raise NotReadable("it holds bytes that are no text")
    at = data.find(b"\nTree=0") + 1
    if not at:
        raise NotReadable("it has no trees, or its head does not say how long they are")
    head = _head(data[:at])
    features = _number(head, b"max_feature_idx", 0) + 1
    sizes = head.get(b"tree_sizes", b"").strip()
    if _SIZES.fullmatch(sizes) is None:
        raise NotReadable("it has no trees, or its head does not say how long they are")
    lengths = [int(size) for size in sizes.split()]
    _check_head(head, features, len(lengths))
    for number, size in enumerate(lengths):
        tree = data[at : at + size]
        try:
            if not tree.startswith(b"Tree=%d\n" % number) or len(tree) < size:
                raise NotReadable("it is not where it should be")
            _check_tree(_fields(tree), features)
        except NotReadable as error:
            raise NotReadable(f"its tree number {number} is damaged: {error}") from None
        at += size
    if not data.startswith(b"end of trees", at):
        raise NotReadable("its trees do not end where they should")
    _check_rest(data[at:])


def _check_rest(text: bytes) -> None:
    """LightGBM looks behind the colon of each parameter, whether there is one or not."""
    _check_text(text)
    lines = _LINE_END.split(text.rstrip())
    inside = False
    for line in lines:
        inside = (inside or line == b"parameters:") and line != b"end of parameters"
        if inside and line not in (b"", b"parameters:") and _PARAMETER.fullmatch(line) is None:
            raise NotReadable(f"its parameter {_shown(line)} is damaged")
    if lines[-1].startswith(_CATEGORIES):
        known = from_json(lines[-1][len(_CATEGORIES) :])
        if known is not None and not (isinstance(known, list) and all(isinstance(e, list) for e in known)):
            raise NotReadable("its categories of pandas are no lists")


def _check_text(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise NotReadable("it holds bytes that are no text") from None


def _head(text: bytes) -> Fields:
    _check_text(text)
    found: Fields = {}
    for line in _LINE_END.split(text):
        name, _, value = line.partition(b"=")
        if name and name in found:
            raise NotReadable(f"its head says {_shown(name)} twice")
        found[name] = value
    return found


def _check_head(head: Fields, features: int, trees: int) -> None:
    """The rows of results are as wide as the classes; a tree for more of them would write behind their end."""
    classes = _number(head, b"num_class", 1)
    if _number(head, b"num_tree_per_iteration", 1) != classes or trees % classes:
        raise NotReadable(f"its {trees} trees are not those of {classes} classes")
    objective = head.get(b"objective", b"").split()
    if objective and objective[0] in (b"multiclass", b"multiclassova"):
        said = [each[len(b"num_class:") :] for each in objective if each.startswith(b"num_class:")]
        if said != [b"%d" % classes]:
            raise NotReadable(f"its objective is not one of {classes} classes")
    for name in (b"feature_names", b"feature_infos"):
        count = len(head.get(name, b"").split())
        if count != features:
            raise NotReadable(f"its {_shown(name)} are {count}, and it has {features} features")
    if not all(_RANGE.fullmatch(each) for each in head[b"feature_infos"].split()):
        raise NotReadable("its feature_infos are damaged")


def _fields(tree: bytes) -> Fields:
    lines, _, rest = tree.partition(b"\n\n")
    found: Fields = {}
    for line in lines.split(b"\n")[1:]:
        name, equals, value = line.partition(b"=")
        if not equals or name in found:
            raise NotReadable(f"the line {_shown(line)} is not one of a tree")
        found[name] = value
    if rest.strip(b"\n") or b"\r" in lines:
        raise NotReadable("it does not end where it should")
    return found


def _check_tree(tree: Fields, features: int) -> None:
    leaves = _number(tree, b"num_leaves", 1)
    if leaves > len(tree.get(b"leaf_value", b"")):
        raise NotReadable(f"it has no {leaves} leaves")
    linear = _number(tree, b"is_linear", 0) if b"is_linear" in tree else 0
    single = leaves == 1 and not linear  # LightGBM reads nothing but its value, then
    for name in _OF_LEAVES[:1] if leaves == 1 else _OF_LEAVES:
        _check_count(tree, name, leaves)
    if b"shrinkage" in tree:
        _check_count(tree, b"shrinkage", 1)
    if not single:
        for name in _NEEDED:
            if name not in tree:
                raise NotReadable(f"it has no {_shown(name)}")
        for name in _OF_NODES:
            _check_count(tree, name, leaves - 1)
        _within(tree, b"split_feature", leaves - 1, 0, features)
        _check_children(tree, leaves)
        _check_categories(tree, leaves - 1)
    if linear:
        _check_linear(tree, leaves, features)


def _check_children(tree: Fields, leaves: int) -> None:
    """Each node but the root, and each leaf, is the child of one: then every way down from the root ends."""
    left = _within(tree, b"left_child", leaves - 1, -leaves, leaves - 1)
    right = _within(tree, b"right_child", leaves - 1, -leaves, leaves - 1)
    if leaves > 1:
        children = np.sort(np.concatenate([left, right]))
        wanted = np.arange(-leaves, leaves - 1)
        if not np.array_equal(children, wanted[wanted != 0]):
            raise NotReadable("its children make no tree")
    check_depth(left, right)


def _check_categories(tree: Fields, nodes: int) -> None:
    kinds = _within(tree, b"decision_type", nodes, -128, 128) if b"decision_type" in tree else None
    count = _number(tree, b"num_cat", 0)
    if count:
        if count > len(tree.get(b"cat_boundaries", b"")):
            raise NotReadable("its categories are not there")
        bounds = _within(tree, b"cat_boundaries", count + 1, 0, 1 << 31)
        if bounds[0] != 0 or (np.diff(bounds) < 0).any():
            raise NotReadable("its cat_boundaries do not ascend")
        _within(tree, b"cat_threshold", int(bounds[-1]), 0, 1 << 32)
    if kinds is not None and (kinds & 1).any():
        sets = np.array(tree[b"threshold"].split())[(kinds & 1) == 1]
        if not all(each.isdigit() and len(each) < 11 and int(each) < count for each in sets.tolist()):
            raise NotReadable("a split goes by categories that are not there")


def _check_linear(tree: Fields, leaves: int, features: int) -> None:
    _check_count(tree, b"leaf_const", leaves)
    counts = _within(tree, b"num_features", leaves, 0, features + 1)
    total = int(counts.sum())
    used = tree.get(b"leaf_features", b"").split()
    if not all(each.isdigit() and len(each) < 11 and int(each) < features for each in used):
        raise NotReadable("its leaf_features are none of its features")
    factors = tree.get(b"leaf_coeff", b"")
    if len(used) != total or not _are_numbers(b" ".join(factors.split()), total):
        raise NotReadable("its linear leaves are not whole")


def _check_count(tree: Fields, name: bytes, count: int) -> None:
    """Raise unless a field, where it is there, has so many numbers with one space between them."""
    text = tree.get(name)
    if text is None:
        return
    found = text.count(b" ") + 1 if text else 0
    if found != count or b"  " in text or text[:1] == b" " or text[-1:] == b" ":
        raise NotReadable(f"its {_shown(name)} has {found} numbers, and should have {count}")
    if not _are_numbers(text, count):
        raise NotReadable(f"its {_shown(name)} holds what is no number")


def _are_numbers(text: bytes, count: int) -> bool:
    if text.translate(None, _OF_NUMBERS) or b"- " in text or text[-1:] == b"-":
        return False
    try:
        return len(np.fromstring(text, np.float64, sep=" ")) == count if text else not count
    except ValueError:
        return False


def _within(tree: Fields, name: bytes, count: int, least: int, end: int) -> Integers:
    """Return the ``count`` whole numbers of a field, each of them ``least`` or more and less than ``end``."""
    text = tree.get(name, b"")
    _check_count({name: text}, name, count)
    try:
        found = np.fromstring(text, np.int64, sep=" ") if text else np.zeros(0, np.int64)
    except ValueError:  # a fraction, say
        found = np.zeros(0, np.int64)
    if len(found) != count:
        raise NotReadable(f"its {_shown(name)} holds what is no whole number")
    if count and not (least <= found.min() and found.max() < end):
        raise NotReadable(f"its {_shown(name)} leads out of the tree")
    return found


def _number(fields: Fields, name: bytes, least: int) -> int:
    text = fields.get(name, b"")
    if not text.isdigit() or len(text) > 9 or int(text) < least:
        raise NotReadable(f"its {_shown(name)} is {_shown(text) or 'missing'}")
    return int(text)


def _shown(text: bytes) -> str:
    return text[:40].decode("ascii", "replace")
