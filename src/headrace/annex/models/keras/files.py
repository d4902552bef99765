"""What a Keras file or folder holds, seen without Keras: which format, whether code is in it, what its content is."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import zipfile
import zlib
from typing import Any, Literal

import numpy as np

from headrace.core.files.artifacts import (
    Artifact,
    NotReadable,
    check_inflated,
    from_json,
    limited,
    loading_call,
    names_in_zip,
    open_regular,
)
from headrace.core.files.formats import model_format
from headrace.errors import ModelUnreadable, UntrustedPickle

Format = Literal["archive", "hdf5", "saved_model"]

_HDF5 = b"\x89HDF\r\n\x1a\n"  # https://docs.hdfgroup.org/hdf5/develop/_f_m_t3.html
_ARCHIVE = {"config.json", "metadata.json"}
_FOREIGN = ("TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer")


def format_of(path: str) -> Format | None:
    """Return which of the formats is at ``path``, by content; an HDF5 file by its suffix too. Never raises."""
    if os.path.isdir(path):
        forms = ("saved_model.pb", "saved_model.pbtxt")
        return "saved_model" if any(os.path.isfile(os.path.join(path, name)) for name in forms) else None
    try:
        with open_regular(path) as file:
            head = file.read(8)
    except (OSError, NotReadable):
        return None
    if head == _HDF5:
        return "hdf5" if model_format(path, "keras") else None
    names = names_in_zip(path) if head[:2] == b"PK" else None
    return "archive" if names is not None and set(names) >= _ARCHIVE else None


def checked_format(artifact: Artifact, *, trust_pickle: bool) -> Format:
    """Return the format of a model; raises ``ModelUnreadable`` for none, ``UntrustedPickle`` for code in it."""
    path = artifact.path
    found = format_of(path)
    if found is None:
        raise ModelUnreadable(
            f"{path} is not a whole Keras model: neither a .keras archive, nor an HDF5 file, nor a folder "
            f"with saved_model.pb. Copy it again, or save it again with model.save('model.keras')."
        )
    try:
        if found == "archive":
            check_inflated(path)
            if not trust_pickle:
                refuse_code(artifact, _config_of(path))
        elif found == "saved_model" and not trust_pickle:
            raise _untrusted(
                artifact, "is a SavedModel, whose graph is a program", "Save it as model.save('model.keras')."
            )
    except (OSError, ValueError, RuntimeError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelUnreadable(
            f"{path} is a damaged .keras archive: {error}. Copy or save it again."
        ) from error
    return found


def _config_of(path: str) -> Any:
    with zipfile.ZipFile(path) as archive, archive.open("config.json") as file:
        return from_json(limited(file))


def refuse_code(artifact: Artifact, config: Any) -> None:
    """Raise ``UntrustedPickle`` if a model's config brings Python code, or reads other files than the model's.

    Keras' safe mode refuses the same, in versions and formats that know of it.
    """
    why = _why_code(config)
    if why is not None:
        raise _untrusted(artifact, why, "Save the model with a layer class of its own instead.")


def _untrusted(artifact: Artifact, why: str, instead: str) -> UntrustedPickle:
    return UntrustedPickle(
        f"{artifact.path} {why}: whoever made it can run code, or reach files, on the machine that reads it. "
        f"{instead} If you trust it as you trust your own code, "
        f"{loading_call(artifact.path, 'trust_pickle=True')} reads it; sha256= pins it."
    )


def _why_code(config: Any) -> str | None:
    waiting = [config]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            inner = each.get("config")
            kind = each.get("class_name")
            if kind == "__lambda__" or (kind == "Lambda" and isinstance(inner, dict) and _is_code(inner)):
                return "has a Lambda layer whose Python code is in the file"
            if kind in _FOREIGN:
                return f"has a {kind}, which runs what is in another file or a pickle"
            if isinstance(each.get("vocabulary"), str) and each["vocabulary"]:
                return f"has a layer that reads its vocabulary from the file {each['vocabulary']!r}"
            waiting += each.values()
    return None


def _is_code(layer: dict[str, Any]) -> bool:
    """Say whether a Lambda layer is one as Keras 2 wrote it, with bytes of Python."""
    return layer.get("function_type") == "lambda" or isinstance(layer.get("function"), list)


def content_digest(archive: bytes) -> str:
    """Return the SHA-256 of a ``.keras`` archive's content: the same model, made and saved twice, has the same.

    Left out are the time of saving, the ids by which layers share objects (memory addresses), and the numbers in
    names like ``dense_7``, which count the layers that the process has made before.
    """
    digest = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        for name in sorted(set(opened.namelist()) - {"metadata.json"}):
            content = opened.read(name)
            if name == "config.json":
                content = json.dumps(_steady(json.loads(content)), sort_keys=True).encode()
            elif name.endswith(".h5"):
                content = _arrays(content)
            digest.update(f"{name}\n{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def _steady(config: Any) -> Any:
    names: dict[str, str] = {}
    _number_anew(config, names)
    return _without_ids(config, names)


def _number_anew(config: Any, names: dict[str, str]) -> None:
    """Find the names of layers that end in a number, or could, and number them in order of appearance."""
    if isinstance(config, dict):
        inner = config.get("config")
        if isinstance(config.get("class_name"), str) and isinstance(inner, dict):
            name = inner.get("name")
            if isinstance(name, str) and name not in names:
                names[name] = f"{name.rstrip('0123456789').rstrip('_')}#{len(names)}"
    for each in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        _number_anew(each, names)


def _without_ids(config: Any, names: dict[str, str]) -> Any:
    if isinstance(config, dict):
        return {key: _without_ids(value, names) for key, value in config.items() if key != "shared_object_id"}
    if isinstance(config, list):
        return [_without_ids(each, names) for each in config]
    return names.get(config, config) if isinstance(config, str) else config


def _arrays(content: bytes) -> bytes:
    """Return the paths, dtypes, shapes and digests of all arrays in an HDF5 file."""
    h5py: Any = importlib.import_module("h5py")  # comes with Keras; has no types
    lines: list[str] = []

    def note(path: str, each: Any) -> None:
        if isinstance(each, h5py.Dataset):
            array = np.ascontiguousarray(each[()])
            lines.append(f"{path} {array.dtype} {array.shape} {hashlib.sha256(array.data).hexdigest()}")

    with h5py.File(io.BytesIO(content), "r") as file:
        file.visititems(note)
    return "\n".join(sorted(lines)).encode()
