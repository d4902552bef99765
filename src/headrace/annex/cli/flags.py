"""Flags that several commands have: the options of a run, and those of an output."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints

from headrace.annex.cli import texts
from headrace.annex.cli.answer import Answer, UsageMistake
from headrace.annex.cli.help import HelpAll
from headrace.annex.cli.texts import flag
from headrace.core.engine_ports import ENGINES
from headrace.core.files.formats import FORMATS, WRITTEN
from headrace.errors import ArgumentError, nearest
from headrace.plan.verb_options import OF_RUNS

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset
    from headrace.result import Result


_RUN = "How it runs"
_ROWS = "Rows that fail"

Text = str | None


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Options of a run, as a command line gives them."""

    engine: Annotated[
        Text,
        flag(
            "--engine NAME",
            "local (processes, the default), inline (this process), ray.",
            panel=_RUN,
            one_of=ENGINES.names,
        ),
    ] = None
    workers: Annotated[Text, flag("--workers -w N", "Workers. Default: a core each.", panel=_RUN)] = None
    fleet: Annotated[
        bool | None,
        flag(
            "--fleet",
            "Share the work with other machines that are given this command, and one output.",
            panel=_RUN,
        ),
    ] = None
    memory_limit: Annotated[
        Text,
        flag("--memory-limit SIZE", "Memory for the whole run: 16GiB. Default: 80 % of all.", panel=_RUN),
    ] = None
    durability: Annotated[
        Text, flag("--durability NAME", OF_RUNS["durability"], panel=_RUN, one_of="power process")
    ] = None
    shard_rows: Annotated[
        Text, flag("--shard-rows N", "Rows per output file, about. Default: by size.", panel=_RUN)
    ] = None
    progress: Annotated[
        bool | None,
        flag("--progress/--no-progress", "Show progress and a summary. Default: yes.", panel=_RUN),
    ] = None
    log: Annotated[
        Text, flag("--log FILE", "Append the run's events to FILE, as JSON lines.", panel=_RUN)
    ] = None
    metrics_port: Annotated[
        Text, flag("--metrics-port PORT", "Serve the run's numbers to Prometheus at this port.", panel=_RUN)
    ] = None
    option: Annotated[
        list[str] | None,
        flag("--option -O NAME=VALUE", "Any other option of hr.RunOptions: -O stall_timeout=60.", panel=_RUN),
    ] = None
    on_error: Annotated[
        Text,
        flag(
            "--on-error WHAT",
            "raise (default) ends the run, reject sets the row aside, null writes it without a result.",
            panel=_ROWS,
            one_of="raise reject null",
        ),
    ] = None
    max_errors: Annotated[
        Text, flag("--max-errors N", "Rows that may fail, or a share: 0.001.", panel=_ROWS)
    ] = None
    max_retries: Annotated[
        Text,
        flag("--max-retries N", "How often a call is tried again after an error of --retry-on.", panel=_ROWS),
    ] = None
    retry_on: Annotated[
        Text,
        flag("--retry-on ERRORS", "Errors that are temporary: TimeoutError,ConnectionError.", panel=_ROWS),
    ] = None
    batch_timeout: Annotated[
        Text, flag("--batch-timeout SECONDS", "How long one call of the model may take.", panel=_ROWS)
    ] = None
    commit_every: Annotated[
        Text,
        flag("--commit-every SECONDS", "Seconds of work after which results are saved: 30.", panel=_ROWS),
    ] = None
    show_data: Annotated[
        bool | None, flag("--show-data/--hide-data", "Show values of rows in messages.", panel=_ROWS)
    ] = None

    def options(self) -> dict[str, Any]:
        """Return the options that were given, by the names of ``RunOptions``."""
        from headrace.core.option_values import Ray
        from headrace.options import RunOptions, option_from_text, ray_setting, ray_settings
        from headrace.session.event_bus import observers_from_text

        texts = self._texts()
        given = {name: option_from_text(name, text) for name, text in texts.items() if name not in _PARTS}
        parts = {name: text for name, text in texts.items() if name in _PARTS}
        observers = [
            observer
            for name, text in parts.items()
            if name in _OBSERVERS
            for observer in observers_from_text(name, text, _PLACES[name])
        ]
        if observers:
            given["observers"] = observers
        if of_ray := {name: ray_setting(name, text) for name, text in parts.items() if name in _OF_RAY}:
            engine = given.get("engine", RunOptions.from_environment().engine)
            address = engine if str(engine).startswith("ray://") else None
            if RunOptions(engine=engine).traits.is_cluster:
                given["engine"] = Ray(address, **{**ray_settings(), **of_ray})
        return given

    def into_environment(self) -> None:
        """Make the options the defaults of every dataset that this process makes from here on."""
        from headrace.options import variable_of

        self.options()  # raises for what is impossible
        for name, text in self._texts().items():
            os.environ[variable_of(name)] = text

    def _texts(self) -> dict[str, str]:
        from headrace.options import RunOptions

        given: dict[str, str] = {}
        known = [*RunOptions.__dataclass_fields__, *_OF_RAY]
        for name, text in texts.assignments("--option", self.option).items():
            if name not in known:
                _refuse(name, text)
            given[name] = text
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name != "option" and value is not None:
                if name in given:
                    flag = f"--{name.replace('_', '-')}"
                    raise ArgumentError(f"-O {name}={given[name]} and {flag}: give it once, by {flag}.")
                given[name] = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
        return given


_PLACES = {"log": "--log", "metrics_port": "--metrics-port", "observers": "-O observers"}
_OBSERVERS = tuple(_PLACES)
_OF_RAY = ("pool_timeout", "allow_unauthenticated")
_PARTS = (*_OBSERVERS, *_OF_RAY)
"""Settings of an observer or of the cluster, by a command line or the environment."""


def _refuse(name: str, text: str) -> NoReturn:
    """Raise for an option that does not exist; the message names the right place if there is one."""
    from headrace.options import INSTEAD, OF_A_STEP, RunOptions

    dashed = name.replace("_", "-")
    if name in _OBSERVERS:
        raise ArgumentError(f"-O {name}={text}: it has a flag of its own, --{dashed} {text}.")
    if name in OF_A_STEP:
        raise ArgumentError(f"-O {name}={text}: the model has this option: --{dashed} {text}.")
    if name in INSTEAD:
        raise ArgumentError(f"-O {name}={text}: it is not an option of the run: {INSTEAD[name]}.")
    known = [*RunOptions.__dataclass_fields__]
    typed = [
        f"--{each.replace('_', '-')}" if each in Flags.__dataclass_fields__ else f"-O {each}"
        for each in known
    ]
    hint = nearest(name, known) or f" The options are {', '.join(typed)}."
    raise ArgumentError(f"-O {name}={text}: there is no such option.{hint}")


Json = Annotated[bool, flag("--json", "Print one JSON object; all else goes to standard error.")]


def flat(function: Callable[..., Answer | int]) -> Callable[..., Answer | int]:
    """Return a function for typer: dataclass parameters are spread out, and ``--json`` is among the options.

    Whether the answer is wanted as JSON is known before any command runs, so ``function`` gets it only if it has a
    parameter ``json``.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if dataclasses.is_dataclass(kind):
            inner = get_type_hints(kind, include_extras=True)
            made = [_parameter(field, inner[field.name]) for field in dataclasses.fields(kind)]
            groups[name] = (kind, [each.name for each in made])
            parameters += made
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=kind))
    wants_flag = "json" in hints
    if not wants_flag:
        parameters.append(
            inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
        )

    parameters.append(
        inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
    )

    @functools.wraps(function)
    def spread(**given: Any) -> Answer | int:
        del given["help_all"]
        if not wants_flag:
            del given["json"]
        for name, (kind, names) in groups.items():
            given[name] = kind(**{each: given.pop(each) for each in names})
        answer = function(**given)
        return answer.of(function.__name__.replace("_", "-")) if isinstance(answer, Answer) else answer

    del spread.__wrapped__  # typer would read the signature of that
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread


def _parameter(field: dataclasses.Field[Any], kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


# ----------------------------------------------------------------
# Flags of the commands that write: the output's format, and what happens to one that is there.

_PANEL = "Output"


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
            "--output-format NAME",
            f"{', '.join(WRITTEN)}. Default: parquet.",
            panel=_PANEL,
            one_of=lambda: list(_written()),
        ),
    ] = "parquet"
    write: Annotated[
        list[str] | None,
        flag(
            "--write NAME=VALUE",
            "An option of the writer, such as Dataset.write_parquet: --write compression=zstd.",
            panel=_PANEL,
        ),
    ] = None
    mode: Annotated[
        Text, flag("--mode NAME", OF_RUNS["mode"], panel=_PANEL, one_of="resume overwrite ignore error")
    ] = None
    on_change: Annotated[
        Text, flag("--on-change WHAT", OF_RUNS["on_change"], panel=_PANEL, one_of="refuse continue restart")
    ] = None
    incremental: Annotated[bool | None, flag("--incremental", OF_RUNS["incremental"], panel=_PANEL)] = None
    refresh: Annotated[
        Text, flag("--refresh WHAT", OF_RUNS["refresh"], panel=_PANEL, one_of="changed rejected")
    ] = None
    fix: Annotated[Text, flag("--fix FILE", OF_RUNS["fix"], panel=_PANEL)] = None
    incremental_key: Annotated[Text, flag("--incremental-key COLUMNS", OF_RUNS["key"], panel=_PANEL)] = None
    stats: Annotated[
        Path | None,
        flag(
            "--stats FILE",
            "Leave a JSON file with the counts of rows done, failed and left, however the run ends.",
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
        options = texts.options("--write", self.write)
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
