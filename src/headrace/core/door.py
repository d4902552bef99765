"""The door: what is found by its name, whether it is ours or an installed package brings it.

A package brings something by an entry point of a group such as ``headrace.sources``. Ours is in a table beside the
place where it is looked up, so a name of ours is found without a look at any package. Packages are read when a name
is none of ours, once in a process, and imported when such a name is used.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from importlib import import_module
from inspect import isfunction
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from headrace.core.terminal import one_line
from headrace.errors import MissingLibrary, PackageUnusable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


Found = TypeVar("Found")
P = TypeVar("P")
_PREFIX = "headrace."


class Table(Generic[Found]):
    """All of one kind, by name: ``ours``, and what entry points of the group ``headrace.<kind>`` name.

    A value of ``ours`` is what is looked for, or where it is: ``"module:name"``. What a package brings has to be
    callable, or have all ``attributes``; with ``classes`` it is a class.
    """

    def __init__(
        self,
        kind: str,
        ours: Mapping[str, Found | str],
        *,
        attributes: tuple[str, ...] = (),
        classes: bool = False,
    ) -> None:
        self.kind = kind
        self.ours = ours
        self.attributes = attributes
        self.classes = classes

    def get(self, name: str) -> Found | None:
        """Return what has this name, None if nothing has.

        Raises ``PackageUnusable`` if a package brings it that cannot be used.
        """
        found = self.ours.get(name)
        if isinstance(found, str):
            return cast(Found, loaded(found))
        if found is not None or name not in self.brought:
            return found
        return self._loaded(name)

    @functools.cached_property
    def brought(self) -> Mapping[str, str]:
        """The names that only packages bring, each with the package; nothing is imported."""
        found = {
            name: " and ".join(package for package, _ in entries)
            for name, entries in _installed().get(self.kind, {}).items()
        }
        for name in found.keys() & self.ours.keys():
            import logging

            logging.getLogger("headrace").warning(
                f"The package {found.pop(name)} brings the {self.kind[:-1]} {name!r}. It is not used, as Headrace "
                "itself has one of this name. The authors of the package have to choose another name."
            )
        return found

    def names(self) -> list[str]:
        """Return all names: ours, then those that packages bring."""
        return [*self.ours, *self.brought]

    def usable(self) -> dict[str, Found]:
        """Import all that packages bring, and return what can be used."""
        return {name: found for name, found in self._all.items() if not isinstance(found, PackageUnusable)}

    def unusable(self) -> str:
        """Return what is wrong with that which cannot be used, "" if there is none."""
        return "".join(f" {found}" for found in self._all.values() if isinstance(found, PackageUnusable))

    def refuse(self, name: str, value: Any, wanted: str) -> PackageUnusable:
        """Return the error for a function of a package that returned ``value``."""
        return PackageUnusable(
            f"The {self.kind[:-1]} {name!r} of the package {self.brought[name]} returned "
            f"{type(value).__name__}, and not {wanted}. This is a fault of the package: report it to its authors."
        )

    @functools.cached_property
    def _all(self) -> dict[str, Found | PackageUnusable]:
        found: dict[str, Found | PackageUnusable] = {}
        for name in self.brought:
            try:
                found[name] = self._loaded(name)
            except PackageUnusable as error:
                found[name] = error
        return found

    def _loaded(self, name: str) -> Found:
        (package, entry), *others = _installed()[self.kind][name]
        what = f"the {self.kind[:-1]} {name!r}"
        if others:
            raise PackageUnusable(
                f"Several installed packages bring {what}: {self.brought[name]}. Keep one of them, and remove the "
                f"others: pip uninstall {others[0][0]}"
            )
        try:
            found = entry.load()
        except (Exception, SystemExit) as error:
            raise PackageUnusable(
                f"The package {package} brings {what}, but {entry.value} cannot be imported: {type(error).__name__}: "
                f"{one_line(str(error))}. Update the package, or remove it: pip uninstall {package}"
            ) from error
        missing = [each for each in self.attributes if not hasattr(found, each)]
        if missing or not (isinstance(found, type) if self.classes else self.attributes or callable(found)):
            wanted = f"have {', '.join(self.attributes)}" if self.attributes else "be a function or a class"
            raise PackageUnusable(
                f"The package {package} brings {what}, but {entry.value} is {one_line(repr(found))[:80]}. It has to "
                f"{'be a class and to ' if self.classes else ''}{wanted}. This is a fault of the package: report it "
                "to its authors."
            )
        return cast(Found, found)


def loaded(where: str) -> Any:
    """Import what is at ``"module:name"``."""
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)


def annex(name: str) -> ModuleType | None:
    """Return a module of our annexes, such as ``"lakes.readers"``; None where the annex is not there."""
    try:
        return import_module(f"headrace.annex.{name}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("headrace.annex"):
            raise
        return None


@functools.cache
def _installed() -> Mapping[str, Mapping[str, list[tuple[str, EntryPoint]]]]:
    """Return what all installed packages bring: by kind and name, the package and its entry point."""
    from importlib.metadata import distributions  # takes longer than all of Headrace's own start

    found: dict[str, dict[str, list[tuple[str, EntryPoint]]]] = {}
    seen = set()
    for each in distributions():
        try:
            if f"[{_PREFIX}" not in (each.read_text("entry_points.txt") or ""):
                continue
            entries, package = each.entry_points, str(each.metadata["Name"])
        except Exception:  # what is damaged brings nothing, and keeps nobody from finding the others
            continue
        if package in seen:  # it stands on sys.path twice, and the first is imported
            continue
        seen.add(package)
        for entry in entries:
            if entry.group.startswith(_PREFIX):
                names = found.setdefault(entry.group.removeprefix(_PREFIX), {})
                names.setdefault(entry.name, []).append((package, entry))
                names[entry.name].sort(key=lambda each: each[0])  # a disk lists them in any order
    return found


class _Completed:
    def __init__(self, value: Any, port: type) -> None:
        self._value, self._port = value, port

    def __getattr__(self, name: str) -> Any:
        default = getattr(self._port, name)
        if not isfunction(default):
            return getattr(self._value, name, default)
        found = getattr(self._value, name, None)
        return found if callable(found) else MethodType(default, self)


def completed(value: Any, port: type[P]) -> P:
    """Return a value as its port has it: what it lacks is as the port says, whether it inherits from it or not.

    >>> from headrace.core.model_ports import PredictorParts
    >>> completed(None, PredictorParts).in_flight
    2
    """
    return cast("P", _Completed(value, port))


def lacking(value: Any, port: type) -> list[str]:
    """Return what a value, or a class, has not of what a port asks for: of things that users and packages give.

    >>> from headrace.core.model_ports import Observer
    >>> lacking([], Observer)
    ['on_event']
    """
    return [
        name
        for name, asked in vars(port).items()
        if name[0] != "_"
        and not (callable(getattr(value, name, None)) if isfunction(asked) else hasattr(value, name))
    ]


def fills(value: Any, port: type) -> bool:
    """Say whether a value, or a class, has all that a port asks for.

    >>> from headrace.core.source_ports import Source
    >>> from headrace.sources.range import RangeSource
    >>> fills(RangeSource(3), Source), fills("a path", Source)
    (True, False)
    """
    return not lacking(value, port)


# ---------------------------------------------------------------- libraries that are missing

# What pip is given: the folder of a clone; "headrace" as soon as that name on the index is this project.
DISTRIBUTION = "."


def install_hint(extra: str) -> str:
    """Return the command that installs an extra of this distribution, and where to run it.

    >>> print(install_hint("torch"))
    in a clone of Headrace, run: pip install ".[torch]"
    """
    command = f'pip install "{DISTRIBUTION}[{extra}]"'
    return f"in a clone of Headrace, run: {command}" if DISTRIBUTION == "." else command


_PACKAGES = {"libarchive": "libarchive-c", "smbclient": "smbprotocol"}  # by module; most are named alike


def needed_by(what: str, error: ImportError) -> str:
    """Return what to install for something that another library opens, and for which it could not import a module.

    >>> print(needed_by("hf://", ModuleNotFoundError(name="huggingface_hub")))
    hf:// needs the package huggingface_hub, which is not installed: pip install huggingface_hub
    """
    module: str = ""
    cause: BaseException | None = error
    while isinstance(cause, ImportError):
        module = (cause.name or module).partition(".")[0]
        cause = cause.__cause__ or cause.__context__
    if not module:
        return f"{what} needs a package that is not installed: {error}"
    package = _PACKAGES.get(module, module)
    return f"{what} needs the package {package}, which is not installed: pip install {package}"


def library(verb: str, name: str, extra: str = "") -> Any:
    """Import a library, or raise with the extra that installs it; default: the one of its name.

    >>> library("to_x", "no_such_library")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    headrace.errors.MissingLibrary: to_x() needs no_such_library, which is not installed: in a clone of Headrace, ...
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise  # the library is here, but something that it needs is not
        raise MissingLibrary(
            f"{verb}() needs {name}, which is not installed: {install_hint(extra or name)}."
        ) from None
