"""Batches of PyTorch's and TensorFlow's tensors, and PyTorch's datasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ArgumentError, UnknownColumn

torch = pytest.importorskip("torch")


@pytest.fixture
def data() -> hr.Dataset:
    return hr.range(5).with_column(
        "v", lambda b: np.ones((len(b["id"]), 2)) * b["id"][:, None], batch_format="numpy"
    )


def test_torch_batches(data: hr.Dataset) -> None:
    batches = list(data.iter_torch_batches(batch_size=2))
    assert [batch["id"].tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert batches[1]["v"].dtype == torch.float64 and batches[1]["v"].tolist() == [[2.0, 2.0], [3.0, 3.0]]
    batches[0]["v"] += 1  # its own memory
    assert len(list(data.iter_torch_batches(batch_size=2, drop_last=True, prefetch_batches=4))) == 2


def test_torch_dtypes_and_devices(data: hr.Dataset) -> None:
    one = next(iter(data.iter_torch_batches(dtypes=torch.float16, device="cpu")))
    assert {tensor.dtype for tensor in one.values()} == {torch.float16}
    some = next(iter(data.iter_torch_batches(dtypes={"v": torch.float32})))
    assert (some["id"].dtype, some["v"].dtype) == (torch.int64, torch.float32)
    meta = next(iter(data.iter_torch_batches(device="meta")))
    assert {tensor.device.type for tensor in meta.values()} == {"meta"}
    with pytest.raises(ArgumentError, match=r"device='gpus'.*: PyTorch cannot do this here"):
        data.iter_torch_batches(device="gpus")
    with pytest.raises(ArgumentError, match=r"give a torch.dtype such as torch.float32"):
        data.iter_torch_batches(dtypes="float32")
    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match=r"pin_memory=True.*: PyTorch cannot do this here"):
            data.iter_torch_batches(pin_memory=True)


def test_torch_collate(data: hr.Dataset) -> None:
    def pairs(batch: dict[str, Any]) -> tuple[Any, Any]:
        return torch.as_tensor(batch["v"].copy()), [torch.as_tensor(batch["id"].copy())]

    vectors, (ids,) = next(iter(data.iter_torch_batches(collate_fn=pairs, device="meta")))
    assert (vectors.shape, ids.device.type) == ((5, 2), "meta")
    with pytest.raises(ArgumentError, match="either collate_fn= or dtypes="):
        data.iter_torch_batches(collate_fn=pairs, dtypes=torch.float32)


def test_torch_has_no_texts() -> None:
    words = hr.from_items([{"word": "a"}])
    with pytest.raises(ArgumentError, match=r"column 'word' holds .*texts.* collate_fn="):
        next(iter(words.iter_torch_batches()))


def test_lists_of_one_length_are_tensors_and_ragged_tensors_lists_of_them() -> None:
    lists = hr.from_arrow(pa.table({"e": pa.array([[1, 2], [3, 4], [5]], pa.list_(pa.float32()))}))
    first = next(lists.iter_torch_batches(batch_size=2))
    assert (first["e"].dtype, first["e"].tolist()) == (torch.float32, [[1, 2], [3, 4]])
    with pytest.raises(ArgumentError, match="lists of different lengths"):
        next(iter(lists.iter_torch_batches()))
    boxes = hr.range(3).map(lambda row: {"boxes": np.ones((row["id"], 4), np.float32)})
    (batch,) = boxes.iter_torch_batches(dtypes=torch.float64)
    assert [tuple(each.shape) for each in batch["boxes"]] == [(0, 4), (1, 4), (2, 4)]
    assert {each.dtype for each in batch["boxes"]} == {torch.float64}
    (one,) = boxes.limit(1).iter_torch_batches(device="meta")
    assert [each.device.type for each in one["boxes"]] == ["meta"]
    (kept,) = lists.limit(2).iter_torch_batches(collate_fn=lambda batch: batch)
    assert kept["e"].dtype == object  # a function of the user's gets columns as they always are


class Pairs(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        return torch.full((2,), float(i)), i


class Words(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
    def __iter__(self) -> Iterator[Any]:
        return iter([{"word": "a", "n": 1}, {"word": "b", "n": 2}])


def test_from_torch() -> None:
    assert hr.from_torch(Pairs()).take_batch(3)["item_0"].tolist() == [[0, 0], [1, 1], [2, 2]]
    named = hr.from_torch(Pairs(), columns=["x", "y"], local_read=True).take(2)[1]
    assert (named["x"].tolist(), named["y"]) == ([1, 1], 1)
    assert hr.from_torch(Words()).take_all() == [{"word": "a", "n": 1}, {"word": "b", "n": 2}]
    assert hr.from_torch(list(range(3))).take_all() == [{"item": 0}, {"item": 1}, {"item": 2}]
    with pytest.raises(ArgumentError, match="got 1 names in columns= for items of 2 parts"):
        hr.from_torch(Pairs(), columns=["x"])


def test_a_tensor_dataset_is_taken_whole() -> None:
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 2, 2)
    data = hr.from_torch(torch.utils.data.TensorDataset(tensor, torch.zeros(3)), columns=["x", "y"])
    tensor[0] = 7.0
    assert data.take_batch(3)["x"].tolist() == np.arange(12.0).reshape(3, 2, 2).tolist()


def test_tensorflow(data: hr.Dataset) -> None:
    pytest.importorskip("tensorflow")
    batches = list(data.iter_tf_batches(batch_size=3, dtypes={"id": "float32"}))
    assert batches[1]["id"].numpy().tolist() == [3.0, 4.0] and batches[0]["v"].shape == (3, 2)
    lists = hr.from_arrow(
        pa.table({"e": pa.array([[1, 2], [3, 4], [5]], pa.list_(pa.float32())), "y": range(3)})
    )
    assert next(iter(lists.limit(2).iter_tf_batches()))["e"].shape == (2, 2)
    ((features, _), *_) = lists.to_tf("e", "y", batch_size=2).as_numpy_iterator()
    assert features.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    words = hr.from_items([{"word": "a"}, {"word": "b"}])
    assert next(iter(words.iter_tf_batches()))["word"].numpy().tolist() == [b"a", b"b"]
    pairs = data.to_tf("v", ["id"], batch_size=2)
    for _ in range(2):  # each pass runs the plan
        elements = list(pairs.as_numpy_iterator())
        assert [labels["id"].tolist() for _, labels in elements] == [[0, 1], [2, 3], [4]]
        assert elements[2][0].tolist() == [[4.0, 4.0]]
    assert len(data.to_tf("v", "id", additional_columns="id").element_spec) == 3
    with pytest.raises(UnknownColumn, match="Did you mean 'id'"):
        data.to_tf("v", "idd")
