"""Makes Markdown of docstrings as they are written here: examples in prose, and names that others explain.

An extension of griffe, which reads the sources for the reference of the documentation site.
"""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import griffe

PAGES = Path(__file__).parents[1] / "docs" / "reference"
_DIRECTIVE = re.compile(r"^::: ([\w.]+)", re.MULTILINE)
_EXAMPLE = re.compile(r"(?:^|\n\n)(>>> .*?)(?=\n\n|\Z)", re.DOTALL)
_SECTION = re.compile(r"^Examples\n-+$", re.MULTILINE)
_DASHES = re.compile(r"-+(\n|$)")
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")
_SHARED = re.compile(r"Unpack\[(\w+)\]")
_NAME = re.compile(r"(?<!`)``(?:(?:hr|errors)\.)?([A-Za-z_]\w*)``(?!`)")


def with_fences(text: str) -> str:
    """Put examples that stand in the prose of a docstring between fences; a section of examples has no need.

    >>> with_fences("Add.\\n\\n>>> 1 + 1\\n2")
    'Add.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    section = _SECTION.search(text)
    prose, rest = (text[: section.start()], text[section.start() :]) if section else (text, "")
    fenced = _EXAMPLE.sub(lambda found: f"\n\n```pycon\n{found[1].rstrip()}\n```", prose)
    return re.sub(r"^::\n", "", fenced, flags=re.MULTILINE) + rest


def linked(text: str, targets: dict[str, str]) -> str:
    """Make links of the names in double backticks that have a place of their own in the reference.

    >>> linked("See ``RunOptions`` and ``x``.", {"RunOptions": "headrace.RunOptions"})
    'See [`RunOptions`][headrace.RunOptions] and ``x``.'
    """
    plain = _ROLE.sub(r"``\1``", text)
    return _NAME.sub(
        lambda found: f"[`{found[1]}`][{targets[found[1]]}]" if found[1] in targets else found[0], plain
    )


def in_chunks(text: str) -> list[str]:
    """Cut a docstring where prose follows a section such as Parameters, which has no end mark of its own.

    >>> in_chunks("Add.\\n\\nParameters\\n-----\\na\\n    One.\\n\\nRaises nothing.")
    ['Add.\\n\\nParameters\\n-----\\na\\n    One.', 'Raises nothing.']
    """
    chunks: list[list[str]] = [[]]
    within = ""
    for paragraph in text.split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if _DASHES.match(rest):
            within = first
        elif within and within != "Examples" and first.strip() == first and not rest.startswith(" "):
            within = ""
            chunks.append([])
        chunks[-1].append(paragraph)
    return ["\n\n".join(chunk) for chunk in chunks]


def documented() -> list[str]:
    """Return what the pages of the reference show, in their order, by its full name."""
    return [name for page in sorted(PAGES.glob("*.md")) for name in _DIRECTIVE.findall(page.read_text())]


def with_shared_options(function: griffe.Function) -> None:
    """Show keywords that a function takes by ``**options: Unpack[StepOptions]`` as its own."""
    for parameter in list(function.parameters):
        match = _SHARED.fullmatch(str(parameter.annotation or ""))
        if match is None:
            continue
        del function.parameters[parameter.name]
        options = function.module[match[1]]
        shared = options.final_target if options.is_alias else options
        for each in (*reversed(shared.mro()), shared):
            for name, attribute in each.members.items():
                kind = griffe.ParameterKind.keyword_only
                function.parameters.add(
                    griffe.Parameter(name, annotation=attribute.annotation, kind=kind, default="None")
                )


def examples_first(sections: list[griffe.DocstringSection]) -> list[griffe.DocstringSection]:
    """Put examples right behind the words that a docstring begins with: who looks something up wants to see it.

    >>> text, options = griffe.DocstringSectionText("Add."), griffe.DocstringSectionParameters([])
    >>> shown = griffe.DocstringSectionText("```pycon\\n>>> 1 + 1\\n2\\n```")
    >>> [section.kind.value for section in examples_first([text, options, shown])]
    ['text', 'text', 'parameters']
    """

    def is_example(section: griffe.DocstringSection) -> bool:
        if section.kind is griffe.DocstringSectionKind.text:
            return str(section.value).startswith("```pycon")
        return section.kind is griffe.DocstringSectionKind.examples

    first, others = sections[:1], sections[1:]
    return [*first, *filter(is_example, others), *(each for each in others if not is_example(each))]


class Sectioned(griffe.Docstring):
    """A docstring in which prose may follow a section."""

    def parse(self, parser: Any = None, **options: Any) -> list[griffe.DocstringSection]:
        """Parse it chunk by chunk."""
        chunks = [
            griffe.Docstring(chunk, lineno=self.lineno, parent=self.parent) for chunk in in_chunks(self.value)
        ]
        options = {**self.parser_options, **options}
        sections = [section for chunk in chunks for section in chunk.parse(parser or self.parser, **options)]
        kinds = griffe.DocstringSectionKind
        for section in sections:
            if section.kind is kinds.raises:
                for error in section.value:
                    error.annotation = self._errors(str(error.annotation))
            elif section.kind is kinds.parameters:
                for parameter in section.value:
                    self._complete(parameter)
            elif section.kind is kinds.attributes:
                section.value = [each for attribute in section.value for each in self._apart(attribute)]
        return examples_first(sections)

    def _complete(self, parameter: griffe.DocstringParameter) -> None:
        """Give a parameter that shares its words with others its own annotation and default value."""
        if parameter.name in (known := getattr(self.parent, "parameters", ())):
            parameter.annotation = known[parameter.name].annotation
            if known[parameter.name].default is not None:
                parameter.value = str(known[parameter.name].default)

    def _apart(self, attribute: griffe.DocstringAttribute) -> list[griffe.DocstringAttribute]:
        """Take attributes apart that share their words."""
        return [
            griffe.DocstringAttribute(
                name, annotation=self.parent.members[name].annotation, description=attribute.description
            )
            for name in attribute.name.split(", ")
        ]

    def _errors(self, names: str) -> griffe.Expr:
        """Return names of errors as what resolves to their classes, wherever they are imported."""
        ours = self.parent.package["errors"]
        found = [
            griffe.ExprName(name, parent=ours if name in ours.members else self.parent)
            for name in re.findall(r"\w+", names)
        ]
        return griffe.ExprTuple(found, implicit=True) if len(found) > 1 else found[0]


class Prose(griffe.Extension):
    """Rewrites every docstring of the package when it has been read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstrings of ``pkg``."""
        metrics = pkg["accumulators"]
        for name in (
            metrics.exports or ()
        ):  # griffe leaves names out that come by ``*`` and were imported there
            pkg.set_member(str(name), griffe.Alias(str(name), metrics[str(name)].target_path, parent=pkg))
        targets = {}
        for name in documented():
            shown = pkg[name.removeprefix("headrace.")]
            if name.startswith("headrace.compat."):
                continue  # Ray's words mean other things elsewhere
            if shown.is_module:  # a page that shows all classes of one
                classes = [each for each, it in shown.members.items() if isinstance(it, griffe.Class)]
                targets |= {each: f"{name}.{each}" for each in classes}
            else:
                targets[name.rpartition(".")[2]] = name
        self._walk(pkg, {name: to for name, to in targets.items() if not hasattr(builtins, name)})

    def _walk(self, found: griffe.Object, targets: dict[str, str]) -> None:
        if isinstance(found, griffe.Function):
            with_shared_options(found)
        if found.docstring is not None:
            own = {found.name, *(parameter.name for parameter in getattr(found, "parameters", ()))}
            others = {name: to for name, to in targets.items() if name not in own}
            text = linked(with_fences(found.docstring.value), others)
            found.docstring = Sectioned(
                text,
                lineno=found.docstring.lineno,
                endlineno=found.docstring.endlineno,
                parent=found,
                parser=found.docstring.parser,
                parser_options=found.docstring.parser_options,
            )
        for member in found.members.values():
            if not member.is_alias and isinstance(member, griffe.Object):
                self._walk(member, targets)
