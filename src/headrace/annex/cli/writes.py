"""Flags of the commands that write: the output's format, and what happens to one that is there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headrace.annex.cli import texts
from headrace.annex.cli.answer import UsageMistake
from headrace.annex.cli.flags import flag
from headrace.core.files.formats import FORMATS, WRITTEN
from headrace.errors import nearest
from headrace.plan.write_options import OF_RUNS

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset
    from headrace.result import Result

_PANEL = "Output"

Text = str | None


def _written() -> tuple[str, ...]:
    """Return the formats of files, and what installed packages write to."""
    from headrace.dataset.dataset import TARGETS

    ours = FORMATS.ours
    formats = (name for name, each in FORMATS.usable().items() if name not in ours and each.writer)
    return *WRITTEN, *TARGETS.brought, *formats


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output's format and mode, as a command line gives them."""

    output_format: Annotated[
        str,
        flag(
            "--output-format",
            metavar="NAME",
            help=f"{', '.join(WRITTEN)}. Default: parquet.",
            panel=_PANEL,
            one_of=lambda: list(_written()),
        ),
    ] = "parquet"
    write: Annotated[
        list[str] | None,
        flag(
            "--write",
            metavar="NAME=VALUE",
            help="An option of the writer, such as Dataset.write_parquet: --write compression=zstd.",
            panel=_PANEL,
        ),
    ] = None
    mode: Annotated[
        Text,
        flag(
            "--mode",
            metavar="NAME",
            help=OF_RUNS["mode"],
            panel=_PANEL,
            one_of="resume overwrite ignore error",
        ),
    ] = None
    on_change: Annotated[
        Text,
        flag(
            "--on-change",
            metavar="WHAT",
            help=OF_RUNS["on_change"],
            panel=_PANEL,
            one_of="refuse continue restart",
        ),
    ] = None
    incremental: Annotated[bool | None, flag("--incremental", help=OF_RUNS["incremental"], panel=_PANEL)] = (
        None
    )
    refresh: Annotated[
        Text,
        flag("--refresh", metavar="WHAT", help=OF_RUNS["refresh"], panel=_PANEL, one_of="changed rejected"),
    ] = None
    fix: Annotated[Text, flag("--fix", metavar="FILE", help=OF_RUNS["fix"], panel=_PANEL)] = None
    incremental_key: Annotated[
        Text, flag("--incremental-key", metavar="COLUMNS", help=OF_RUNS["key"], panel=_PANEL)
    ] = None
    stats: Annotated[
        Path | None,
        flag(
            "--stats",
            metavar="FILE",
            help="Leave a JSON file with the counts of rows done, failed and left, however the run ends.",
            panel=_PANEL,
        ),
    ] = None

    def write_dataset(self, data: Dataset, output: Path) -> Result:
        """Run a dataset into a folder, or to an address."""
        names = WRITTEN if self.output_format in WRITTEN else _written()
        if self.output_format not in names:
            raise UsageMistake(
                f"--output-format {self.output_format}: it is one of {', '.join(names)}."
                f"{nearest(self.output_format, names)}"
            )
        options: dict[str, Any] = {
            name: texts.value_of(text) for name, text in texts.assignments("--write", self.write).items()
        }
        for name, way in {
            "path": "-o OUT",
            **{each: f"--{each.replace('_', '-')}" for each in self.modes() if each != "key"},
            **({"key": "--incremental-key"} if self.incremental_key else {}),
        }.items():
            if name in options:
                raise UsageMistake(f"--write {name}={options[name]}: give it by {way}.")
        options |= self.modes()
        write = getattr(data, f"write_{self.output_format}")
        result: Result = write(texts.output_of(output), **options)
        return result

    def modes(self) -> dict[str, Any]:
        """Return what is to happen to an output that is there, as far as it was given."""
        from headrace.options import option_from_text

        given: dict[str, Any] = {name: getattr(self, name, None) for name in OF_RUNS}  # some have no flag
        if self.incremental_key is not None:
            given["key"] = option_from_text("key", self.incremental_key)
        return {name: value for name, value in given.items() if value is not None}

    def check_stats(self, out: Path | None) -> None:
        """Refuse, before anything is done, a file for the stats that could not be written, or that lies in OUT."""
        if self.stats is None:
            return
        folder = self.stats.absolute().parent
        if not (folder.is_dir() and os.access(folder, os.W_OK)) or self.stats.is_dir():
            raise UsageMistake(
                f"--stats {self.stats} cannot be written: name a file in a folder that exists."
            )
        if out is not None and folder.resolve() == out.resolve():
            raise UsageMistake(
                f"--stats {self.stats} lies in the output, where a reader would read it as rows: put it into another "
                "place."
            )

    def leave_stats(self, data: dict[str, Any]) -> None:
        """Write the file that ``--stats`` names, at once or not at all."""
        if self.stats is None:
            return
        temporary = self.stats.with_name(f".{self.stats.name}.tmp")
        try:
            temporary.write_text(json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n", "utf-8")
            temporary.replace(self.stats)
        except OSError as error:
            raise UsageMistake(f"--stats {self.stats} cannot be written: {error.strerror}.") from error
