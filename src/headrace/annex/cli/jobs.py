"""The dataset that a command is about, without running it: of a model and inputs, or of a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.annex.cli.answer import UsageMistake
from headrace.annex.cli.flags import Flags
from headrace.annex.cli.prediction import Prediction
from headrace.annex.cli.scripts import script_at
from headrace.session import invocation

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset


@contextmanager
def dataset_of(what: Prediction, flags: Flags, command: str) -> Iterator[Dataset]:
    """Yield the dataset; a script is run for its variable ``dataset`` alone, and may write nothing."""
    if not _is_script(what):
        yield what.dataset().with_options(**flags.options())
        return
    path = Path(what.model)
    reason = (
        f"`headrace {command}` runs {path} only to get its dataset, but the script also writes an output. Set "
        "`dataset = …` in it and leave the writing to `headrace run`, or move the writing into main()."
    )
    present = invocation.current()
    assert present is not None  # the program carries out one command line
    with present.without_writing(reason):
        flags.into_environment()
        yield _described(path, command)


def _described(path: Path, command: str) -> Dataset:
    from headrace.dataset.dataset import Dataset

    data = script_at(path).carry_out((), guard=False).get("dataset")
    if not isinstance(data, Dataset):
        what = "no variable" if data is None else "something else in its variable"
        raise UsageMistake(
            f"{path} has {what} `dataset`. `headrace {command}` takes a script with `dataset = hr.read_…(…)`, or a "
            "model and inputs."
        )
    return data


def _is_script(what: Prediction) -> bool:
    return what.model.endswith(".py") and what.bare()
