"""What makes a function another one, and what does not."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.dataset.dataset import Dataset
from headrace.errors import PlanChanged
from headrace.plan.fingerprint import Hasher, fingerprint
from headrace.plan.functions import Function
from headrace.plan.identity import code_of, difference, shape_of
from headrace.plan.steps.functions import MapBatches
from headrace.sources.range import RangeSource


def digest(value: Any) -> str:
    hasher = Hasher()
    hasher.add(value)
    return hasher.digest()


def of_script(text: str, path: str = "/home/me/script.py", name: str = "f") -> str:
    """The digest of a function of a script."""
    space: dict[str, Any] = {"__name__": "__main__", "__file__": path}
    exec(compile(textwrap.dedent(text), path, "exec"), space)
    return fingerprint(Function(space[name]))


BASE = """
    import math
    import numpy as np

    SCALE = 2.5
    LEVELS = {"a": 1, "b": 2}

    def helper(x, power=2):
        return x ** power

    class Model:
        threshold = 0.5

        def __init__(self, bias=1):
            self.bias = bias

        def __call__(self, batch):
            return {"y": helper(batch["x"]) > self.threshold + self.bias}

    def make(offset):
        def inner(batch):
            return {"y": batch["x"] + offset}
        return inner

    closed = make(3)

    def f(batch, k=1, *, flag=True):
        kinds = {"red", "green"}
        more = {"one", "two", "three", "four", "five"}
        if batch["kind"] in {"x", "y", "z"}:
            return None
        total = sum(i for i in range(10) if i % 3)
        return {"y": helper(batch["x"]) * SCALE + LEVELS["a"] + math.pi + total + k, "k": len(kinds | more)}
"""

SAME = {
    "a comment": ("    SCALE = 2.5", "    # a comment\n    SCALE = 2.5  # another"),
    "lines shifted": ("    import math", "\n\n\n    import math"),
    "a docstring": ("        kinds =", '        """What it does."""\n        kinds ='),
    "a helper's docstring": ("        return x ** power", '        """Power."""\n        return x ** power'),
    "layout": ('batch["x"]) * SCALE', 'batch["x"])   *   SCALE'),
    "a small set in another order": ('{"red", "green"}', '{"green", "red"}'),
    "a large set in another order": (
        '{"one", "two", "three", "four", "five"}',
        '{"five", "two", "four", "one", "three"}',
    ),
    "a set that is searched in another order": ('in {"x", "y", "z"}', 'in {"z", "y", "x"}'),
    "a global that is not used": ("    SCALE = 2.5", "    SCALE = 2.5\n    OTHER = 3"),
    "a function that is not used": ("    def helper", "    def unused():\n        pass\n\n    def helper"),
}

CHANGED = {
    "a constant": ("range(10)", "range(11)"),
    "a constant of another type": ("range(10)", "range(10.0)"),
    "a default argument": ("k=1", "k=2"),
    "a keyword default": ("flag=True", "flag=False"),
    "a global": ("SCALE = 2.5", "SCALE = 2.6"),
    "a dict in another order": ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
    "a dict's value": ('"a": 1', '"a": 7'),
    "a helper": ("x ** power", "x * power"),
    "a helper's default": ("power=2", "power=3"),
    "an operator": (" * SCALE", " / SCALE"),
    "a comparison": ("if i % 3", "if i % 3 == 0"),
    "an attribute's name": ("math.pi", "math.e"),
    "a small set's member": ('{"red", "green"}', '{"red", "blue"}'),
    "a large set's member": ('"five"}', '"six"}'),
    "an import of something else by the same name": ("import math", "import cmath as math"),
}


@pytest.mark.parametrize("edit", SAME)
def test_unchanged_by(edit: str) -> None:
    old, new = SAME[edit]
    assert old in BASE
    assert of_script(BASE.replace(old, new)) == of_script(BASE)


@pytest.mark.parametrize("edit", CHANGED)
def test_changed_by(edit: str) -> None:
    old, new = CHANGED[edit]
    assert old in BASE
    assert of_script(BASE.replace(old, new)) != of_script(BASE)


def test_another_folder_changes_nothing() -> None:
    assert of_script(BASE, "/elsewhere/main.py") == of_script(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("threshold = 0.5", "threshold = 0.6"),
        ("bias=1", "bias=2"),
        ("self.bias = bias", "self.bias = bias + 1"),
        ("x ** power", "x * power"),
        ("> self.threshold", "< self.threshold"),
    ],
)
def test_a_class_is_changed_by(old: str, new: str) -> None:
    assert old in BASE
    assert of_script(BASE.replace(old, new), name="Model") != of_script(BASE, name="Model")


# ---------------------------------------------------------------- imported modules


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write modules, import the first, and return its ``f``'s digest; each call starts afresh."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    clock = iter(range(10**9, 2 * 10**9))

    def write(main: str = "prj_main", /, **modules: str) -> str:
        for name in set(sys.modules) - known:
            if name.startswith("prj"):
                del sys.modules[name]
        for name, text in modules.items():
            path = tmp_path / (name.replace("__", "/", 1) + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(text))
            os.utime(path, (next(clock),) * 2)
        importlib.invalidate_caches()
        if main == "__main__":
            return of_script("import prj_main\ndef f(b):\n    return prj_main.f(b)")
        return fingerprint(Function(importlib.import_module(main).f))

    yield write
    for name in set(sys.modules) - known:
        if name.startswith("prj"):
            del sys.modules[name]


CHAIN = {
    "prj_main": "from prj_mid import g\nLIMIT = 4\ndef f(b):\n    return g(b)\n",
    "prj_mid": "from prj_low import FACTOR\ndef g(b):\n    return b * FACTOR\n",
    "prj_low": "FACTOR = 3\n",
}


@pytest.mark.parametrize("main", ["prj_main", "__main__"])
@pytest.mark.parametrize(
    ("module", "old", "new"),
    [("prj_main", "g(b)", "g(b) + 1"), ("prj_mid", "b * FACTOR", "b / FACTOR"), ("prj_low", "3", "4")],
)
def test_an_edited_module_counts(
    project: Callable[..., str], main: str, module: str, old: str, new: str
) -> None:
    before = project(main, **CHAIN)
    assert project(main, **CHAIN) == before
    assert project(main, **{**CHAIN, module: CHAIN[module].replace(old, new)}) != before
    assert project(main, **{**CHAIN, module: "# a comment\n" + CHAIN[module]}) == before
    assert project(main, **{**CHAIN, module: '"""A docstring."""\n' + CHAIN[module]}) == before


@pytest.mark.parametrize(
    "line",
    [
        "import prj_low",
        "from prj_low import FACTOR",
        "from prj_low import *",
        "import prj_low as low",
        "def later():\n    import prj_low",
        "try:\n    import prj_low\nexcept ImportError:\n    pass",
    ],
)
def test_however_a_module_is_imported(project: Callable[..., str], line: str) -> None:
    texts = {"prj_main": f"{line}\ndef f(b):\n    return b\n", "prj_low": "FACTOR = 3\n"}
    before = project(**texts)
    assert project(**{**texts, "prj_low": "FACTOR = 4\n"}) != before


@pytest.mark.parametrize("line", ["from . import low", "from .low import FACTOR", "import prj.low"])
def test_modules_of_a_package(project: Callable[..., str], line: str) -> None:
    texts = {
        "prj____init__": "",
        "prj__main": f"{line}\ndef f(b):\n    return b\n",
        "prj__low": "FACTOR = 3\n",
    }
    before = project("prj.main", **texts)
    assert project("prj.main", **{**texts, "prj__low": "FACTOR = 4\n"}) != before


def test_an_import_inside_a_function_of_the_script(project: Callable[..., str]) -> None:
    script = "def f(b):\n    from prj_low import FACTOR\n    return b * FACTOR"
    project("prj_low", prj_low="FACTOR = 3\ndef f(b): pass\n")
    del sys.modules["prj_low"]
    before = of_script(script)
    assert "prj_low" not in sys.modules  # looking imports nothing
    project("prj_low", prj_low="FACTOR = 4\ndef f(b): pass\n")
    assert of_script(script) != before


def test_modules_that_import_each_other(project: Callable[..., str]) -> None:
    texts = {
        "prj_main": "import prj_b\ndef f(b):\n    return prj_b.g(b)\n",
        "prj_b": "import prj_main\ndef g(b): pass\n",
    }
    assert project(**texts) == project(**texts)


def test_what_a_module_holds_counts_wherever_it_had_it_from(
    project: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "prj_main": "import prj_low\ndef f(b):\n    return prj_low.g(b) + prj_low.SHIFT\n",
        "prj_low": "import os\nSHIFT = os.environ['SHIFT']\nFACTOR = os.environ['FACTOR']\n"
        "def g(b):\n    return b * FACTOR\n",
    }
    seen = []
    for shift, factor in (("1", "1"), ("1", "1"), ("2", "1"), ("1", "2")):
        monkeypatch.setenv("SHIFT", shift)
        monkeypatch.setenv("FACTOR", factor)
        seen.append((project(**texts), project("__main__", **texts)))
    assert seen[0] == seen[1]
    for column in zip(*seen[1:], strict=True):
        assert len(set(column)) == 3


def test_a_module_in_an_archive_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for value in (3, 3, 4):
        path = tmp_path / f"{len(seen)}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("prj_zipped.py", f"FACTOR = {value}\n")
        monkeypatch.syspath_prepend(str(path))
        importlib.invalidate_caches()
        seen.append(of_script("def f(b):\n    import prj_zipped\n    return b"))
    assert seen[0] == seen[1] != seen[2]
    assert not seen[0].startswith("unknown")


def test_a_module_that_only_a_finder_of_its_own_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pip install --editable`` installs such finders."""

    class Finder:
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            file = tmp_path / "prj_editable.py"
            return importlib.util.spec_from_file_location(name, file) if name == "prj_editable" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    seen = []
    for value in (3, 4):
        (tmp_path / "prj_editable.py").write_text(f"FACTOR = {value * 10**value}\n")
        seen.append(of_script("def f(b):\n    import prj_editable\n    return b"))
    assert seen[0] != seen[1]


# ---------------------------------------------------------------- other processes

SCRIPT = """
import sys
from headrace.plan.fingerprint import fingerprint
from headrace.plan.functions import Function
import shared_consts as m

NAMES = {"alpha", "beta", "gamma", "delta"}
TABLE = {name: len(name) for name in sorted(NAMES)}

class Kind:
    names = frozenset(NAMES)
    def __call__(self, batch):
        return m.first(batch), m.second(batch), {"x", "y"}, TABLE

print(fingerprint(Function(Kind)), fingerprint(Function(m.first)), fingerprint(Function(lambda b: m.second(b))))
"""
SHARED = """
def first(b):
    return b in (1, 2, 3), {"p", "q", "r"}, "text that is not a name", (("x", 1), ("y", 2))

def second(b):
    return b in (1, 2, 3), {"p", "q", "r"}, "text that is not a name", (("x", 1), ("y", 2))
"""


def test_the_same_in_every_process(tmp_path: Path) -> None:
    """Whatever the hash seed, the folder, and whether modules come from source or from a cache."""
    seen = set()
    for number, seed in enumerate(["0", "1", "77"]):
        folder = tmp_path / str(number % 2)
        folder.mkdir(exist_ok=True)
        (folder / "script.py").write_text("\n" * number + SCRIPT)
        if not (folder / "shared_consts.py").exists():
            (folder / "shared_consts.py").write_text(SHARED)
        done = subprocess.run(
            [sys.executable, str(folder / "script.py")],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(done.stdout)
    assert len(seen) == 1


# ---------------------------------------------------------------- values


class Callable_:
    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def __call__(self, batch: Any) -> Any:
        return batch

    def method(self, batch: Any) -> Any:
        return batch


def model(batch: Any, factor: int) -> Any:
    return batch * factor


def test_a_closure_that_a_library_made() -> None:
    def made(path: str) -> Any:
        return importlib.import_module("shutil").ignore_patterns(path)

    assert digest(made("*.a")) == digest(made("*.a"))
    assert digest(made("*.a")) != digest(made("*.b"))


def _linear(seed: int) -> Any:
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 2)


def _bfloat(seed: int) -> Any:
    return _linear(seed).bfloat16()


def _scalar(seed: int) -> Any:
    return pytest.importorskip("torch").tensor(float(seed))


def _forest(seed: int) -> Any:
    ensemble = pytest.importorskip("sklearn.ensemble")
    x = np.arange(40.0).reshape(20, 2)
    return ensemble.RandomForestClassifier(3, random_state=seed).fit(x, np.arange(20) % 3)


def _pipeline(seed: int) -> Any:
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.arange(40.0).reshape(20, 2) * seed
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(x, np.arange(20) % 3)


def _frame(seed: int) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": [1, seed], "b": ["x", str(seed)]}, index=["p", "q"])


@pytest.mark.parametrize("make", [_linear, _bfloat, _scalar, _forest, _pipeline, _frame])
def test_models_of_libraries_by_what_they_learnt(make: Callable[[int], Any]) -> None:
    one = make(1)
    before = digest(one)
    pickle.dumps(one)
    assert digest(one) == before == digest(make(1)) == digest(pickle.loads(pickle.dumps(one)))
    assert digest(make(2)) != before


def test_pickling_a_class_changes_nothing() -> None:
    class Fresh:
        weight = 1

    before = digest(Fresh)
    copy.copy(Fresh())  # writes __slotnames__ into the class
    assert Fresh.__annotations__ == {}  # and this __annotations__
    assert digest(Fresh) == before


# ---------------------------------------------------------------- plans


def plan(change: Callable[[Dataset], Dataset] = lambda dataset: dataset, **options: Any) -> Any:
    return change(Dataset.from_source(RangeSource(10)))._plan


def with_model(**options: Any) -> Any:
    return plan(lambda dataset: dataset.map_batches(model, **{"fn_args": [2], **options}))


def test_arguments_count() -> None:
    assert code_of(with_model().steps) == code_of(with_model().steps)
    for other in ({"fn_args": [3]}, {"fn_args": [], "fn_kwargs": {"factor": 2}}):
        assert code_of(with_model(**other).steps) != code_of(with_model().steps)


def test_constructor_arguments_count() -> None:
    def made(*args: Any) -> Any:
        return code_of(plan(lambda d: d.map_batches(Callable_, fn_constructor_args=args)).steps)

    assert made([1]) == made([1]) != made([2])


def test_how_it_is_run_does_not_count() -> None:
    for options in (
        {"batch_size": 7},
        {"concurrency": 3},
        {"num_cpus": 2},
        {"memory": 10},
        {"batch_size_bytes": 80},
    ):
        other = with_model(**options)
        assert code_of(other.steps) == code_of(with_model().steps)
        assert shape_of(other) == shape_of(with_model())


def test_a_version_stands_for_the_code() -> None:
    def other(batch: Any, factor: int) -> Any:
        return batch

    one, two = Function(model, (2,), version="1"), Function(other, (2,), version="1")
    assert fingerprint(one) == fingerprint(two)
    assert fingerprint(one) != fingerprint(Function(model, (2,), version="2"))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: d.limit(3), "its steps were none"),
        (lambda d: d.select_columns(["id"]), "its steps were none"),
        (lambda d: d.filter(expr=pc.field("id") > 3), "its steps were none"),
    ],
)
def test_shape(change: Callable[[Dataset], Dataset], where: str) -> None:
    lines = difference(shape_of(plan()), shape_of(plan(change)))
    assert len(lines) == 1 and lines[0].startswith(where)
    assert shape_of(plan(change)) == shape_of(plan(change))


class Above:
    """A metric of one's own, which does not describe itself."""

    columns = ("id",)

    def __init__(self, least: int) -> None:
        self.least = least

    def empty(self) -> Above:
        return Above(self.least)

    update = merge = result = to_bytes = from_bytes = empty  # nobody counts here


@pytest.mark.parametrize("groups", [0, 1, 2])
def test_settings_of_ones_own_metric_count_also_in_groups(groups: int) -> None:
    def made(least: int) -> Any:
        metric: Any = Above(least)
        for _ in range(groups):
            metric = hr.By("id", metric)
        return shape_of(plan(lambda d: d.accumulate(above=metric)))

    assert made(1) == made(1) != made(2)


def test_a_long_expression_counts_to_its_last_value() -> None:
    def chosen(middle: int) -> Any:
        values = [*range(50), middle, *range(50)]
        return shape_of(plan(lambda d: d.filter(expr=pc.field("id").isin(values))))

    assert chosen(1) == chosen(1) != chosen(2)


def test_difference_names_each_place() -> None:
    old = {
        "source": {"paths": ["a"], "columns": None},
        "steps": [{"verb": "map"}, {"verb": "limit", "rows": 3}],
    }
    new = {
        "source": {"paths": ["b"], "columns": None},
        "steps": [{"verb": "map"}, {"verb": "limit", "rows": 4}],
    }
    assert difference(old, new) == ["the input: paths was a, is b", "step 2, limit: rows= was 3, is 4"]
    assert difference(old, old) == []


def test_a_step_is_named_by_place_and_function() -> None:
    assert list(code_of(with_model().steps)) == [
        "0: the code of map_batches(model)",
        "0: argument 1 of map_batches(model)",
    ]
    assert isinstance(with_model().steps[0], MapBatches)


def test_a_changed_plan_is_told_in_the_words_of_its_verbs(tmp_path: Path) -> None:
    data = hr.range(10)

    def same(batch: Any) -> Any:
        return batch["id"]

    def other(batch: Any) -> Any:
        return {"id": batch["id"]}

    data.predict(same, inputs="id", output="a").write_parquet(tmp_path / "out")
    changes: list[tuple[hr.Dataset, str]] = [
        (data.predict(same, inputs="id", output="b"), "step 1, predict: output= was 'a', is 'b'"),
        (data.predict(same, output="a"), "step 1, predict: inputs= was id, is not given"),
        (
            data.predict(same, inputs="id", output="a", keep="none"),
            "step 1, predict: keep= was 'all', is nothing",
        ),
        (data.map_batches(other), "its steps were predict; they are map_batches"),
        (
            data.filter(expr="id > 3").predict(same, inputs="id", output="a"),
            "its steps were predict; they are filter → predict",
        ),
        (hr.range(11).predict(same, inputs="id", output="a"), "the input: "),
    ]
    for changed, words in changes:
        with pytest.raises(PlanChanged) as caught:
            changed.write_parquet(tmp_path / "out")
        said = str(caught.value)
        assert words in said, said
        assert "steps[" not in said and "models[" not in said and "None" not in said and "{" not in said, said
