"""The MLmodel file of a model that MLflow logged: its flavours and inputs, and whether it can run code."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.core.arrow.model_columns import listed
from headrace.core.files.artifacts import NotReadable, content, from_json, shortened
from headrace.errors import ModelUnreadable

_PROVIDERS = ("CPUExecutionProvider", "CUDAExecutionProvider")
_SESSION_OPTIONS = {
    "execution_mode",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
}
_MOST = 4 << 20  # bytes of an MLmodel file: a signature of 10,000 columns takes one million
_DEEPEST = 100


def read_mlmodel(folder: str) -> dict[str, Any]:
    """Return what the MLmodel file of a folder holds; raises ``ModelUnreadable`` if it is none."""
    import yaml

    try:
        text = content(os.path.join(folder, "MLmodel"), most=_MOST)
        _check_depth(yaml, text)
        described = yaml.load(text, _loader(yaml))
        if _size_of(described) > _MOST:
            raise NotReadable("its aliases unfold to far more than is written there")
        flavors = described["flavors"]
        flavors["python_function"]["loader_module"]
        if not all(isinstance(each, dict) for each in flavors.values()):
            raise NotReadable("a flavour in it is no mapping")
    except FileNotFoundError as error:
        raise ModelUnreadable(
            f"{folder} is not a model that MLflow logged: there is no file MLmodel in it."
        ) from error
    except KeyError as error:
        raise ModelUnreadable(
            f"{folder} cannot be used: its MLmodel file has no {error}. Only models with the flavour "
            "python_function can."
        ) from error
    except Exception as error:
        raise ModelUnreadable(f"The MLmodel file of {folder} cannot be read: {short(error)}.") from error
    found: dict[str, Any] = described
    return found


def _loader(yaml: Any) -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C, ten times as fast; some builds have none


def _check_depth(yaml: Any, text: bytes) -> None:
    """Raise for YAML that nests deep: the loader in C follows it until the process crashes."""
    depth = 0
    for event in yaml.parse(text, _loader(yaml)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise NotReadable("it nests too deep")


def _size_of(described: Any, known: dict[int, int] | None = None, depth: int = 0) -> int:
    """Count what a value holds with each alias unfolded, but visit each only once."""
    if not isinstance(described, dict | list):
        return len(described) if isinstance(described, str) else 1
    known = {} if known is None else known
    if depth > _DEEPEST:
        return _MOST + 1
    if id(described) in known:
        return known[id(described)]
    known[id(described)] = _MOST + 1  # until it is known: what holds itself has no end
    parts = [*described, *described.values()] if isinstance(described, dict) else described
    known[id(described)] = 1 + sum(_size_of(each, known, depth + 1) for each in parts)
    return known[id(described)]


def signature_inputs(folder: str, described: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the inputs of the signature: one dict per column or tensor; none if there is no signature."""
    try:
        inputs = (described.get("signature") or {}).get("inputs")
        fields = from_json(inputs) if inputs else []
        if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
            raise NotReadable("its inputs are not a list of columns")
        for field in fields:
            if field.get("type") == "tensor":
                np.dtype(field["tensor-spec"]["dtype"])
                [int(size) for size in field["tensor-spec"]["shape"]]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ModelUnreadable(
            f"The signature in the MLmodel file of {folder} cannot be read: {short(error)}."
        ) from error
    found: list[dict[str, Any]] = fields
    return found


def why_untrusted(folder: str, flavors: Mapping[str, Any]) -> str | None:
    """Say why reading a model could run code that it brings; None if it is known that it cannot."""
    function = flavors["python_function"]
    loader = function["loader_module"]
    if function.get("code"):
        return "brings code of its own"
    data = str(function.get("data") or "")
    if os.path.dirname(data) or os.path.isdir(os.path.join(folder, data or "MLmodel")):
        return (
            f"is read from a place of its own ({data}), with flavours that are not those of its MLmodel file"
        )
    if loader == "mlflow.sklearn":
        flavour = flavors.get("sklearn") or {}
        how = flavour.get("serialization_format", "pickle")
        if how != "skops":
            return f"is a model of flavour sklearn, in the format {how}"
        types = flavour.get("skops_trusted_types")
        return f"is a model of flavour sklearn that vouches itself for {listed(types)}" if types else None
    if loader == "mlflow.xgboost":
        kind = str((flavors.get("xgboost") or {}).get("model_class", "xgboost.core.Booster"))
        fits = re.fullmatch(r"xgboost\.(core\.Booster|sklearn\.XGB\w+)", kind)
        return None if fits else f"is a model of flavour xgboost, of the class {kind}"
    if loader == "mlflow.lightgbm":
        kind = str((flavors.get("lightgbm") or {}).get("model_class", "lightgbm.basic.Booster"))
        return (
            None if kind == "lightgbm.basic.Booster" else f"is a pickled model of flavour lightgbm ({kind})"
        )
    if loader == "mlflow.onnx":
        return _why_not_onnx(flavors.get("onnx") or {})
    if loader == "mlflow.pyfunc.model":
        return "is a model of flavour python_function, with a Python object or code"
    others = ", ".join(name for name in flavors if name != "python_function")
    return f"is a model of flavour {others or 'python_function'}, read by {loader}"


def _why_not_onnx(flavour: Mapping[str, Any]) -> str | None:
    """Say which options would reach further than the graph: providers load libraries and cached programs."""
    providers = flavour.get("providers") or []
    for each in providers if isinstance(providers, list) else [providers]:
        name = each[0] if isinstance(each, list) and each else each
        if name not in _PROVIDERS or (isinstance(each, list) and any(each[1:])):
            return f"is a model of flavour onnx that asks for {shortened(each)}"
    options = flavour.get("onnx_session_options") or {}
    more = (
        sorted(map(str, options.keys() - _SESSION_OPTIONS)) if isinstance(options, dict) else [str(options)]
    )
    return f"is a model of flavour onnx with the options {listed(more)}" if more else None


def short(error: BaseException) -> str:
    """Return what went wrong in one paragraph: MLflow puts the whole batch before it."""
    message = str(error).rsplit(" Error: ", 1)[-1].strip()
    return shortened(message).rstrip(":") or type(error).__name__
