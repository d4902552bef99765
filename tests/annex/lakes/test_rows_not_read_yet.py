"""Rows of a table that no run has read yet, in files that the latest version has not: none is passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError, InputChanged

from .test_further_runs import of


@pytest.mark.parametrize("kind", ["Delta", "Iceberg"])
def test_refresh_does_not_pass_over_rows_that_are_gone(tmp_path: Path, kind: str) -> None:
    """Rows of files that were read may be gone; those that nobody has read may not."""
    table = of(kind, tmp_path)
    table.append()
    table.run(refresh="changed")
    table.append()
    table.compact()
    table.clean()
    with pytest.raises(InputChanged, match=r"does not have the file .* a clean-up has removed it"):
        table.run(refresh="changed")
    assert table.written() == [0, 1] and hr.verify(table.output).good


def test_rows_whose_version_cannot_be_read(tmp_path: Path) -> None:
    """They are not taken for rows that a filter leaves out."""
    table = of("Delta", tmp_path)
    table.append()
    table.run()
    table.append()
    table.compact()
    table.table().create_checkpoint()
    (tmp_path / f"t/_delta_log/{0:020}.json").unlink()
    with pytest.raises(InputChanged, match="whose rows are to be added: version 1"):
        table.run()
    assert table.written() == [0, 1]


def with_rows_of_two_versions(folder: Path) -> Any:
    """Return a Lance table of which a run has read two rows; files with the others are in no common version."""
    table = of("Lance", folder)
    table.append(2)
    table.run()
    table.append(2)
    table.append(20)
    table.table().optimize.compact_files(target_rows_per_fragment=5)  # the first two
    table.delete("id = 5")
    table.compact()
    return table


def test_rows_are_those_of_the_last_version_that_has_them(tmp_path: Path) -> None:
    """A fragment keeps its file when rows of it are deleted, so each is looked up in a version of its own."""
    table = with_rows_of_two_versions(tmp_path)
    table.run()
    assert table.written() == table.ids()


def test_a_killed_run_reads_them_in_the_version_in_which_it_found_them(tmp_path: Path) -> None:
    table = with_rows_of_two_versions(tmp_path)
    with pytest.raises((HeadraceError, OSError)):
        table.run({"attempt.started": "EIO"})
    table.append(2)
    table.run()
    assert table.written() == table.ids()
