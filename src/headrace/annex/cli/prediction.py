"""The arguments of `predict`, `explain` and `estimate`: a model, inputs, columns, workers; and the dataset of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headrace.annex.cli import texts
from headrace.annex.cli.answer import UsageMistake
from headrace.annex.cli.scripts import model_of
from headrace.annex.cli.texts import argument, flag, paths_in
from headrace.core.files.formats import FORMATS
from headrace.plan.logical import COMPARED, from_text
from headrace.readers import by_name

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset

_INPUT = "Input"
_COLUMNS = "Columns"
_MODEL = "Model"
_WORKERS = "Workers of the model"

Text = str | None
Texts = list[str] | None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A model over inputs, as a command line gives it."""

    model: Annotated[
        str,
        argument(
            "MODEL",
            "A model file or folder (ONNX, torch.export, safetensors, XGBoost, Hugging Face, …), or "
            "module:name, a class or function that can be imported here.",
        ),
    ]
    paths: Annotated[Texts, argument("INPUT", "Files, folders or quoted patterns such as 'data/*.csv'.")] = (
        None
    )
    format: Annotated[
        Text,
        flag(
            "--format NAME",
            f"What the inputs are: {', '.join(FORMATS.ours)}. Default: by their names.",
            panel=_INPUT,
            one_of=FORMATS.names,
        ),
    ] = None
    read: Annotated[
        Texts,
        flag(
            "--read NAME=VALUE",
            "An option of the reader, such as hr.read_csv: --read 'delimiter=;'. Repeatable.",
            panel=_INPUT,
        ),
    ] = None
    manifest: Annotated[
        Path | None,
        flag(
            "--manifest FILE",
            "A file that lists the inputs (a path per line, JSON, JSON lines or CSV), relative to its folder.",
            panel=_INPUT,
        ),
    ] = None
    limit: Annotated[int | None, flag("--limit N", "Only the first N rows.", panel=_INPUT, least=0)] = None
    inputs: Annotated[
        Texts,
        flag(
            "--inputs --include -i A,B",
            "Columns that the model reads, in its order. Default: all.",
            panel=_COLUMNS,
        ),
    ] = None
    exclude: Annotated[
        Texts,
        flag("--exclude A,B", "Columns that the model does not read; it reads all others.", panel=_COLUMNS),
    ] = None
    key: Annotated[
        Texts,
        flag(
            "--key A,B",
            "Columns that identify rows: the model does not read them, and only they are carried over.",
            panel=_COLUMNS,
        ),
    ] = None
    column: Annotated[
        str | None, flag("--output NAME", "The new column, or a prefix. Default: prediction.", panel=_COLUMNS)
    ] = None
    keep: Annotated[
        Texts,
        flag(
            "--keep A,B",
            "The columns that are carried over: names, all or none. Default: all, or those of --key.",
            panel=_COLUMNS,
        ),
    ] = None
    replace: Annotated[bool, flag("--replace", "The new column may replace one.", panel=_COLUMNS)] = False
    metric: Annotated[
        Texts,
        flag(
            "--metric NAME=METRIC",
            "Count a metric over the output: 'auc=AUROC(label=y, score=s)'. Repeatable.",
            panel=_COLUMNS,
        ),
    ] = None
    require: Annotated[
        Texts,
        flag(
            "--require 'NAME>=N'",
            "Publish only if a metric, or rows, rejected, nulled, seconds or cost, is so: 'auc>=0.9', "
            "'rejected<=0.001'. Repeatable.",
            panel=_COLUMNS,
        ),
    ] = None
    against: Annotated[
        Text,
        flag(
            "--against OUTPUT",
            "Compare the new rows with this output before publishing: --require 'changed<=0.05'.",
            panel=_COLUMNS,
        ),
    ] = None
    on: Annotated[
        Texts,
        flag(
            "--on COLUMN",
            "The columns that tell a row, for --against. Default: its position.",
            panel=_COLUMNS,
        ),
    ] = None
    model_option: Annotated[
        Texts,
        flag(
            "--model-option -M NAME=VALUE",
            "An argument of the model: device=cuda, architecture=module:Class. Repeatable.",
            panel=_MODEL,
        ),
    ] = None
    sha256: Annotated[
        Text, flag("--sha256 HEX", "The checksum that the model file must have.", panel=_MODEL)
    ] = None
    trust_pickle: Annotated[
        bool,
        flag(
            "--trust-pickle",
            "Read a model file that can run any code. Only if you trust it as your own code.",
            panel=_MODEL,
        ),
    ] = False
    version: Annotated[
        Text,
        flag(
            "--model-version TEXT",
            "A text by which the model is recognised when the command is run again, instead of its content.",
            panel=_MODEL,
        ),
    ] = None
    batch_size: Annotated[str, flag("--batch-size ROWS", "Rows per batch.", panel=_WORKERS)] = "auto"
    batch_size_bytes: Annotated[
        Text, flag("--batch-size-bytes SIZE", "Bytes per batch: 16MiB.", panel=_WORKERS)
    ] = None
    batch_format: Annotated[
        str,
        flag(
            "--batch-format NAME",
            "What a class or function gets: numpy, pandas or pyarrow.",
            panel=_WORKERS,
            one_of="numpy pandas pyarrow",
        ),
    ] = "numpy"
    concurrency: Annotated[
        Text,
        flag("--concurrency N", "Workers for the model: a number, or from-to such as 1-8.", panel=_WORKERS),
    ] = None
    num_cpus: Annotated[float | None, flag("--num-cpus N", "Cores per worker.", panel=_WORKERS)] = None
    num_gpus: Annotated[
        float | None, flag("--num-gpus N", "GPUs per worker; parts such as 0.5, too.", panel=_WORKERS)
    ] = None
    memory: Annotated[Text, flag("--memory SIZE", "Memory per worker: 4GiB.", panel=_WORKERS)] = None
    max_in_flight: Annotated[
        int | None,
        flag(
            "--max-in-flight N",
            "Batches in flight per worker, for a model that waits for a server.",
            panel=_WORKERS,
        ),
    ] = None

    def dataset(self) -> Dataset:
        """Return the dataset: what is read, the model, the metrics."""
        data = self.source()
        model, given = model_of(
            self.model,
            texts.options("--model-option", self.model_option),
            sha256=self.sha256,
            trust_pickle=self.trust_pickle,
        )
        metrics = dict(texts.metric(text) for text in self.metric or ())
        data = data.predict(
            model,
            inputs=self._inputs(data),
            output=self.column,
            keep=self._carried(),
            replace=self.replace,
            batch_size=_batch_size(self.batch_size),
            batch_size_bytes=self.batch_size_bytes,
            batch_format=self.batch_format,  # type: ignore[arg-type]
            concurrency=_concurrency(self.concurrency),
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
            memory=self.memory,
            max_in_flight=self.max_in_flight,
            version=self.version,
            **given,
        )
        data = data.accumulate(**metrics) if metrics else data
        asked = [from_text(text) for text in self.require or ()]
        compared = [name for name, _ in asked if name.partition(".")[0] in COMPARED]
        if (self.against or self.on) and not (compared and self.against):
            raise UsageMistake("--against OUTPUT and --on COLUMN go with --require 'changed<=0.05'.")
        for name, bound in asked:
            if name in compared and self.against:
                data = data.require({name: bound}, against=self.against, on=texts.names("--on", self.on))
            else:
                data = data.require({name: bound})
        return data

    def source(self) -> Dataset:
        """Return the dataset of the inputs alone."""
        paths = list(self.paths or ())
        self._check_for_columns(paths)
        if self.manifest is not None:
            if paths:
                raise UsageMistake("Give either inputs or --manifest, not both.")
            paths = paths_in(self.manifest)
        if not paths:
            raise UsageMistake(
                "There is no input: name files or folders after the model, or give --manifest FILE."
            )
        data = by_name.dataset_of(paths, self.format, texts.options("--read", self.read))
        return data if self.limit is None else data.limit(self.limit)

    def bare(self) -> bool:
        """Say whether nothing but the first word was given, which may be a script then."""
        return all(
            getattr(self, field.name) == field.default for field in fields(self) if field.name != "model"
        )

    def _check_for_columns(self, paths: list[str]) -> None:
        """Explain a column that stands where an input is expected: behind ``--inputs a b``, b is a file."""
        lists = {"inputs": self.inputs, "exclude": self.exclude, "key": self.key, "keep": self.keep}
        given = next((name for name, columns in lists.items() if columns), None)
        stray = [path for path in paths if path.isidentifier() and not os.path.exists(path)]
        if given is not None and stray and len(stray) < len(paths):
            columns = ",".join([*(lists[given] or ()), *stray])
            raise UsageMistake(
                f"There is no input file {stray[0]!r}. If it is a column: names of columns are joined by commas, "
                f"--{given} {columns}."
            )

    def _inputs(self, data: Dataset) -> list[str] | None:
        inputs = texts.names("--inputs", self.inputs)
        without = [*(texts.names("--exclude", self.exclude) or ()), *(texts.names("--key", self.key) or ())]
        if inputs is not None:
            if self.exclude:
                raise UsageMistake("Give either --inputs or --exclude, not both.")
            return inputs
        if not without:
            return None
        columns = data.columns()
        for name in without:
            if name not in columns:
                from headrace.errors import unknown_column

                raise unknown_column("--exclude", name, columns)
        left = [name for name in columns if name not in without]
        if not left:
            raise UsageMistake("No column is left that the model could read.")
        return left

    def _carried(self) -> Any:
        names = texts.names("--keep", self.keep)
        key = texts.names("--key", self.key)
        if names in (["all"], ["none"]):
            if names == ["none"] and key:
                return key
            return names[0]
        if names is None:
            return key or "all"
        return list(dict.fromkeys([*(key or ()), *names]))


def _batch_size(text: str) -> Any:
    return int(text) if text.isdigit() else text


def _concurrency(text: str | None) -> Any:
    if text is None:
        return None
    least, dash, most = text.partition("-")
    if not least.isdigit() or (dash and not most.isdigit()):
        raise UsageMistake(f"--concurrency {text}: it takes a number of workers, or from-to such as 1-8.")
    return (int(least), int(most)) if dash else int(least)
