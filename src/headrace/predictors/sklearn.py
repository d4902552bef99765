"""scikit-learn's estimators and pipelines, as objects or as files of skops, pickle or joblib."""

from __future__ import annotations

import bz2
import lzma
import os
import sys
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, cast

import numpy as np

from headrace.core.arguments import known_arguments
from headrace.core.arrow.model_columns import Columns, check_names, matrix, shapes, texts
from headrace.core.files.artifacts import Artifact, loading_call, names_in_zip, require, shortened, threads
from headrace.core.files.formats import model_format
from headrace.errors import ArgumentError, BadInput, ModelError, ModelUnreadable, UntrustedPickle
from headrace.predictors import directly
from headrace.predictors.estimators import EstimatorPredictor

METHODS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score_samples",
    "transform",
    "inverse_transform",
    "apply",
)
_VARIES = {  # the address of a list; how long a search took
    "_stop_words_id",
    "cv_results_",
    "refit_time_",
    "scorer_",
}
_TREE = "sklearn.tree._tree.Tree"
_OF_TREES = f" ({_TREE} runs no code, but a forged tree can crash the process.)"
_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number that torch.save once began with


def kind_of(path: str) -> Literal["skops", "pickle"] | None:
    """Return which kind of file is at ``path``, by its content and then by its name; None if it is none.

    A pickle need not hold an estimator: only reading it would show that, and runs code.
    """
    by_content = _content_of(path)
    if by_content is not None or not os.path.isfile(path):
        return by_content
    return cast('Literal["skops", "pickle"] | None', model_format(path, "sklearn"))


def _content_of(path: str) -> Literal["skops", "pickle"] | None:
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
            if head.startswith(b"BZh"):  # comes in blocks of up to 900 kB
                head += file.read(1 << 20)
    except OSError:
        return None
    if head.startswith(b"PK\x03\x04"):
        return "skops" if "schema.json" in (names_in_zip(path) or ()) else None
    start = _unpacked(head)
    is_pickle = start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    return "pickle" if is_pickle and not start.startswith(_TORCH) else None


def _unpacked(head: bytes) -> bytes:
    """Undo what joblib may compress with, as far as the first bytes go; what is not compressed stays."""
    try:
        if head.startswith(b"BZh"):
            return bz2.BZ2Decompressor().decompress(head, 64) or head
        if head.startswith((b"\xfd7zXZ\x00", b"]\x00\x00")):
            return lzma.LZMADecompressor().decompress(head, 64)
        if head.startswith((b"\x1f\x8b", b"\x78")):
            return zlib.decompressobj(wbits=47).decompress(head, 64)
    except (OSError, lzma.LZMAError, zlib.error):
        pass
    return head


class SklearnPredictor(EstimatorPredictor):
    """Predicts with an estimator of scikit-learn, or of any library with the same methods.

    Columns are matched by name if the estimator was fitted with names; otherwise one column of shape (n, k…)
    or several side by side are its matrix, and a text column goes as it is to an estimator that takes texts.
    In a worker, ``n_jobs`` of the estimator means threads, and no more of them than the worker has.

    Parameters
    ----------
    model
        A fitted estimator or pipeline; or the path of a ``.skops`` file, or of a pickle (``.pkl``, ``.joblib``).
    method
        Which method gives the results: one of ``METHODS`` that the estimator has.
    sha256
        The digest that a file must have.
    trust_pickle
        Whether a pickle may be read, which runs whatever code it has in it; for skops, all types in it.
    trusted
        For skops: names of types that it does not know, and that you trust.

    Raises
    ------
    ModelError
        An estimator that is not fitted; ``UntrustedPickle``, ``ModelUnreadable``, ``ModelChanged``.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> predictor = SklearnPredictor(LinearRegression().fit([[1.0], [2.0]], [2.0, 4.0]))
    >>> predictor.load()
    >>> predictor.predict({"x": np.array([3.0, 4.0])}).round(6).tolist()
    [6.0, 8.0]
    """

    classes = ("BaseEstimator",)
    kind_of = staticmethod(kind_of)
    library = "sklearn"
    library_name = "scikit-learn"
    methods = METHODS
    instead_of_pickle = (
        "Save it with skops instead (skops.io.dump(model, 'model.skops')), which runs no code."
    )
    not_a_model = (
        "is neither a file of skops nor a pickle: neither its first bytes nor its name tell such a model."
    )
    how_to_repair = (
        "Is it whole, and are the libraries that it was written with installed here, in these versions? If so, "
        "write it again."
    )

    @known_arguments
    def __init__(
        self,
        model: Any,
        *,
        method: str = "predict",
        sha256: str | None = None,
        trust_pickle: bool = False,
        trusted: str | Sequence[str] = (),
    ) -> None:
        self._trusted = (trusted,) if isinstance(trusted, str) else tuple(trusted)
        self.batch_format: Literal["numpy", "pandas"] = "numpy"
        self._open(model, method=method, sha256=sha256, trust_pickle=trust_pickle)
        if self._artifact is None:
            self._choose_format(model)

    def load(self) -> None:
        """Read the file, if it is one; set the form of batches."""
        model = self._model_to_load()
        self._choose_format(model)
        self._bounded = _at_most(threads())
        self._loaded = model

    def predict(self, batch: Any) -> Any:
        """Return what the estimator's method gives: (n,), (n, k), or a dict of such for several outputs."""
        if self._loaded is None:
            return directly(self, batch)
        rows = self._rows(batch)
        try:
            with self._bounded():
                result = getattr(self._loaded, self._method)(rows)
        except (ValueError, TypeError) as error:
            raise self._refused(error, batch) from error
        if isinstance(result, list):  # one array for each output
            return {f"output_{i}": np.asarray(array) for i, array in enumerate(result)}
        return result.toarray() if hasattr(result, "toarray") else result

    def weights(self) -> str:
        """Describe where the weights are."""
        if self._artifact is not None:
            return super().weights()
        return f"each worker has its own {self.label}; only big arrays in it are shared"

    def _unloaded(self) -> dict[str, Any]:
        return {**super()._unloaded(), "_bounded": None}

    def _kind_of(self, path: str) -> str | None:
        return kind_of(path)

    def _checked_kind(self, artifact: Artifact) -> str:
        kind = super()._checked_kind(artifact)
        if kind == "skops":
            require("skops", "sklearn", f"The model {artifact.name}")
        return kind

    def _check_model(self, model: Any) -> None:
        if self._artifact is not None and not hasattr(model, "fit") and not hasattr(model, self._method):
            raise ModelUnreadable(
                f"{self._artifact.path} holds no estimator, but a {type(model).__name__}. Save the fitted model "
                "itself."
            )
        _check_fitted(model)

    def _read_file(self, artifact: Artifact) -> Any:
        return read_skops(artifact, trusted=self._trusted, trust_pickle=self._trust_pickle)

    def _unpickled(self, artifact: Artifact) -> Any:
        import joblib  # comes with scikit-learn; it reads plain pickles, too, and compressed ones

        return joblib.load(artifact.path)

    def _content(self, model: Any) -> tuple[Any, ...]:
        return (_steady(model),)

    def _options(self) -> tuple[Any, ...]:
        return (self._method,)

    def _message(self, error: BaseException) -> str:
        return f"{type(error).__name__}: {shortened(error)}"

    def _choose_format(self, model: Any) -> None:
        """Check that ``model`` has the method; set the form of batches: frames, if it was fitted with one."""
        if not callable(getattr(model, self._method, None)):
            has = [name for name in METHODS if callable(getattr(model, name, None))]
            what = (
                self.label
                if self._artifact is None
                else f"{self.label} holds a {type(model).__name__}, which"
            )
            raise ArgumentError(
                f"{what} has no method {self._method!r}. It has: {', '.join(has) or 'none that predicts'}."
            )
        if getattr(model, "feature_names_in_", None) is not None:
            require("pandas", "pandas", f"{self.label}, which was fitted with a DataFrame,")
            self.batch_format = "pandas"
        else:
            self.batch_format = "numpy"

    def _rows(self, batch: Any) -> Any:
        """Return what the method is called with."""
        if self.batch_format == "pandas":
            names = list(self._loaded.feature_names_in_)
            given = list(batch.columns)
            check_names(names, given)
            return batch if names == given else batch[names]
        count = getattr(self._loaded, "n_features_in_", None)
        columns: Columns = batch
        if any(array.dtype == object for array in columns.values()):
            return _objects(columns, count)
        if count is None and len(columns) == 1:
            (array,) = columns.values()
            return array if array.ndim > 1 else array.reshape(-1, 1)
        return matrix(columns, count=count)


def read_skops(artifact: Artifact, *, trusted: Sequence[str] = (), trust_pickle: bool = False) -> Any:
    """Return what is in a file of skops. Raises ``UntrustedPickle`` for types that are not trusted."""
    import skops.io

    unknown = skops.io.get_untrusted_types(file=artifact.path)
    refused = [name for name in unknown if name not in trusted]
    if refused and not trust_pickle:
        raise UntrustedPickle(
            f"{artifact.path} has types in it that skops does not know to be safe: {', '.join(refused)}."
            f"{_OF_TREES if _TREE in refused else ''} If you trust them as you trust your own code: "
            f"{loading_call(artifact.path, f'trusted={[*trusted, *refused]!r}')}."
        )
    return skops.io.load(artifact.path, trusted=unknown)


def _check_fitted(model: Any) -> None:
    """Raise unless ``model`` is an instance, and one that was fitted."""
    if isinstance(model, type):
        raise ArgumentError(f"{model.__name__} is a class; give an estimator that was fitted: an instance.")
    validation = sys.modules.get("sklearn.utils.validation")  # there, if the object is scikit-learn's
    if validation is None or not hasattr(model, "fit"):
        return
    from sklearn.exceptions import NotFittedError

    try:
        validation.check_is_fitted(model)
    except NotFittedError as error:
        raise ModelError(
            f"{type(model).__name__} is not fitted yet: call fit() before predicting."
        ) from error
    except (TypeError, AttributeError):  # not quite an estimator: its own methods will raise
        return


def _objects(columns: Columns, count: int | None) -> Any:
    """Return texts as they are, or a matrix of objects for an estimator that was fitted with one."""
    if count is None:
        if len(columns) == 1:
            (array,) = columns.values()
            if any(isinstance(value, str) for value in array[:16]):
                texts(columns)  # raises where there is a null
            return array
        raise BadInput(
            f"the model takes one column, but it was given {shapes(columns)}. Choose one of them with inputs=[…]"
        )
    flat = [array.reshape(len(array), -1) for array in columns.values()]
    width = sum(array.shape[1] for array in flat)
    if width != count:
        raise BadInput(f"the model takes {count} features, but it was given {width}: {shapes(columns)}")
    return np.concatenate([array.astype(object) for array in flat], axis=1)


def _at_most(count: int | None) -> Any:
    """Return what makes a context in which joblib starts threads only, and ``count`` of them at most.

    joblib's own settings bound only estimators that leave ``n_jobs`` open, and the estimator is not ours to
    change; so the backend limits the number. None leaves joblib as it is.
    """
    if count is None:
        return nullcontext
    most = count
    from joblib.parallel import ThreadingBackend, parallel_backend

    class AtMost(ThreadingBackend):  # type: ignore[misc]
        """Threads, but not more than the worker has."""

        def effective_n_jobs(self, n_jobs: Any) -> int:
            return min(most, int(super().effective_n_jobs(n_jobs)))

    def bounded() -> AbstractContextManager[Any]:
        # One job for estimators without n_jobs, as outside: the order of sums would depend on threads.
        result: AbstractContextManager[Any] = parallel_backend(AtMost(), n_jobs=1)
        return result

    return bounded


def _steady(value: Any) -> Any:
    """Return a value without what training leaves another each time, and no prediction depends on."""
    if isinstance(value, (list, tuple)) and any(not isinstance(each, (str, int, float)) for each in value):
        return [_steady(each) for each in value]
    if isinstance(value, dict):
        return {key: _steady(each) for key, each in value.items()}
    own = getattr(value, "__dict__", None)
    if own and ("_stop_words_id" in own or type(value).__module__.startswith("sklearn.")):
        if isinstance(value, type) or callable(value):
            return value
        return type(value), {key: _steady(each) for key, each in own.items() if key not in _VARIES}
    return value
