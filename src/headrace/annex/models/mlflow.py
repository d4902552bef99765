"""Models that MLflow logged, from a folder, a run or the registry, by their python_function flavour."""

from __future__ import annotations

import math
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from headrace.core.arguments import known_arguments
from headrace.core.arrow.model_columns import cast, check_names, features, shapes
from headrace.core.files.artifacts import (
    Artifact,
    content,
    from_json,
    loading_call,
    require,
    shortened,
)
from headrace.errors import ArgumentError, BadInput, ModelError, ModelUnreadable, UntrustedPickle, nearest


def read_mlmodel(folder: str) -> list[dict[str, Any]]:
    """Return the inputs of the signature in a folder's MLmodel file: one dict per column or tensor; none without one.

    Raises ``ModelUnreadable`` if it is no such file.
    """
    import yaml

    try:
        described = yaml.safe_load(content(os.path.join(folder, "MLmodel")))
        described["flavors"]["python_function"]
        inputs = (described.get("signature") or {}).get("inputs")
        fields: list[dict[str, Any]] = from_json(inputs) if inputs else []
        for field in fields:
            if field.get("type") == "tensor":
                np.dtype(field["tensor-spec"]["dtype"])
                [int(size) for size in field["tensor-spec"]["shape"]]
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
    return fields


def short(error: BaseException) -> str:
    """Return what went wrong in one paragraph: MLflow puts the whole batch before it."""
    message = str(error).rsplit(" Error: ", 1)[-1].strip()
    return shortened(message).rstrip(":") or type(error).__name__


_URI = re.compile(r"(models|runs):/|[a-z][a-z0-9+.-]+://")
_PROGRESS_BAR = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"  # there would be one for each worker


def kind_of(path: str) -> Literal["mlflow"] | None:
    """Return ``"mlflow"`` if ``path`` is a folder with an ``MLmodel`` file, or a URI ``models:/…`` or ``runs:/…``.

    >>> kind_of("models:/fare@champion")
    'mlflow'
    """
    if path.startswith(("models:/", "runs:/")) or os.path.isfile(os.path.join(path, "MLmodel")):
        return "mlflow"
    return None


class MLflowPredictor:
    """Predicts with a model that MLflow logged, as ``mlflow.pyfunc`` does, its signature enforced.

    A signature of columns, or none, takes DataFrames; a signature of tensors takes arrays (n, k…) by name, or one
    (several columns side by side), cast to its dtype. Columns that the signature does not name are left out.

    Parameters
    ----------
    uri
        The folder of a model (with its ``MLmodel`` file), ``models:/name/version``, ``models:/name@alias``,
        ``runs:/id/path``, or another URI that MLflow can download. A URI is looked up in each worker.
    params
        Parameters of the signature for each prediction.
    tracking_uri
        Where ``models:/`` and ``runs:/`` are looked up; default: ``MLFLOW_TRACKING_URI``.
    sha256
        The digest that the folder must have (see ``Artifact.digest``).
    trust_pickle
        Has to be True: a model that MLflow logged may bring pickles and code, which run when it is read.

    Raises
    ------
    ModelError
        ``UntrustedPickle``, ``ModelUnreadable``, ``ModelChanged``; for a URI when it is loaded.

    Examples
    --------
    >>> MLflowPredictor("nowhere")
    Traceback (most recent call last):
        ...
    headrace.errors.ModelUnreadable: There is no model at 'nowhere' (looked for ...nowhere).
    """

    classes = ("PyFuncModel",)
    kind_of = staticmethod(kind_of)

    @known_arguments
    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        params: Mapping[str, Any] | None = None,
        tracking_uri: str | None = None,
        sha256: str | None = None,
        trust_pickle: bool = False,
    ) -> None:
        if not isinstance(uri, (str, os.PathLike)):
            raise _no_place(uri)
        if params is not None and not isinstance(params, Mapping):
            raise ArgumentError(
                f"params={params!r} should be a dict: names of the signature and their values."
            )
        named = os.fspath(uri).removeprefix("file://")
        self._uri = named if _URI.match(named) else None
        self._params = None if params is None else dict(params)
        self._tracking_uri, self._sha256 = tracking_uri, sha256
        self._loaded: Any = None
        self._downloaded: Any = None
        self._schema: list[dict[str, Any]] = []
        self._artifact: Artifact | None = None
        self.batch_format: Literal["numpy", "pandas"] = "pandas"
        if self._uri is None:
            self._artifact = Artifact(named, sha256).checked()
        self.label = named if self._artifact is None else self._artifact.name
        if not trust_pickle:
            raise UntrustedPickle(
                f"{named} is a model that MLflow logged, and may bring pickles and code: whoever made it can run any "
                "code on the machine that reads it. If you trust it as you trust your own code, "
                f"{loading_call(named, 'trust_pickle=True')} reads it; sha256= pins it. Else give the model's own "
                "file, such as .skops, .ubj or .onnx."
            )
        require("mlflow", "mlflow", f"The model {self.label}")
        if self._artifact is not None:
            self._study(self._artifact.path)

    def load(self) -> None:
        """Download the model if need be, and read it."""
        mlflow = _imported()
        try:
            folder = self._artifact.path if self._artifact is not None else self._download(mlflow)
            Artifact(folder, self._sha256).verify()
            self._study(folder)
            # What it would warn of, it would in every worker: that versions differ from those of training.
            model = mlflow.pyfunc.load_model(folder, suppress_warnings=True)
        except (ModelError, MemoryError):
            self.close()
            raise
        except Exception as error:
            self.close()
            raise ModelUnreadable(
                f"MLflow cannot read the model {self._uri or self._artifact_path()}: {short(error)}. Is it whole, "
                "and are the libraries that it was logged with installed here?"
            ) from error
        self._check_params(model)
        self._loaded = model

    def predict(self, batch: Any) -> Any:
        """Return what the model gives: an array, a list, a dict or a DataFrame."""
        rows = self._tensors(batch) if self.batch_format == "numpy" else self._frame(batch)
        from mlflow.exceptions import MlflowException

        try:
            result = self._loaded.predict(rows, params=self._params)
        except MlflowException as error:
            raise BadInput(f"MLflow refused it: {short(error)}. It was given {self._given(batch)}") from error
        except (ValueError, TypeError, KeyError) as error:
            if self._schema:  # the columns are those that it asks for, so it is something else
                raise
            raise BadInput(
                f"it was logged without a signature, so it was given all columns: {self._given(batch)}; and it "
                f"raised {type(error).__name__}: {short(error)}. Choose its columns with inputs=[…]"
            ) from error
        if hasattr(result, "toarray"):
            return result.toarray()
        return (
            result.to_numpy() if hasattr(result, "to_numpy") and getattr(result, "ndim", 0) == 1 else result
        )

    def close(self) -> None:
        """Let go of the model, and delete what was downloaded."""
        self._loaded = None
        if self._downloaded is not None:
            self._downloaded.cleanup()
            self._downloaded = None

    def identity(self) -> Any:
        """Return the folder's digest; of a URI, itself and where it is looked up."""
        if self._artifact is not None:
            return ("mlflow", self._artifact.digest(), self._params)
        where = self._tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        return ("mlflow", self._uri, where, self._sha256, self._params)

    def weights(self) -> str:
        """Say where they are."""
        if self._artifact is not None:
            return f"each worker reads its own copy of {self.label}"
        return f"each worker downloads and reads its own copy of {self.label}"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was loaded."""
        return {**self.__dict__, "_loaded": None, "_downloaded": None}

    def _download(self, mlflow: Any) -> str:
        self._downloaded = tempfile.TemporaryDirectory(prefix="headrace-mlflow-", ignore_cleanup_errors=True)
        os.environ.setdefault(_PROGRESS_BAR, "false")
        before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
        if self._tracking_uri is not None:  # not all of MLflow takes it as an argument
            mlflow.set_tracking_uri(self._tracking_uri)
        try:
            found: str = mlflow.artifacts.download_artifacts(self._uri, dst_path=self._downloaded.name)
        finally:
            if self._tracking_uri is not None:
                mlflow.set_tracking_uri(before)
        return found

    def _study(self, folder: str) -> None:
        """Read the MLmodel file: which form of batches the model takes."""
        self._schema = read_mlmodel(folder)
        tensors = bool(self._schema) and all(field.get("type") == "tensor" for field in self._schema)
        self.batch_format = "numpy" if tensors else "pandas"
        if not tensors:
            require("pandas", "mlflow", f"The model {self.label}")

    def _check_params(self, model: Any) -> None:
        """Raise for parameters that MLflow would ignore, with a warning for each batch."""
        schema = model.metadata.get_params_schema()
        known = [] if schema is None else [param.name for param in schema.params]
        for name in self._params or {}:
            if name not in known:
                self.close()
                hint = nearest(name, known) or f" There are: {', '.join(known) or 'none'}."
                raise ArgumentError(f"The signature of {self.label} has no parameter {name!r}.{hint}")

    def _given(self, batch: Any) -> str:
        if self.batch_format == "numpy":
            return shapes(batch)
        return ", ".join(f"{name}: {dtype}" for name, dtype in batch.dtypes.items())

    def _frame(self, batch: Any) -> Any:
        names = [field["name"] for field in self._schema if field.get("name") in batch.columns]
        if not names or len(names) == len(batch.columns):
            return batch
        return batch[names]  # MLflow would leave out the others too, with a warning for each batch

    def _tensors(self, batch: Any) -> Any:
        specs = {field.get("name"): field["tensor-spec"] for field in self._schema}
        if list(specs) != [None]:
            check_names([str(name) for name in specs], list(batch))
            return {name: _shaped(_cast(str(name), batch[name], spec), spec) for name, spec in specs.items()}
        spec = specs[None]
        numbers = all(array.dtype.kind in "biuf" for array in batch.values()) and _is_number(spec)
        return _shaped(features(batch, spec["dtype"] if numbers else None), spec)

    def _artifact_path(self) -> str:
        return self._artifact.path if self._artifact is not None else self.label


def _no_place(given: Any) -> ArgumentError:
    hint = ""
    if any(each.__module__.partition(".")[0] == "mlflow" for each in type(given).__mro__):
        hint = (
            " Give what it was loaded from, such as 'models:/fare/3', or the model_uri that log_model gave: each "
            "worker loads its own."
        )
    return ArgumentError(f"{type(given).__name__} is not a path or URI of a model that MLflow logged.{hint}")


def _imported() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow warns of type hints of its own
        import mlflow.artifacts
        import mlflow.pyfunc
    return mlflow


def _is_number(spec: Mapping[str, Any]) -> bool:
    return str(spec["dtype"]).startswith(("int", "uint", "float", "bool"))


def _cast(name: str, array: Any, spec: Mapping[str, Any]) -> Any:
    return cast(name, array, spec["dtype"]) if array.dtype.kind in "biuf" and _is_number(spec) else array


def _shaped(array: Any, spec: Mapping[str, Any]) -> Any:
    """Give rows the shape of the signature, if they have as many values; else MLflow raises its own error."""
    shape = spec["shape"][1:]
    fits = all(size > 0 for size in shape) and math.prod(shape) == math.prod(array.shape[1:])
    return array.reshape(len(array), *shape) if fits else array
