"""The user's own modules: which they are, what they say, and which others they import.

Read from their files, not from what is imported: workers import them afresh, some only when a function runs.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_users(module: str | None) -> bool:
    """Say whether a module is the user's own: not of Python, not installed, not ours.

    What cannot be found at all is the user's too: a notebook, a console, code that was handed to ``exec``.
    """
    return module is None or module == "__main__" or file_of(module) is not None or not _is_known(module)


def _is_known(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == "headrace":
        return True
    return module in sys.modules or _find(top) is not None


def file_of(module: str) -> str | None:
    """Return the file of a module of the user's, imported or not; None for all others."""
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == "headrace":
        return None
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None) if loaded is not None else _find(module)
    if not isinstance(file, str) or file.startswith(_STANDARD_LIBRARY):
        return None
    return None if any(folder in file for folder in _INSTALLED) else file


def _find(module: str) -> str | None:
    """Look a module up as importing it would, but import nothing on the way."""
    from importlib.machinery import PathFinder

    path = None
    origin = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        try:
            spec = PathFinder.find_spec(name, path) or _find_elsewhere(name, path)
        except (ImportError, SyntaxError, ValueError):  # archives compile what they find
            return None
        if spec is None:
            return None
        origin, path = spec.origin, spec.submodule_search_locations
        if path is None and name != module:
            return None
    return origin


def _find_elsewhere(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask the other finders: one of them knows what ``pip install --editable`` has installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is imported: it is no use of ours that is deprecated
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = (
                find(name, path) if find is not None and not isinstance(finder, type) else None
            )
            if spec is not None:
                return spec
    return None


def contents_of(module: str, file: str) -> tuple[str | None, tuple[str, ...]]:
    """Return what a module says, as a digest, and the names of the user's modules that it imports.

    The digest is None if nobody can read the module.
    """
    try:
        status = os.stat(file)
        return _contents(module, file, status.st_mtime_ns, status.st_size)
    except OSError:  # in an archive, say
        data = _from_loader(module, file)
        return (None, ()) if data is None else _digest(module, file, data)


def _from_loader(module: str, file: str) -> bytes | None:
    from importlib.util import find_spec

    try:
        spec = getattr(sys.modules.get(module), "__spec__", None) or find_spec(module)
        data: bytes = spec.loader.get_data(file)  # type: ignore[union-attr]
    except (AttributeError, ImportError, OSError, SyntaxError, ValueError):
        return None
    return data


@functools.lru_cache(maxsize=4096)
def _contents(module: str, file: str, mtime_ns: int, size: int) -> tuple[str, tuple[str, ...]]:
    with open(file, "rb") as source:
        return _digest(module, file, source.read())


def _digest(module: str, file: str, data: bytes) -> tuple[str, tuple[str, ...]]:
    try:
        read = _Read(ast.parse(data)) if file.endswith(".py") else None
    except (SyntaxError, ValueError, RecursionError):  # it says what it says
        read = None
    if read is None:
        return hashlib.sha256(data).hexdigest(), ()
    package = module if os.path.basename(file) == "__init__.py" else module.rpartition(".")[0]
    names = {name for node in read.imports for name in _imported(node, package)}
    imports = {name for name in names if name != module and file_of(name) is not None}
    return hashlib.sha256(read.text().encode("utf-8", "surrogatepass")).hexdigest(), tuple(sorted(imports))


_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


class _Read:
    """A syntax tree as text: no comments, no layout, no docstrings, sets in one order. And what it imports.

    All in one pass, and with no more words than tell trees apart: ``ast.dump`` takes three times as long, and a job
    cannot begin before.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self._parts: list[str] = []
        self._node(tree)

    def text(self) -> str:
        """Return the text."""
        return "".join(self._parts)

    def _node(self, node: ast.AST) -> None:
        kind = node.__class__
        add = self._parts.append
        add(kind.__name__)
        add("(")
        if kind is ast.Import or kind is ast.ImportFrom:
            self.imports.append(node)  # type: ignore[arg-type]
        elif kind is ast.Set:
            _sort(node)  # type: ignore[arg-type]
        for name in kind._fields:
            if name == "ctx":  # where it stands says that
                continue
            value = getattr(node, name, None)
            if value.__class__ is list:
                skipped = name == "body" and kind in _DOCUMENTED and _begins_with_text(value)
                add("[")
                for each in value[1:] if skipped else value:
                    self._node(each) if isinstance(each, ast.AST) else add(repr(each))
                    add(",")
                add("]")
            elif isinstance(value, ast.AST):
                self._node(value)
            else:
                add(repr(value))
            add(",")
        add(")")


def _begins_with_text(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)


def _sort(node: ast.Set) -> None:
    if all(isinstance(member, ast.Constant) for member in node.elts):
        node.elts.sort(key=ast.dump)


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """Yield what an import names, and the packages above."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from with_parents(alias.name)
        return
    base = node.module or ""
    if node.level:
        above = package.split(".")
        above = above[: len(above) - node.level + 1]
        base = ".".join([*above, base] if base else above)
    if base:
        yield from with_parents(base)
        for alias in node.names:
            yield f"{base}.{alias.name}"


def with_parents(module: str) -> Iterator[str]:
    """Yield the packages above a module, then itself."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])
