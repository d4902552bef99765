"""Every public name says what it takes, in which shapes and units, what it raises, and shows an example."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import headrace as hr

NO_CALLS = {
    "Comparison",
    "Result",
    "Runs",
    "Verification",
    "__version__",
    "errors",
}  # nobody calls these, so they raise nothing
NO_CONSTRUCTORS = {"Executor", "Ref"}  # connect() and put() make them
WITH_METHODS = (hr.Dataset, hr.Executor, hr.ActorPool, hr.Ref)
UNITS = {  # where an argument has one of these names, one of these words says its unit
    "memory": ("bytes", "As in"),
    "memory_limit": ("Bytes", "bytes"),
    "batch_timeout": ("Seconds", "seconds"),
    "stall_timeout": ("Seconds", "seconds"),
    "size": ("pixels", "workers"),
    "max_pixels": ("pixels",),
    "max_samples": ("bytes",),
    "sample_rate": ("per second",),
    "fps": ("per second",),
    "dpi": ("per inch",),
    "resize": ("pixels",),
    "batch_size": ("rows", "Rows", "texts", "As in", "as in"),
    "batch_size_bytes": ("bytes", "As in"),
    "max_in_flight": ("batches", "As in"),
}
TENSORS = """
    Dataset map_batches predict embed map with_column take take_batch schema iter_batches iter_torch_batches
    iter_tf_batches to_tf to_polars to_daft from_numpy from_torch from_polars from_daft from_huggingface
    range_tensor read_images read_audio read_video KerasPredictor LightGBMPredictor MLflowPredictor
    OnnxPredictor
    SentenceTransformersPredictor SklearnPredictor TorchPredictor TransformersPredictor XGBoostPredictor
"""


def public() -> Iterator[tuple[str, Any]]:
    for name in hr.__all__:
        if name not in ("__version__", "aggregate", "errors", "llm", "observers"):  # modules
            yield name, getattr(hr, name)
    for cls in WITH_METHODS:
        for name in dir(cls):
            if not name.startswith("_"):
                yield f"{cls.__name__}.{name}", getattr(cls, name)
    for name, value in vars(hr.errors).items():
        if isinstance(value, type) and issubclass(value, hr.errors.HeadraceError):
            yield f"errors.{name}", value


def arguments(of: Any) -> list[str]:
    if dataclasses.is_dataclass(of):
        return [field.name for field in dataclasses.fields(of) if not field.name.startswith("_")]
    if isinstance(of, property) or getattr(of, "__name__", "") in NO_CONSTRUCTORS:
        return []
    if isinstance(of, type) and of.__init__ is object.__init__:
        return []
    return [name for name in inspect.signature(of).parameters if name.strip("_") not in ("self", "")]


NAMES = dict(public())
CALLED = [name for name in NAMES if name not in NO_CALLS and not name.startswith("errors.")]


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is(name: str) -> None:
    text = inspect.getdoc(NAMES[name])
    assert text and re.match(r"[A-Z`].*[.:)](\n|$)", text), text


@pytest.mark.parametrize("name", [name for name in CALLED if name != "Dataset"])
def test_it_names_its_arguments(name: str) -> None:
    text = inspect.getdoc(NAMES[name]) or ""
    missing = [each for each in arguments(NAMES[name]) if not re.search(rf"\b{each}\b", text)]
    assert not missing
    for each in arguments(NAMES[name]):
        assert any(word in text for word in UNITS.get(each, ("",))), f"the unit of {each}"


@pytest.mark.parametrize("name", CALLED)
def test_it_says_what_it_raises_and_shows_an_example(name: str) -> None:
    text = inspect.getdoc(NAMES[name]) or ""
    assert isinstance(NAMES[name], property) or re.search(r"\b[Rr]aise", text), "what it raises"
    cls, _, method = name.rpartition(".")
    if method and cls and cls != "Dataset":  # the example of the class shows the methods together
        text = inspect.getdoc(NAMES[cls]) or ""
    assert ">>>" in text, "an example"


@pytest.mark.parametrize("name", TENSORS.split())
def test_it_says_shapes(name: str) -> None:
    found = NAMES.get(name) or NAMES[f"Dataset.{name}"]
    assert re.search(r"(shape|arrays?|columns?|matrix|vectors) \([hnk]", inspect.getdoc(found) or "")
