"""The museum: small outputs in every state in which a driver may leave one, as each release has written them.

``python tests/museum/make.py`` packs those of this version into ``tests/museum/<version>.tar.xz``; each release adds
its own. What is packed stays as it is, and so do the jobs here: a plan is recognised by its steps and by the path of
its input, which is why all of it lies in ``HOME``. A new state gets a new exhibit.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tarfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from faults.lives import Nursery
from headrace.errors import RequirementNotMet, SourceError
from headrace.result import Result
from headrace.session.invocation import running
from headrace.version import __version__
from museum.metric import Big

MUSEUM = Path(__file__).parent
HOME = Path("/tmp/headrace-museum")
BUCKET = "s3://bucket/museum"
FILES, ROWS = 4, 5
Rows = list[tuple[int, int]]
Write = Callable[[hr.Dataset, Path, dict[str, Any]], Result]


# ------------------------------------------------------------ what is written, and how it is read


def arrive(place: Path, number: int) -> None:
    """Add an input file, or rows to the table that is read."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    if (place / "lake").exists():
        import deltalake

        deltalake.write_deltalake(place / "lake", rows, mode="append")
        return
    (place / "in").mkdir(exist_ok=True)
    path = place / "in" / f"{number:03}.parquet"
    pq.write_table(rows, path)
    os.utime(path, (1_790_000_000, 1_790_000_000))


def data(place: Path, factor: int, **options: Any) -> hr.Dataset:
    """Rows with ``id`` and ``product``, and what a ``step`` leaves of them."""
    lake, step, required = place / "lake", options.pop("step", None), options.pop("required", 0)
    read = hr.read_delta(lake) if lake.exists() else hr.read_parquet(str(place / "in"))
    made = read.map_batches(product, fn_args=[factor], batch_size=2, version=str(factor))
    if step is not None:
        made = made.map_batches(step, batch_size=2, version="1")
    if required:
        made = made.require(rows=hr.at_least(required))
    return made.with_options(**{"engine": "inline", "progress": False, "shard_rows": ROWS, **options})


def product(batch: dict[str, Any], factor: int) -> dict[str, Any]:
    return {"id": batch["id"], "product": batch["id"] * factor}


def picky(batch: dict[str, Any]) -> dict[str, Any]:
    if any(batch["id"] % 2):
        raise ValueError("one is odd")
    return batch


def tight(batch: dict[str, Any]) -> dict[str, Any]:
    if len(batch["id"]) > 1:
        raise MemoryError
    return batch


def _files(made: hr.Dataset, place: Path, options: dict[str, Any]) -> Result:
    return made.accumulate(sum=hr.Sum("product"), big=Big()).write_parquet(place / "out", **options)


def _partitioned(made: hr.Dataset, place: Path, options: dict[str, Any]) -> Result:
    thirds = made.with_column("third", lambda batch: batch["id"] % 3, version="1")
    return thirds.write_parquet(place / "out", partition_by=["third"], **options)


def _bucket(made: hr.Dataset, place: Path, options: dict[str, Any]) -> Result:
    return made.write_parquet(f"{BUCKET}/{place.name}", **options)


def _delta(made: hr.Dataset, place: Path, options: dict[str, Any]) -> Result:
    return made.write_delta(place / "t", output="out", **options)


def _sqlite(made: hr.Dataset, place: Path, options: dict[str, Any]) -> Result:
    return made.write_sql("t", f"sqlite:///{place}/a.db", output=place / "out", **options)


def _read(place: Path, exhibit: Exhibit) -> hr.Dataset:
    if exhibit.write is _delta:
        return hr.read_delta(place / "t")
    if exhibit.write is _sqlite:
        return hr.read_sql("SELECT * FROM t", f"sqlite:///{place}/a.db")
    return hr.read_parquet(exhibit.output(place))


# ------------------------------------------------------------ exhibits


@dataclass(frozen=True)
class Life:
    """A driver: where it dies, how much is new in its input, its factor, its options; ``loses``: a part is gone."""

    dies: str = ""
    new: int = 0
    factor: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    loses: bool = False


def _more(dies: str = "", **options: Any) -> Life:
    return Life(dies, 2, options={"incremental": True, **options})


@dataclass(frozen=True)
class Exhibit:
    """Drivers that write one output, one after the other; it is shown as the last one leaves it.

    ``job``: options of the job.
    """

    lives: tuple[Life, ...]
    write: Write = _files
    job: Mapping[str, Any] = field(default_factory=dict)

    @property
    def in_store(self) -> bool:
        """True if the output is in a bucket."""
        return self.write is _bucket

    def output(self, place: Path) -> str:
        """Where the output is."""
        inside = "t/out" if self.write is _delta else "out"
        return f"{BUCKET}/{place.name}" if self.in_store else str(place / inside)

    def live(self, place: Path, life: Life, **instead: Any) -> Result:
        """Be a driver; ``instead``: other options of the write. What is not as required is published all the same."""
        options = {**life.options, **instead}
        try:
            return self.write(data(place, life.factor, **self.job), place, options)
        except RequirementNotMet:
            return hr.publish(self.output(place), because="it is an exhibit")

    def found(self, place: Path) -> Rows:
        """The rows that readers find now."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an output that is not finished
                rows = _read(place, self).with_options(engine="inline", progress=False).take_all()
        except SourceError:  # no part is there yet, or no table
            return []
        return sorted((row["id"], row["product"]) for row in rows)

    def expected(self, files: int) -> Rows:
        """The rows of so many input files, once the last driver's job is done."""
        factors: list[int] = []
        for life in self.lives:
            if {"refresh", "mode"} & {*life.options}:
                factors = [life.factor] * len(factors)
            factors += [life.factor] * life.new
        factors += [self.lives[-1].factor] * (files - len(factors))
        kept = [i for i in range(files * ROWS) if not (self.job.get("step") is picky and i % 2)]
        return [(i, i * factors[i // ROWS]) for i in kept]


_FIRST = Life(new=FILES)
_INCREMENTAL = Life(new=FILES, options={"incremental": True})
_OVER = {"mode": "overwrite"}
_AGAIN = {"incremental": True, "refresh": "changed"}
_UPSERT = {"mode": "upsert", "key": "id"}

EXHIBITS: dict[str, Exhibit] = {
    "finished": Exhibit((_FIRST,)),
    "begun": Exhibit((Life("run.opened", FILES),)),
    "killed": Exhibit((Life("publish.renamed@2", FILES),)),
    "killed before its mark": Exhibit((Life("finish.success", FILES),)),
    "divided": Exhibit((Life("publish.renamed@3", FILES),), job={"commit_every": 1e-9}),
    "rejects": Exhibit((Life("publish.renamed@4", FILES),), job={"step": picky, "on_error": "reject"}),
    "short of memory": Exhibit((Life("publish.renamed@3", FILES),), job={"step": tight}),
    "a part lost": Exhibit((_FIRST, Life("recover.revoked", loses=True))),
    "no rejects": Exhibit((_FIRST,), job={"on_error": "reject"}),
    "folders by value": Exhibit((Life("publish.renamed@4", FILES),), _partitioned),
    "further runs": Exhibit((_INCREMENTAL, _more())),
    "further run, killed": Exhibit((_INCREMENTAL, _more(), _more("journal.synced@3"))),
    "further run, being revealed": Exhibit((_INCREMENTAL, _more("publish.renamed"))),
    "an older function": Exhibit((_INCREMENTAL, Life(new=2, factor=7, options={"incremental": True}))),
    "made again": Exhibit((_INCREMENTAL, Life("", 0, 7, _AGAIN))),
    "made again, killed": Exhibit((_INCREMENTAL, Life("swap.removed", 0, 7, _AGAIN))),
    "keys": Exhibit((Life(new=FILES, options={"incremental": True, "key": "id"}), _more("swap.recorded", key="id"))),
    "overwrite": Exhibit((_FIRST, Life("journal.synced@5", 0, 7, _OVER))),
    "overwrite, being revealed": Exhibit((_FIRST, Life("publish.renamed@2", 0, 7, _OVER))),
    "as required": Exhibit((_FIRST,), job={"required": 1}),
    "withheld": Exhibit((Life("finish.withheld", FILES),), job={"required": 999}),
    "published all the same": Exhibit((_FIRST,), job={"required": 999}),
    "from a table": Exhibit((_INCREMENTAL, _more(), Life(options={"incremental": True}))),
    "store": Exhibit((_FIRST,), _bucket),
    "store, killed": Exhibit((Life("store.appended@4", FILES),), _bucket),
    "store, further run": Exhibit((_INCREMENTAL, _more("store.uploaded"),), _bucket),
    "store, overwrite": Exhibit((_FIRST, Life("swap.recorded", 0, 7, _OVER)), _bucket),
    "delta": Exhibit((_INCREMENTAL, _more()), _delta),
    "delta, killed": Exhibit((_INCREMENTAL, _more("table.filled")), _delta),
    "sqlite": Exhibit((_FIRST,), _sqlite),
    "sqlite, killed": Exhibit((Life("table.filled@3", FILES),), _sqlite),
    "sqlite, upsert": Exhibit((Life("table.filled", FILES, options=_UPSERT),), _sqlite),
}  # fmt: skip


def main(name: str, place: str, number: int) -> None:
    """What the process of a driver does."""
    exhibit = EXHIBITS[name]
    with running(["run", "job.py"]):
        exhibit.live(Path(place), exhibit.lives[number])


def make(name: str, place: Path, nursery: Nursery, environment: Mapping[str, str], store: Any) -> None:
    """Have an exhibit written in a folder. ``about.json`` says what readers found, and which run is the last."""
    exhibit, files = EXHIBITS[name], 0
    place.mkdir(parents=True)
    if name == "from a table":
        (place / "lake").mkdir()
    for number, life in enumerate(exhibit.lives):
        for _ in range(life.new):
            arrive(place, files)
            files += 1
        if life.loses:
            min((place / "out").glob("part-*")).unlink()
        point, _, passage = life.dies.partition("@")
        faults = {point: f"kill@{passage or 1}"} if point else {}
        log = place.parent / "log"
        asked = ["museum.make", [name, str(place), number], log]
        code = nursery.live(*asked, faults=faults, environment=environment)  # type: ignore[arg-type]
        if code != (-signal.SIGKILL if point else 0):
            raise RuntimeError(f"{name}: driver {number} ended with {code}. {log.read_text()}")
    if exhibit.in_store:
        _fetch(store, place)
    home = place / ("bucket" if exhibit.in_store else exhibit.output(place)) / "_headrace"
    run = next(
        pointer.read_text().strip() for pointer in (home / "next", home / "current") if pointer.exists()
    )
    state = hr.verify(exhibit.output(place)).state
    about = {"files": files, "run": run, "state": state, "rows": exhibit.found(place)}
    (place / "about.json").write_text(json.dumps(about))


@contextlib.contextmanager
def made(home: Path, names: Iterable[str] = EXHIBITS) -> Iterator[dict[str, Path]]:
    """Make exhibits, each in a folder of its own; yields these by name, while the store is there."""
    with served() as (environment, store):
        nursery = Nursery()
        try:
            places = {name: home / slug(name) for name in names}
            for name, place in places.items():
                make(name, place, nursery, environment, store)
            yield places
        finally:
            nursery.close()


def slug(name: str) -> str:
    """The name of an exhibit, as that of a folder."""
    return name.replace(",", "").replace(" ", "-")


@contextlib.contextmanager
def served() -> Iterator[tuple[dict[str, str], Any]]:
    """Serve a store; yields what the environment says of it, which it does meanwhile, and a client."""
    from unittest import mock

    from stores.conftest import client_of, environment_of, serving

    with serving() as port, mock.patch.dict(os.environ, environment_of(f"http://127.0.0.1:{port}")):
        yield environment_of(f"http://127.0.0.1:{port}"), client_of(port)


def _fetch(store: Any, place: Path) -> None:
    """Put the objects of an output into a folder, and what is noted with each into ``notes.json``."""
    import obstore

    notes, prefix = {}, f"museum/{place.name}/"
    for each in obstore.list(store, prefix).collect():
        found = obstore.get(store, each["path"])
        name = each["path"].removeprefix(prefix)
        notes[name] = dict(found.attributes)
        (place / "bucket" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "bucket" / name).write_bytes(bytes(found.bytes()))
    (place / "notes.json").write_text(json.dumps(notes))


def put(store: Any, place: Path) -> None:
    """Put what was fetched back into a store."""
    import obstore

    for name, notes in json.loads((place / "notes.json").read_text()).items():
        if (path := place / "bucket" / name).exists():
            obstore.put(store, f"museum/{place.name}/{name}", path.read_bytes(), attributes=notes)


@contextlib.contextmanager
def locked(*names: str) -> Iterator[None]:
    """Keep other processes from exhibits: all of them have the same place on a machine."""
    HOME.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        for name in names:
            fcntl.flock(stack.enter_context((HOME / f"{slug(name)}.lock").open("w")), fcntl.LOCK_EX)
        yield


def unpack(archive: Path, name: str) -> Path:
    """Put an exhibit where it was made."""
    place = HOME / slug(name)
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(archive) as packed:
        members = [each for each in packed if each.name.split("/")[0] == place.name]
        packed.extractall(HOME, members, filter="tar")
    return place


def pack() -> None:
    """Make and pack the exhibits of this version."""
    with locked(*EXHIBITS):
        for name in EXHIBITS:
            shutil.rmtree(HOME / slug(name), ignore_errors=True)
        with made(HOME) as places, tarfile.open(MUSEUM / f"{__version__}.tar.xz", "w:xz", preset=9) as packed:
            for place in places.values():
                packed.add(place, place.name, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return an entry without its owner; pages for people are left out, as no run depends on them."""
    if member.name.endswith("report.html"):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    pack()
