"""Help that fits two screens: the common options of a command; ``--help-all`` has the others."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headrace.core.door import Table

_COMMON = {
    "args",
    "help",
    "json",
    "limit",
    "max_errors",
    "mode",
    "num_gpus",
    "on_change",
    "on_error",
    "out",
    "workers",
}
_COMMON |= {"api_key_env", "batch_size", "column", "endpoint", "inputs", "keep", "model_option", "vllm"}
_FEW = 12  # options: so many are shown without a choice
_COLUMN = 24  # where the words begin
_WIDEST = 100


OURS: dict[str, Callable[..., Any]] = {}
COMMANDS: Table[Callable[..., Any]] = Table("commands", OURS)
"""Commands: ours, which typer carries out, and functions ``main(argv)`` that installed packages bring."""


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta["help_all"] = True
        typer.echo(context.get_help())
        raise typer.Exit()


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options.", hidden=True),
]


class HelpCommand(TyperCommand):
    """A command with such help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write all of it."""
        formatter.write(command_help(self, ctx))


class HelpGroup(TyperGroup):
    """A group of commands with such help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write all of it."""
        formatter.write(group_help(self, ctx))


def command_help(command: Any, ctx: Any) -> str:
    """Return the help of one command."""
    first, *more = _paragraphs(command.help)
    lines = [*_wrapped(first), "", *_usage(command, ctx), ""]
    for paragraph in more:
        lines += [*_wrapped(paragraph), ""]
    arguments = [param for param in command.get_params(ctx) if param.param_type_name == "argument"]
    if arguments:
        lines += [_heading("Arguments"), *_table((_signature(each), each.help) for each in arguments), ""]
    for heading, options in _grouped(command, ctx):
        lines += [_heading(heading), *_table((_names(each), _words(each)) for each in options), ""]
    if _left_out(command, ctx):
        text = f"{len(_left_out(command, ctx))} more options: {ctx.command_path} --help-all"
        lines += [_styled(text, "2"), ""]
    return "\n".join([*lines, *_examples(command.epilog)]).rstrip() + "\n"


def group_help(group: Any, ctx: Any) -> str:
    """Return the help of a group: its commands, a line each."""
    lines = [
        *_wrapped(_paragraphs(group.help)[0]),
        "",
        f"{_heading('Usage')} {ctx.command_path} COMMAND",
        "",
    ]
    panels: dict[str, list[tuple[str, str]]] = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        panels.setdefault(command.rich_help_panel or "Commands", []).append((name, _short(command.help)))
    for panel, commands in panels.items():
        lines += [_heading(panel), *_table(commands, column=12), ""]
    if brought := COMMANDS.brought:
        lines += [_heading("Of installed packages"), *_table(brought.items(), column=12), ""]
    options = [param for param in group.get_params(ctx) if param.param_type_name == "option"]
    lines += [_heading("Options"), *_table((_names(each), _words(each)) for each in options), ""]
    return "\n".join([*lines, *_examples(group.epilog)]).rstrip() + "\n"


# ---------------------------------------------------------------- which options


def _options(command: Any, ctx: Any) -> list[Any]:
    return [param for param in command.get_params(ctx) if param.param_type_name == "option"]


def _left_out(command: Any, ctx: Any) -> list[Any]:
    """Return the options that only ``--help-all`` shows."""
    shown = [each for each in _options(command, ctx) if not each.hidden]
    if ctx.meta.get("help_all") or len(shown) <= _FEW:
        return []
    return [each for each in shown if each.name not in _COMMON and not each.required]


def _grouped(command: Any, ctx: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield options under their headings; under one if some are left out."""
    hidden = {each.name for each in _left_out(command, ctx)}
    options = [each for each in _options(command, ctx) if not each.hidden and each.name not in hidden]
    if hidden:
        place = {"json": 2, "help": 3}  # behind the others; what is needed stands first
        yield "Options", sorted(options, key=lambda each: 0 if each.required else place.get(each.name, 1))
        return
    panels: dict[str, list[Any]] = {}
    for each in options:
        panels.setdefault(getattr(each, "rich_help_panel", None) or "Options", []).append(each)
    yield from panels.items()


# ---------------------------------------------------------------- words


def _usage(command: Any, ctx: Any) -> list[str]:
    needed = [_names(each).split(", ")[-1] for each in _options(command, ctx) if each.required]
    arguments = [_signature(each) for each in command.get_params(ctx) if each.param_type_name == "argument"]
    words = " ".join(["Usage:", ctx.command_path, *arguments, *needed, "[OPTIONS]"])
    first, *more = textwrap.wrap(words, _width(), subsequent_indent=" " * 7, break_on_hyphens=False)
    return [first.replace("Usage:", _heading("Usage")), *more]


def _signature(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    if argument.required or name.startswith("["):
        return str(name)
    return f"[{name}]{'...' if argument.nargs == -1 else ''}"


def _names(option: Any) -> str:
    """Return the names of an option, the short one first, and what it takes."""
    short = [name for name in option.opts if not name.startswith("--")]
    long = [name for name in option.opts if name.startswith("--")]
    if option.is_flag:
        return ", ".join([*short, *long[:1], *option.secondary_opts])
    return f"{', '.join([*short, *long[:1]])} {option.metavar or option.name.upper()}"


def _words(option: Any) -> str:
    text = (option.help or "").strip()
    default = option.default
    if option.name == "help":
        text = "Show this help."
    if option.required:
        text += " Required."
    elif isinstance(default, str) and default and "Default" not in text:
        text += f" Default: {default}."
    return text


def _short(text: str | None) -> str:
    """Return what a command does, without the details behind a colon.

    >>> _short("Run a model over files: every row gets a result.")
    'Run a model over files'
    """
    return re.split(r"[:;.](?:\s|$)", _paragraphs(text)[0], maxsplit=1)[0]


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(part.split()) for part in (text or "").split("\n\n") if part.strip()] or [""]


# ---------------------------------------------------------------- lines


def _width() -> int:
    return max(40, min(_WIDEST, shutil.get_terminal_size().columns)) - 1


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _width()) or [""]


def _table(rows: Iterable[tuple[str, str | None]], *, column: int = _COLUMN) -> Iterator[str]:
    """Yield names with their words beside them, or below where names are long."""
    for name, text in rows:
        words = textwrap.wrap(text or "", _width() - column) or [""]
        if len(name) + 4 <= column:
            yield f"  {_styled(name, '36')}{' ' * (column - 2 - len(name))}{words.pop(0)}"
        else:
            yield f"  {_styled(name, '36')}"
        yield from (" " * column + line for line in words)


def _examples(text: str | None) -> Iterator[str]:
    """Yield the lines at the end: those that stand at the margin are headings; long commands go on behind a \\.

    What a command does, some spaces behind it, stands below where a line is too long.
    """
    for line in (text or "").rstrip().splitlines():
        if line and not line.startswith(" "):
            yield _heading(line)
            continue
        if len(line) <= _width():
            yield line
            continue
        command, _, does = line.strip().partition("   ")
        parts = textwrap.wrap(command, _width() - 6, break_long_words=False, break_on_hyphens=False) or [""]
        yield from (f"{'    ' if i else ''}  {part} \\" for i, part in enumerate(parts[:-1]))
        yield f"{'    ' if len(parts) > 1 else ''}  {parts[-1]}"
        yield from (
            f"      {part}" for part in textwrap.wrap(f"# {does.strip()}" if does else "", _width() - 6)
        )


def _heading(text: str) -> str:
    return _styled(f"{text}:", "1")


def _styled(text: str, style: str) -> str:
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"\x1b[{style}m{text}\x1b[0m"
