"""Ray AIR's ``BatchPredictor``: a model or a function over a frame, a table, an array, a dataset or files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.compat.air.scored_data import Prepared, Preprocessing, given_data, preparing_method
from headrace.compat.air.scoring import (
    BATCH_SIZE,
    OUTPUT,
    FunctionScoring,
    ModelScoring,
    bounds,
    named_options,
    needs_of,
)
from headrace.core.arguments import known_arguments, unframed
from headrace.errors import ArgumentError, NotOffered, UnknownArgument, nearest
from headrace.plan.parameters import given_batch_bytes, given_batch_size, given_names

if TYPE_CHECKING:
    import pandas as pd


class BatchPredictor:
    """Carries a model, or a function of DataFrames, over data of any form: Ray AIR's class of this name.

    Made by ``from_checkpoint`` or ``from_pandas_udf``; ``predict`` does the work, and may be called many times.
    It calls ``Dataset.predict`` and ``Dataset.map_batches``, whose pages explain more. ``BatchPredictor(checkpoint,
    predictor_cls, **predictor_kwargs)`` is ``from_checkpoint`` by another name, and raises the same.

    Examples
    --------
    >>> import pandas as pd, torch
    >>> from headrace.compat.ray.train.batch_predictor import BatchPredictor
    >>> from headrace.compat.ray.train.torch import TorchCheckpoint, TorchPredictor
    >>> model = torch.nn.Linear(2, 1)
    >>> _ = torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
    >>> predictor = BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(model), TorchPredictor)
    >>> rides = pd.DataFrame({"km": [1.0, 2.0], "hours": [0.5, 0.25], "city": ["Oslo", "Bonn"]}, index=[7, 9])
    >>> predictor.predict(rides, feature_columns=["km", "hours"], keep_columns=["city"])
       city  predictions
    7  Oslo         1.50
    9  Bonn         2.25
    """

    @unframed
    def __init__(self, checkpoint: Any, predictor_cls: Any, **predictor_kwargs: Any) -> None:
        """Do as ``from_checkpoint`` does."""
        self._scoring: ModelScoring | FunctionScoring = ModelScoring(
            checkpoint, predictor_cls, predictor_kwargs
        )

    @classmethod
    @unframed
    def from_checkpoint(cls, checkpoint: Any, predictor_cls: Any, **kwargs: Any) -> BatchPredictor:
        """Predict with the model of a checkpoint.

        Parameters
        ----------
        checkpoint
            ``TorchCheckpoint.from_model(model)`` or its like for other libraries. For a class of your own, whatever
            its ``from_checkpoint`` takes.
        predictor_cls
            ``hr.TorchPredictor``, ``SklearnPredictor``, ``XGBoostPredictor``, ``LightGBMPredictor``,
            ``KerasPredictor``, ``OnnxPredictor``, ``TransformersPredictor``; or a class of your own with a class
            method ``from_checkpoint(checkpoint, **kwargs)``, called once per worker, and one of
            ``predict(batch, **kwargs)``, ``_predict_pandas(frame)`` and ``_predict_numpy(dict of arrays)``, which
            give one result per row: an array (n,) or (n, k…), a dict of arrays, or a DataFrame. Batches are
            DataFrames, unless its attribute ``batch_format`` says ``"numpy"`` or ``"pyarrow"``.
        kwargs
            Of ours, options of the class: ``device=``, ``method=``, … For PyTorch also ``model=``, what the weights
            belong to where the checkpoint cannot know, and ``use_gpu=True``, with which each worker gets a GPU.

        Raises
        ------
        ArgumentError
            The checkpoint is of another library, or the class has no method that predicts.
        """
        return cls(checkpoint, predictor_cls, **kwargs)

    @classmethod
    @known_arguments
    def from_pandas_udf(
        cls,
        pandas_udf: Callable[[pd.DataFrame], Any],
        batch_size_bytes: int | str | None = None,
        predict_batch_kwargs: Mapping[str, Any] | None = None,
    ) -> BatchPredictor:
        """Carry a function over the data: it gets DataFrames, and returns a DataFrame or one result per row.

        ``pandas_udf`` is the function. What it returns without names, an array (n,), (n, 1) or (n, k) or a Series,
        becomes the column ``predictions``. ``batch_size_bytes``: each batch is about so many bytes in memory, a
        number or text such as ``"16MiB"``. ``predict_batch_kwargs`` as in ``predict``, for all calls. Without
        ``keep_columns`` the function may return another number of rows. Raises ``ArgumentError`` for anything that
        is no function.

        >>> import pandas as pd
        >>> double = BatchPredictor.from_pandas_udf(lambda df: pd.DataFrame({"double": 2 * df["a"]}))
        >>> double.predict(pd.DataFrame({"a": [1, 2]}))["double"].tolist()
        [2, 4]
        >>> BatchPredictor.from_pandas_udf(lambda df: 2 * df["a"].to_numpy()).predict(pd.DataFrame({"a": [1, 2]}))
           predictions
        0            2
        1            4
        """
        if not callable(pandas_udf):
            raise ArgumentError(f"from_pandas_udf({pandas_udf!r}): it takes a function of a DataFrame.")
        made = object.__new__(cls)
        options = named_options("from_pandas_udf", predict_batch_kwargs)
        made._scoring = FunctionScoring(pandas_udf, options, given_batch_bytes(batch_size_bytes, None))
        return made

    def get_preprocessor(self) -> Any:
        """Return what prepares the data before the model: what was set here, else the checkpoint's; or None.

        Raises what reading the checkpoint's raises.

        Examples
        --------
        >>> BatchPredictor.from_pandas_udf(lambda frame: frame).get_preprocessor() is None
        True
        """
        return self._scoring.preprocessor() if self._preprocessor is ... else self._preprocessor

    def set_preprocessor(self, preprocessor: Any) -> None:
        """Let this prepare the data, in the place of the checkpoint's.

        Parameters
        ----------
        preprocessor
            An object with ``transform_batch`` or ``transform``, or a function of a DataFrame; None: nothing.

        Raises
        ------
        ArgumentError
            It is none of these.

        Examples
        --------
        >>> predictor = BatchPredictor.from_pandas_udf(lambda frame: frame)
        >>> predictor.set_preprocessor(lambda frame: frame.fillna(0))
        >>> callable(predictor.get_preprocessor())
        True
        """
        if preprocessor is not None:
            preparing_method(preprocessor)
        self._preprocessor = preprocessor

    _preprocessor: Any = ...

    def __repr__(self) -> str:
        return f"BatchPredictor({self._scoring})"

    @unframed
    def predict(
        self,
        data: Any,
        *,
        feature_columns: str | Sequence[str] | None = None,
        keep_columns: str | Sequence[str] | None = None,
        batch_size: int = BATCH_SIZE,
        min_scoring_workers: int = 1,
        max_scoring_workers: int | None = None,
        num_cpus_per_worker: float | None = None,
        num_gpus_per_worker: float | None = None,
        predict_batch_kwargs: Mapping[str, Any] | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        object_store_memory_per_worker: float | None = None,
        trainer_resources: Any = None,
        **predict_kwargs: Any,
    ) -> Any:
        """Return the predictions for ``data``, row for row and in order, in the form in which it came.

        Parameters
        ----------
        data
            A DataFrame: the result is a DataFrame with the same index. An Arrow Table or RecordBatch: a Table. An
            array (n,) or (n, k…): an array with a result per row, or a dict of arrays if the model has several.
            A ``Dataset``, or the path of a Parquet, CSV or JSON file or folder, or a list of paths: a lazy
            ``Dataset``, which does its work when it is written or looked at.
        feature_columns
            The columns that the model or function gets; default: all. They are those of what the preprocessor gives,
            if there is one.
        keep_columns
            Columns that stand beside the predictions, before them; default: none. They are never converted. Of what
            the preprocessor gives, too.
        batch_size
            Rows per call of the model; the last one may be smaller.
        min_scoring_workers, max_scoring_workers
            How many workers at least and at most; default: as many as there are cores, and none other than this
            process for few rows, or where the model uses all cores by itself (PyTorch, ONNX, XGBoost, LightGBM,
            Keras) and the data are in memory. ``max_scoring_workers=1`` stays in this process, too.
        num_cpus_per_worker, num_gpus_per_worker
            What one worker needs.
        predict_batch_kwargs
            ``{"output_column_name": "score"}`` names the column of a model's only result (default:
            ``predictions``; several results have names of their own); a function that has an argument of this name
            gets it, too. Else options of the predictor, as in
            ``from_checkpoint``; or further arguments of your own ``predict``, or of the function. For PyTorch,
            ``dtype`` is that of the inputs, as in Ray AIR: a ``torch.dtype``, or a dict of them by column.
        predict_kwargs
            The same by name: ``predict(data, dtype=torch.float32)``.
        object_store_memory_per_worker, trainer_resources
            Taken, and of no effect: there is no object store. The preprocessor never runs in workers with a GPU, so
            ``separate_gpu_stage=True`` is taken as well.
        ray_remote_args
            ``num_cpus``, ``num_gpus`` and ``memory`` of one worker are heeded, what concerns Ray's scheduling is of
            no effect, and what would change the result (``runtime_env``, …) is refused.

        Raises
        ------
        ArgumentError
            For a value that makes no sense. An argument that is not known is an ``UnknownArgument``.
        ColumnExists
            A prediction has the name of a column in ``keep_columns``.
        StepError
            What the model or function raises, with the rows at which it was.
        """
        given = given_data(data)
        features = None if feature_columns is None else given_names("feature_columns", feature_columns)
        keep = (
            ()
            if keep_columns is None or len(keep_columns) == 0
            else given_names("keep_columns", keep_columns)
        )
        needs = needs_of(num_cpus_per_worker, num_gpus_per_worker, ray_remote_args)
        if self._scoring.options.get("use_gpu") and needs["num_gpus"] is None:
            needs["num_gpus"] = 1
        if (workers := bounds(min_scoring_workers, max_scoring_workers)) is not None:
            needs["concurrency"] = workers
        options = named_options("predict", predict_batch_kwargs) | self._checked(predict_kwargs)
        prepared = self.get_preprocessor()
        prepare = None if prepared is None else Preprocessing(prepared)
        given.check(features, keep, prepared=prepare is not None)
        if prepare is not None:
            given = Prepared(given, prepare, given_batch_size(batch_size) or BATCH_SIZE)
        size = given_batch_size(batch_size) or BATCH_SIZE
        return self._scoring.score(given, features, keep, size, needs, options)

    def __getattr__(self, name: str) -> Any:
        if name != "predict_pipelined":
            raise AttributeError(f"BatchPredictor has no attribute {name!r}")
        raise NotOffered(f"{name} is not offered here: predict streams datasets and files.")

    def _checked(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of ``predict``; raise ``UnknownArgument`` for those that nothing accepts."""
        accepted = self._scoring.argument_names()
        kwargs = {
            name: value for name, value in kwargs.items() if name != "separate_gpu_stage" or value is False
        }
        for name in kwargs:
            if accepted is not None and name not in (*accepted, OUTPUT):
                known = [*inspect.signature(BatchPredictor.predict).parameters, *accepted, OUTPUT]
                known = [each for each in known if each not in ("self", "predict_kwargs")]
                raise UnknownArgument(f"predict() has no argument {name!r}.{nearest(name, known)}")
        return dict(kwargs)
