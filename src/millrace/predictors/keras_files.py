"""What a Keras file or folder holds, seen without Keras: which format, whether code is in it, what its content is."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import zipfile
from typing import Any, Literal

import numpy as np

from millrace.core.artifacts import Artifact, loading_call
from millrace.errors import ModelUnreadable, UntrustedPickle

Format = Literal["archive", "hdf5", "saved_model"]

_HDF5 = b"\x89HDF\r\n\x1a\n"  # https://docs.hdfgroup.org/hdf5/develop/_f_m_t3.html
_ARCHIVE = {"config.json", "metadata.json"}


def format_of(path: str) -> Format | None:
    """Return which of the formats is at ``path``, by content; an HDF5 file by its suffix too. Never raises."""
    if os.path.isdir(path):
        names = ("saved_model.pb", "saved_model.pbtxt")
        return "saved_model" if any(os.path.isfile(os.path.join(path, name)) for name in names) else None
    try:
        with open(path, "rb") as file:
            head = file.read(8)
        if head == _HDF5:
            return "hdf5" if path.lower().endswith((".h5", ".hdf5", ".keras")) else None
        if head[:2] == b"PK" and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as opened:
                return "archive" if set(opened.namelist()) >= _ARCHIVE else None
    except (OSError, zipfile.BadZipFile):
        pass
    return None


def checked_format(artifact: Artifact, *, trust_pickle: bool) -> Format:
    """Return the format of a model; raises ``ModelUnreadable`` for none, ``UntrustedPickle`` for code in it."""
    found = format_of(artifact.path)
    if found is None:
        raise ModelUnreadable(
            f"{artifact.path} is not a whole Keras model: neither a .keras archive, nor an HDF5 file, nor a folder "
            f"with saved_model.pb. Copy it again, or save it again with model.save('model.keras')."
        )
    if found == "archive" and not trust_pickle:
        try:
            with zipfile.ZipFile(artifact.path) as opened:
                config = json.loads(opened.read("config.json"))
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise ModelUnreadable(
                f"{artifact.path} is a damaged .keras archive: {error}. Copy or save it again."
            ) from error
        refuse_code(artifact, config)
    return found


def refuse_code(artifact: Artifact, config: Any) -> None:
    """Raise ``UntrustedPickle`` if a model's config has Python code in it, as a Lambda layer's lambda is."""
    if _has_code(config):
        raise UntrustedPickle(
            f"{artifact.path} has a Lambda layer whose Python code is in the file: whoever made it can run any code "
            f"on the machine that reads it. Save the model with a layer class of its own instead, or export it with "
            f"model.export(folder). If you trust it as you trust your own code, "
            f"{loading_call(artifact.path, 'trust_pickle=True')} reads it; sha256= pins it."
        )


def _has_code(config: Any) -> bool:
    if isinstance(config, dict):
        inner = config.get("config")
        if config.get("class_name") == "__lambda__":
            return True
        if (
            isinstance(inner, dict)
            and config.get("class_name") == "Lambda"
            and (  # as Keras 2 wrote it
                inner.get("function_type") == "lambda" or isinstance(inner.get("function"), list)
            )
        ):
            return True
        return any(map(_has_code, config.values()))
    return isinstance(config, list) and any(map(_has_code, config))


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
