"""The dataset that a command is about, without running it: of a model and inputs, or of a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import millrace.launch as launch
from millrace.cli.exits import UsageMistake
from millrace.cli.flags import Flags
from millrace.cli.prediction import Prediction
from millrace.cli.scripts import script_at
from millrace.core.paths import here

if TYPE_CHECKING:
    from millrace.dataset import Dataset


@contextmanager
def dataset_of(what: Prediction, flags: Flags, command: str) -> Iterator[Dataset]:
    """Yield the dataset; a script is run for its variable ``dataset`` alone, and may write nothing."""
    if not _is_script(what):
        yield what.dataset().with_options(**flags.options())
        return
    path = Path(what.model)
    launch.begin(
        (),
        here(),
        forbids=f"`millrace {command}` runs {path} for its dataset alone, and it writes an output when it is run. "
        "Let it say `dataset = …` and leave writing to `millrace run`, or put what writes into main().",
    )
    try:
        flags.into_environment()
        yield _described(path, command)
    finally:
        launch.end()


def _described(path: Path, command: str) -> Dataset:
    from millrace.dataset import Dataset

    data = script_at(path).carry_out((), guard=False).get("dataset")
    if not isinstance(data, Dataset):
        what = "no variable" if data is None else "something else in its variable"
        raise UsageMistake(
            f"{path} has {what} `dataset`. `millrace {command}` takes a script that says "
            "`dataset = mr.read_…(…)`, or a model and inputs."
        )
    return data


def _is_script(what: Prediction) -> bool:
    return what.model.endswith(".py") and what.bare()
