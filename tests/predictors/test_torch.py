"""PyTorch's models: objects and files of every kind, dtypes, compilation, and what is refused."""

from __future__ import annotations

import copy
import importlib.util
import io
import os
import pickle
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from crossed import crossed
from headrace.errors import (
    ArgumentError,
    BadInput,
    BadReturn,
    MissingLibrary,
    ModelChanged,
    ModelError,
    ModelUnreadable,
    UnknownArgument,
    UntrustedPickle,
)
from headrace.plan.fingerprint import fingerprint
from headrace.predictors.torch.predictor import TorchPredictor, kind_of
from headrace.testing import SubmittingPredictorContract

ROWS = np.random.default_rng(0).normal(size=(12, 4))
WIDE = [
    ({"x": np.zeros((3, 5))}, "takes 4 features"),
    ({"x": np.array(["a"], object)}, "should hold numbers"),
]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(torch.relu(self.first(x))))


class Two(nn.Module):
    """Takes two inputs by name, gives two results by name."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.rest = nn.Linear(1, 4)

    def forward(self, ids: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        mixed = self.words(ids) + self.rest(weight[:, None])
        return {"mixed": mixed, "best": mixed.argmax(1)}


class Tied(nn.Module):
    """Its two layers are one."""

    def __init__(self) -> None:
        super().__init__()
        self.there = nn.Linear(4, 4, bias=False)
        self.back = nn.Linear(4, 4, bias=False)
        self.back.weight = self.there.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.there(x))


@cache
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@cache
def two() -> Two:
    torch.manual_seed(0)
    return Two()


@cache
def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(net())


@cache
def exported() -> Any:
    rows = {0: torch.export.Dim("rows")}
    fresh = Net().eval()
    fresh.load_state_dict(net().state_dict())
    return torch.export.export(fresh, (torch.zeros(4, 4),), dynamic_shapes={"x": rows})


def save_script(file: Path, script: Any = None) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(scripted() if script is None else script, file)
    return file


def save_export(file: Path, program: Any = None) -> Path:
    torch.export.save(exported() if program is None else program, file)
    return file


def save_weights(file: Path) -> Path:
    save_file(net().state_dict(), file)
    return file


def save_pickle(file: Path) -> Path:
    torch.save(net(), file)
    return file


def save_state(file: Path) -> Path:
    torch.save(net().state_dict(), file)
    return file


def direct(module: Any = None, rows: Any = ROWS, dtype: torch.dtype = torch.float32) -> Any:
    """What torch itself gives, dropout off."""
    module = net() if module is None else module
    flag = module.training
    with torch.inference_mode():
        made = module.eval()(torch.tensor(rows, dtype=dtype))
    module.train(flag)
    return made.float().numpy() if dtype is torch.bfloat16 else made.numpy()


class _OfNet(SubmittingPredictorContract):
    batching_tolerance = 1e-6

    def batch(self) -> Any:
        return {"x": ROWS}

    def expected(self) -> Any:
        return direct()

    def bad_batches(self) -> Any:
        return WIDE


class TestModule(_OfNet):
    def make(self) -> Any:
        return TorchPredictor(net())


class TestColumnsSideBySide(_OfNet):
    def make(self) -> Any:
        return TorchPredictor(net())

    def batch(self) -> Any:
        return {"a": ROWS[:, 0], "b": ROWS[:, 1:3].astype(np.float32), "c": ROWS[:, 3]}

    def bad_batches(self) -> Any:
        yield {"a": np.zeros(3), "b": np.zeros(3)}, "a: float64 (3,), b: float64 (3,)"
        yield {"a": np.zeros(3), "b": np.array(["x", "y", "z"], object)}, "'b' is text"


class TestInputsByNameAndOutputsByName(SubmittingPredictorContract):
    batching_tolerance = 1e-6

    def make(self) -> Any:
        return TorchPredictor(two())

    def batch(self) -> Any:
        return {"weight": ROWS[:, 0], "ids": np.arange(12) % 10}

    def expected(self) -> Any:
        with torch.inference_mode():
            made = two()(torch.arange(12) % 10, torch.tensor(ROWS[:, 0], dtype=torch.float32))
        return {name: value.numpy() for name, value in made.items()}

    def bad_batches(self) -> Any:
        yield {"ids": np.arange(3)}, "forward takes ids, weight"
        yield {"ids": np.arange(3) + 10, "weight": np.zeros(3)}, "integers below 10"


class TestExportedFile(_OfNet):
    def make(self) -> Any:
        return TorchPredictor(save_export(self.folder / "net.pt2"))

    def bad_batches(self) -> Any:
        yield {"x": np.zeros((3, 5))}, "it was exported for x: float32 ("


class TestScriptFile(_OfNet):
    def make(self) -> Any:
        return TorchPredictor(save_script(self.folder / "net.pt"))


class TestSafetensors(_OfNet):
    def make(self) -> Any:
        return TorchPredictor(save_weights(self.folder / "net.safetensors"), architecture=Net)


class TestSafetensorsOfAModuleThatIsThere(_OfNet):
    def make(self) -> Any:
        return TorchPredictor(save_weights(self.folder / "net.safetensors"), architecture=net())


class TestPickledModule(_OfNet):
    def make(self) -> Any:
        return TorchPredictor(save_pickle(self.folder / "net.pth"), trust_pickle=True)


class TestPickledWeights(_OfNet):
    def make(self) -> Any:
        file = save_state(self.folder / "net.bin")
        return TorchPredictor(file, architecture=lambda: Net(), trust_pickle=True)


class TestBfloat16(_OfNet):
    batching_tolerance = 0.05

    def make(self) -> Any:
        return TorchPredictor(net(), dtype=torch.bfloat16)

    def expected(self) -> Any:
        fresh = Net()
        fresh.load_state_dict(net().state_dict())
        return direct(fresh.bfloat16(), dtype=torch.bfloat16)


class TestExportedAsFloat64(TestExportedFile):
    tolerance = 1e-6

    def make(self) -> Any:
        return TorchPredictor(save_export(self.folder / "net.pt2"), dtype="float64")

    def test_has_the_dtype(self, predictor: Any) -> None:
        assert predictor.predict(self.batch()).dtype == np.float64


class TestAutocast(_OfNet):
    batching_tolerance = 0.05

    def make(self) -> Any:
        return TorchPredictor(net(), autocast="bfloat16")

    def expected(self) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            made = direct_tensor()
        assert made.dtype is torch.bfloat16
        return made.float().numpy()


def direct_tensor() -> torch.Tensor:
    flag = net().training
    with torch.inference_mode():
        made = net().eval()(torch.tensor(ROWS, dtype=torch.float32))
    net().train(flag)
    return made


# ---------------------------------------------------------------- kinds of files


@pytest.mark.parametrize(
    ("save", "kind"),
    [
        (save_export, "export"),
        (save_script, "script"),
        (save_weights, "safetensors"),
        (save_pickle, "pickle"),
        (save_state, "pickle"),
    ],
)
def test_the_content_tells_the_kind(tmp_path: Path, save: Callable[[Path], Path], kind: str) -> None:
    for name in ("model.pt", "model.pt2", "model.safetensors", "model.bin", "model"):
        assert kind_of(save(tmp_path / name)) == kind


def test_old_pickles_are_known_too(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "old", _use_new_zipfile_serialization=False)
    assert kind_of(tmp_path / "old") == "pickle"
    predictor = TorchPredictor(tmp_path / "old", architecture=Net, trust_pickle=True)
    assert np.array_equal(once(predictor, {"x": ROWS}), direct())


def test_other_files_are_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"some": "text"}')
    (tmp_path / "b.pkl").write_bytes(pickle.dumps({}))
    (tmp_path / "c").write_bytes(b"")
    (tmp_path / "d.bin").write_bytes(b"tree")
    shutil.make_archive(str(tmp_path / "e"), "zip", tmp_path, "a.json")
    for name in ("a.json", "b.pkl", "c", "d.bin", "e.zip"):
        assert kind_of(tmp_path / name) is None
        with pytest.raises(ModelUnreadable, match="not a file of PyTorch"):
            TorchPredictor(tmp_path / name)


def test_telling_the_kind_imports_no_torch(tmp_path: Path) -> None:
    files = [str(save_export(tmp_path / "a")), str(save_weights(tmp_path / "b.safetensors"))]
    code = f"""
import sys
from headrace.predictors.torch.predictor import TorchPredictor, kind_of
print([kind_of(file) for file in {files}])
TorchPredictor({files[0]!r}, dtype="float16", device="cpu", compile={{"mode": "default"}})
TorchPredictor({files[1]!r}, architecture=list)
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["['export', 'safetensors']", "False"], done.stderr


# ---------------------------------------------------------------- what is refused


def test_pickles_need_trust(tmp_path: Path) -> None:
    for file in (save_pickle(tmp_path / "net.pt"), save_state(tmp_path / "state.pth")):
        with pytest.raises(UntrustedPickle, match=r"safetensors.*torch\.export"):
            TorchPredictor(file)


class Opens:
    """Opens a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return _touched, (str(self.file),)


def _touched(file: str) -> Any:
    Path(file).touch()
    return ((), {})


def test_a_pickle_inside_an_exported_program_is_not_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(save_export(tmp_path / "good.pt2")) as good:
        members = {name: good.read(name) for name in good.namelist()}
    buffer = io.BytesIO()
    torch.save(Opens(tmp_path / "was read"), buffer)
    inputs = next(name for name in members if name.endswith("sample_inputs/model.pt"))
    opaque = inputs.replace("sample_inputs/model.pt", "constants/opaque_obj_0")
    for changed in ({inputs: buffer.getvalue()}, {opaque: b"any"}):
        with zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
            for name, data in {**members, **changed}.items():
                bad.writestr(name, data)
        with pytest.raises(UntrustedPickle, match="example inputs"):
            TorchPredictor(tmp_path / "bad.pt2").load()
        assert not (tmp_path / "was read").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_weights_need_an_architecture(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="architecture=Net"):
        TorchPredictor(save_weights(tmp_path / "net.safetensors"))
    with pytest.raises(ModelUnreadable, match="architecture=Net"):
        TorchPredictor(save_state(tmp_path / "net.pt"), trust_pickle=True).load()
    with pytest.raises(ArgumentError, match="leave out architecture"):
        TorchPredictor(save_export(tmp_path / "net.pt2"), architecture=Net)


def test_an_architecture_is_made_without_arguments(tmp_path: Path) -> None:
    file = save_weights(tmp_path / "net.safetensors")
    with pytest.raises(ArgumentError, match="in_features"):
        TorchPredictor(file, architecture=nn.Linear)
    with pytest.raises(ArgumentError, match="makes one"):
        TorchPredictor(file, architecture="Net")
    with pytest.raises(ModelUnreadable, match="gave a list"):
        TorchPredictor(file, architecture=list).load()


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    predictor = TorchPredictor(save_weights(tmp_path / "net.safetensors"), architecture=Two)
    with pytest.raises(ModelUnreadable, match=r"do not fit the architecture Two.*Missing key.*words\.weight"):
        predictor.load()
    narrow = TorchPredictor(tmp_path / "net.safetensors", architecture=lambda: nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ModelUnreadable, match="Unexpected key"):
        narrow.load()


@pytest.mark.parametrize(
    ("save", "name"),
    [(save_export, "a.pt2"), (save_script, "b.pt"), (save_weights, "c.safetensors"), (save_pickle, "d.pth")],
)
@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_damaged_files_are_unreadable(
    tmp_path: Path, save: Callable[[Path], Path], name: str, damage: str
) -> None:
    data = save(tmp_path / name).read_bytes()
    middle = len(data) // 2
    ruined = data[:middle] if damage == "cut" else b"\x00" * middle + data[middle:]
    (tmp_path / name).write_bytes(ruined)
    architecture = Net if name.endswith("safetensors") else None
    with pytest.raises(ModelUnreadable, match=name):
        TorchPredictor(tmp_path / name, architecture=architecture, trust_pickle=True).load()


def test_what_is_not_there_or_not_pinned(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable, match="no model at"):
        TorchPredictor(tmp_path / "net.pt2")
    with pytest.raises(ModelUnreadable, match="not a file"):
        TorchPredictor(tmp_path)
    with pytest.raises(ModelChanged, match="SHA-256"):
        TorchPredictor(save_export(tmp_path / "net.pt2"), sha256="0" * 64)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    for missing in ("torch", "safetensors"):
        with monkeypatch.context() as patched:
            patched.setattr(
                importlib.util, "find_spec", lambda name, m=missing: None if name == m else find(name)
            )
            with pytest.raises(MissingLibrary, match=rf'{missing}.*pip install "\.\[torch\]"'):
                TorchPredictor(save_weights(tmp_path / "net.safetensors"), architecture=Net)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"device": "gpu"}, ArgumentError, "'cuda'"),
        ({"device": 0}, ArgumentError, "not 0"),
        ({"dtype": "half"}, ArgumentError, "float16"),
        ({"dtype": "float61"}, ArgumentError, "Did you mean 'float64'"),
        ({"dtype": torch.int8}, ArgumentError, "torch.int8"),
        ({"autocast": "float32"}, ArgumentError, "bfloat16"),
        ({"autocast": True}, ArgumentError, "not True"),
        ({"compile": "fast"}, ArgumentError, "torch.compile"),
        ({"compile": {"backed": "inductor"}}, UnknownArgument, "Did you mean 'backend'"),
        ({"sha256": "0" * 64}, ArgumentError, "go with a path"),
        ({"architecture": Net}, ArgumentError, "go with a path"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TorchPredictor(net(), **options)


def test_only_models_are_taken(tmp_path: Path) -> None:
    for thing in (print, {"a": 1}, Net):
        with pytest.raises(ArgumentError, match="a path, not"):
            TorchPredictor(thing)
    for program in (scripted(), exported()):
        with pytest.raises(ArgumentError, match=r"is given by its file: .*torch\.jit\.save"):
            TorchPredictor(program)
    with pytest.raises(ArgumentError, match="TorchScript"):
        TorchPredictor(save_script(tmp_path / "net.pt"), compile=True)


def test_a_device_that_is_not_there_is_an_error() -> None:
    if not torch.backends.mps.is_available():
        with pytest.raises(ModelError, match="device='mps'"):
            TorchPredictor(net(), device="mps").load()
    with pytest.raises(ModelError, match="device='cuda:63'"):
        TorchPredictor(net(), device="cuda:63").load()


# ---------------------------------------------------------------- inputs and results


def once(predictor: Any, batch: Any) -> Any:
    predictor.load()
    try:
        return predictor.predict(batch)
    finally:
        predictor.close()


def sealed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_a_layer_that_writes_to_its_input_does_not_reach_the_column(dtype: Any) -> None:
    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    column = sealed(np.arange(-4, 4).astype(dtype))
    before = column.copy()
    for module in (InPlace(), nn.Sequential(nn.ReLU(inplace=True))):
        once(TorchPredictor(module), {"x": column})
        assert np.array_equal(column, before)


def test_integers_stay_integers_and_floats_become_the_modules() -> None:
    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.dtype)
            return x

    seen: list[torch.dtype] = []
    predictor = TorchPredictor(Seen())
    predictor.load()
    for dtype in ("float64", "float16", ">f4", "int32", "uint8", "uint16", "bool", ">i8"):
        predictor.predict({"x": np.ones(2, dtype)})
    half, whole = torch.float16, torch.int64
    assert seen == [half, half, half, torch.int32, torch.uint8, whole, torch.bool, whole]


def test_wrong_dtypes_and_widths_say_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^the module works in float32, .* x: int64 \(3, 4\); torch's error"):
        once(TorchPredictor(net()), {"x": np.zeros((3, 4), int)})
    with pytest.raises(BadInput, match=r"Conv2d, takes 3 channels"):
        once(TorchPredictor(nn.Sequential(nn.Conv2d(3, 1, 1))), {"x": np.zeros((2, 4, 5, 5))})
    with pytest.raises(
        BadInput, match=r"^its first layer, Linear, takes 4 features, and was given 3\."
    ) as caught:
        once(TorchPredictor(save_script(tmp_path / "net.pt")), {"x": np.zeros((2, 3))})
    assert "float32" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "Traceback" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_columns_are_chosen_by_the_names_of_forward(tmp_path: Path) -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor, scale: torch.Tensor, bias: Any = None) -> torch.Tensor:
            return x * scale if bias is None else x * scale + bias

    text = np.array(["a", "b"], object)
    batch = {"title": text, "scale": np.array([2.0, 3.0]), "x": np.array([1.0, 1.0]), "bias": np.ones(2)}
    assert once(TorchPredictor(Named()), batch).tolist() == [3, 4]
    batch = {"weight": ROWS[:, 0], "title": np.array(["a"] * 12, object), "ids": np.arange(12) % 10}
    made = once(TorchPredictor(save_script(tmp_path / "two.pt", torch.jit.script(two()))), batch)
    assert np.array_equal(made["mixed"], TestInputsByNameAndOutputsByName().expected()["mixed"])
    with pytest.raises(
        BadInput, match=r"^forward takes x, scale, bias\. It was given x: .*missing 1 required"
    ):
        once(TorchPredictor(Named()), {"x": np.zeros(2), "bias": np.zeros(2)})


def test_a_column_of_the_only_name_is_a_feature_or_the_whole_input() -> None:
    class Net4(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    net4 = Net4()
    whole = once(TorchPredictor(net4), {"x": ROWS})
    assert np.array_equal(once(TorchPredictor(net4), {"id": np.arange(len(ROWS)), "x": ROWS}), whole)
    features = {name: ROWS[:, at] for at, name in enumerate("xyzw")}
    assert np.array_equal(once(TorchPredictor(net4), features), whole)
    assert np.array_equal(once(TorchPredictor(net4), {"x": ROWS[:, :3], "y": ROWS[:, 3]}), whole)
    with pytest.raises(BadInput, match=r"takes 4 features, and was given 3\. .* Choose columns with inputs="):
        once(TorchPredictor(net4), {"x": ROWS[:, :2], "y": ROWS[:, 3]})


@pytest.mark.parametrize(
    "value, words",
    [
        ("a", "text .*token ids"),
        (b"\xff\xd8", "bytes .*decoded to arrays"),
        ([1, 2], "a list .*arrays of one shape"),
        (np.zeros(2), "an array .*differ in shape"),
    ],
)
def test_what_is_no_number_says_what_to_make_of_it(value: Any, words: str) -> None:
    column = np.empty(2, object)
    column[1] = value
    with pytest.raises(BadInput, match=f"'x' should hold numbers, but it is {words}"):
        once(TorchPredictor(net()), {"x": column})


def test_embeddings_say_what_they_take() -> None:
    model = nn.Sequential(nn.Embedding(3, 2))
    with pytest.raises(
        BadInput, match=r"^its first layer, Embedding, takes integers below 3, and was given 7\."
    ):
        once(TorchPredictor(model), {"x": np.array([0, 7])})
    with pytest.raises(BadInput, match=r"takes integers below 3, and was given float32\."):
        once(TorchPredictor(model), {"x": np.zeros(2)})


@pytest.mark.parametrize("rows", [1, 5, 30])
def test_a_program_for_a_fixed_number_of_rows_is_run_in_pieces(rows: int, tmp_path: Path) -> None:
    class Pair(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"sum": a + b, "twice": a * 2}

    module = Net().eval()
    program = torch.export.export(module, (torch.zeros(rows, 4),))
    predictor = TorchPredictor(save_export(tmp_path / "net.pt2", program))
    expected = once(TorchPredictor(module), {"x": ROWS})
    assert np.allclose(once(predictor, {"x": ROWS}), expected, atol=1e-6)
    assert once(predictor, {"x": ROWS[:0]}).shape == (0, *expected.shape[1:])
    pair = torch.export.export(Pair(), (torch.zeros(rows), torch.zeros(rows)))
    predictor = TorchPredictor(save_export(tmp_path / "pair.pt2", pair))
    made = once(predictor, {"b": np.arange(7.0), "id": np.arange(7), "a": np.arange(7.0)})
    assert made["sum"].tolist() == made["twice"].tolist() == list(range(0, 14, 2))


def test_a_fixed_program_that_gives_no_row_each_says_so(tmp_path: Path) -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean()

    file = save_export(tmp_path / "mean.pt2", torch.export.export(Mean(), (torch.zeros(4),)))
    with pytest.raises(BadReturn, match=r"gave \(\), which is not one result for each of 4 rows"):
        once(TorchPredictor(file), {"x": np.zeros(4)})


def test_a_program_of_fixed_and_differing_rows_says_so(tmp_path: Path) -> None:
    class Table(nn.Module):
        def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return x @ table

    program = torch.export.export(Table(), (torch.zeros(3, 4), torch.zeros(4, 2)))
    with pytest.raises(BadInput, match=r"^it was exported for x: float32 \(3, 4\), .*dynamic_shapes"):
        once(TorchPredictor(save_export(tmp_path / "table.pt2", program)), {"x": ROWS, "table": ROWS})


@pytest.mark.parametrize("error", [MemoryError("no"), torch.cuda.OutOfMemoryError("size"), KeyError("x")])
def test_errors_that_are_not_about_the_input_stay_what_they_are(error: Exception) -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    with pytest.raises(type(error)) as caught:
        once(TorchPredictor(Raises()), {"x": ROWS})
    assert caught.value is error


def test_what_a_module_may_return() -> None:
    class Returns(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return value(x)

    def made(of: Callable[[torch.Tensor], Any]) -> Any:
        nonlocal value
        value = of
        return once(TorchPredictor(Returns()), {"x": ROWS})

    value: Callable[[torch.Tensor], Any] = abs
    pair = namedtuple("pair", "low high")
    assert list(made(lambda x: pair(x, x + 1))) == ["low", "high"]
    assert made(lambda x: x.bfloat16()).dtype == np.float32
    assert made(lambda x: x.half()).dtype == np.float16
    assert np.array_equal(made(lambda x: x.numpy() * 2), ROWS.astype(np.float32) * 2)
    for wrong, words in [
        (lambda x: (x, x), "a tuple of Tensor, Tensor"),
        (lambda x: [x], "a list of Tensor"),
        (lambda x: {"a": x, "b": None}, r"a NoneType as \['b'\]"),
        (lambda x: None, "a NoneType"),
    ]:
        with pytest.raises(BadReturn, match=words):
            made(wrong)


# ---------------------------------------------------------------- the user's own module


def test_the_users_module_comes_back_as_it_was() -> None:
    module = Net()
    module.second.eval()
    flags = [part.training for part in module.modules()]
    weights = {name: (weight.data_ptr(), weight.dtype) for name, weight in module.named_parameters()}
    for options in ({}, {"dtype": "float16"}, {"autocast": "bfloat16"}):
        predictor = TorchPredictor(module, **options)
        once(predictor, {"x": ROWS})
        cloudpickle.dumps(predictor)
        assert [part.training for part in module.modules()] == flags
        assert weights == {name: (w.data_ptr(), w.dtype) for name, w in module.named_parameters()}
        assert all(weight.requires_grad for weight in module.parameters())


def test_threads_are_set_for_the_time_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", str(before + 1))
    predictor = TorchPredictor(net())
    predictor.load()
    assert torch.get_num_threads() == before + 1
    predictor.close()
    assert torch.get_num_threads() == before


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tied = Tied()
    save_model(tied, str(tmp_path / "tied.safetensors"))
    predictor = TorchPredictor(tmp_path / "tied.safetensors", architecture=Tied)
    assert np.array_equal(once(predictor, {"x": ROWS}), direct(tied))
    half = TorchPredictor(tied, dtype="float16")
    half.load()
    module = half._loaded.module  # type: ignore[union-attr]
    assert module.there.weight is module.back.weight
    half.close()


def test_weights_of_a_file_take_the_architectures_dtype(tmp_path: Path) -> None:
    state = {name: weight.half() for name, weight in net().state_dict().items()}
    save_file(state, tmp_path / "half.safetensors")
    made = once(TorchPredictor(tmp_path / "half.safetensors", architecture=Net), {"x": ROWS})
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, direct(), atol=1e-2)


def test_a_files_weights_are_mapped_not_copied(tmp_path: Path) -> None:
    save_file(nn.Linear(512, 512).state_dict(), tmp_path / "m.safetensors")
    torch.save(nn.Linear(512, 512).state_dict(), tmp_path / "m.pt")
    for name in ("m.safetensors", "m.pt"):
        options: dict[str, Any] = {} if name == "m.safetensors" else {"trust_pickle": True}
        predictor = TorchPredictor(tmp_path / name, architecture=lambda: nn.Linear(512, 512), **options)
        predictor.load()
        address = predictor._loaded.module.weight.data_ptr()  # type: ignore[union-attr]
        if sys.platform == "linux":
            assert name in mapped_at(address)
        predictor.close()


def mapped_at(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= address < stop:
            return line
    return ""


def test_identities_differ_where_results_do(tmp_path: Path) -> None:
    other = Net()
    file = save_weights(tmp_path / "net.safetensors")
    predictors = [
        TorchPredictor(net()),
        TorchPredictor(other),
        TorchPredictor(net(), dtype="float16"),
        TorchPredictor(net(), autocast="float16"),
        TorchPredictor(save_script(tmp_path / "net.pt")),
        TorchPredictor(save_export(tmp_path / "net.pt2")),
        TorchPredictor(file, architecture=Net),
        TorchPredictor(file, architecture=Tied),
    ]
    prints = [fingerprint(predictor.identity()) for predictor in predictors]
    assert len(set(prints)) == len(prints)
    assert fingerprint(TorchPredictor(net(), device="cpu").identity()) == prints[0]


# ---------------------------------------------------------------- compilation


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    yield
    torch._dynamo.reset()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_where_there_is_a_compiler(fresh_cache: None) -> None:
    predictor = TorchPredictor(nn.Softsign(), compile={"dynamic": True})
    if shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")) is None:
        with pytest.raises(ModelError, match="C\\+\\+ compiler"):
            predictor.load()
        return
    np.testing.assert_allclose(once(predictor, {"x": ROWS}), direct(nn.Softsign()), atol=1e-5)


def test_without_a_compiler_it_says_so_and_nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    module = Net()
    with pytest.raises(ModelError, match="'no-such-compiler' is not there"):
        TorchPredictor(module, compile=True).load()
    assert module.training


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_wrong_inputs_are_bad_inputs(fresh_cache: None) -> None:
    predictor = TorchPredictor(net(), compile={"backend": "eager"})
    predictor.load()
    with pytest.raises(BadInput, match="takes 4 features"):
        predictor.predict({"x": np.zeros((3, 5))})
    assert np.array_equal(predictor.predict({"x": ROWS}), direct())
    predictor.close()


def test_what_cannot_be_compiled_is_an_error_of_the_model(fresh_cache: None) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise OSError("no such instruction")

    with pytest.raises(ModelError, match="no such instruction"):
        once(TorchPredictor(net(), compile={"backend": broken}), {"x": ROWS})


def test_one_number_per_row_goes_into_a_layer_of_one_feature() -> None:
    net = nn.Sequential(nn.Linear(1, 2), nn.Tanh())
    predictor = TorchPredictor(net)
    predictor.load()
    for column in (np.array([1.0, 2.0]), np.array([1, 2])):
        expected = net(torch.tensor([[1.0], [2.0]])).detach().numpy()
        assert np.array_equal(predictor.predict({"x": column}), expected)
    predictor.close()


def test_copies_in_one_process_give_the_same(tmp_path: Path) -> None:
    files = save_export(tmp_path / "net.pt2"), save_script(tmp_path / "net.pt")
    for predictor in map(TorchPredictor, (*files, net())):
        assert np.array_equal(once(copy.copy(predictor), {"x": ROWS}), once(predictor, {"x": ROWS}))


def test_the_mode_that_a_module_is_in_is_no_part_of_what_it_is() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    training = fingerprint(TorchPredictor(net.train()).identity())
    assert net.training, "it is left as it was"
    assert training == fingerprint(TorchPredictor(net.eval()).identity())
    with torch.no_grad():
        net[0].weight += 1
    assert training != fingerprint(TorchPredictor(net.train()).identity())


# ---------------------------------------------------------------- programs of training


class Noisy(torch.nn.Module):
    """Has each kind of layer that is another in training."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 4)
        self.kind = kind
        self.dropout = torch.nn.Dropout(0.5)
        self.norm = torch.nn.BatchNorm1d(4, track_running_stats=kind != "norm of the batch")
        self.attention = torch.nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)
        self.lstm = torch.nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if self.kind == "dropout":
            return self.dropout(hidden)
        if self.kind == "attention":
            row = hidden.unsqueeze(1)
            return self.attention(row, row, row, need_weights=False)[0][:, 0]
        if self.kind == "lstm":
            return self.lstm(hidden.unsqueeze(1))[0][:, 0]
        return self.norm(hidden)


@pytest.mark.parametrize(
    ("kind", "how"),
    crossed(["dropout", "norm", "attention", "norm of the batch", "lstm"], ["export", "trace"]),
)
def test_a_program_that_was_recorded_in_training_mode_is_refused(how: str, kind: str, tmp_path: Path) -> None:
    rows = torch.randn(8, 2)

    def recorded(training: bool) -> Any:
        module = Noisy(kind).train(training)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if how == "export":
                return save_export(tmp_path / "net.pt2", torch.export.export(module, (rows,)))
            return save_script(tmp_path / "net.pt", torch.jit.trace(module, (rows,), check_trace=False))

    once(TorchPredictor(recorded(False)), {"x": rows.numpy()})
    if kind in ("norm of the batch", "lstm"):  # the same in both modes
        once(TorchPredictor(recorded(True)), {"x": rows.numpy()})
        return
    with pytest.raises(ModelError, match=r"in training mode: .* Call model\.eval\(\) before"):
        TorchPredictor(recorded(True)).load()


def test_a_script_asks_for_its_mode(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)).train())
    file = save_script(tmp_path / "net.pt", script)
    np.testing.assert_array_equal(*(once(TorchPredictor(file), {"x": ROWS[:, :2]}) for _ in range(2)))
