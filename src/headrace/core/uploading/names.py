"""How files are named that workers upload by themselves, as they do not see the folder in which the driver stages.

Such a file goes up under a name that no other attempt has, where no reader looks: ``_headrace/<run>/parts/``. So a
worker stages, here as elsewhere, and whatever becomes of it later, it cannot change what readers see. The driver
journals the name, and has the store copy what a record names to its place. Why: docs/decisions/0048.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.work import FLEET, HOME, StagedFile

PARTS = "parts"
"""The folder, in that of a run, with parts that no reader sees yet."""

RUN_NOTE, CRC_NOTE = "headracerun", "headracecrc32"  # letters and digits: Azure takes no others


def notes_of(run: str, file: StagedFile) -> dict[str, str]:
    """Return what is noted with a part: whose it is, and what its bytes are."""
    return {RUN_NOTE: run, CRC_NOTE: f"{file.crc32:08x}"}


def is_uploaded(file: StagedFile) -> bool:
    """Say whether a worker has uploaded a file; its staged name is then that of an object in the run's folder."""
    return file.staged.startswith(f"{PARTS}/")


def uploaded_name(run: str, file: StagedFile) -> str:
    """Return the name of the object that a worker has uploaded, or a machine of a fleet, from the output on."""
    machine, _, name = file.staged.removeprefix(f"{PARTS}/").rpartition(":")
    if not machine:
        return f"{HOME}/{run}/{file.staged}"
    from urllib.parse import unquote  # which a driver does not need before its first worker starts

    return f"{HOME}/{FLEET}/{machine}/{unquote(name)}"


def of_machine(machine: str, file: StagedFile, name: str) -> StagedFile:
    """Return a file of a machine's part of the output as one that is to be copied from there, and to have a name.

    >>> file = of_machine("k3f9a2xq", StagedFile("", "day=1/part-00000-r.csv", 1, 9, 0), "day=1/part-00007-r.csv")
    >>> uploaded_name("r", file), is_uploaded(file)
    ('_headrace/fleet/k3f9a2xq/day=1/part-00000-r.csv', True)
    """
    from urllib.parse import quote

    staged = f"{PARTS}/{machine}:{quote(file.name, safe='')}"
    return msgspec.structs.replace(file, staged=staged, name=name)


class Uploads(msgspec.Struct, frozen=True):
    """What a worker has to know for it.

    ``sees``: a file that is there for all who see the driver's folder; "" if none does. ``mark``: an object of the
    output, by which a worker knows that it has come to the same store. ``options``: those of the store, none secret.
    """

    address: str
    options: tuple[tuple[str, Any], ...]
    run: str
    mark: str
    sees: str = ""
