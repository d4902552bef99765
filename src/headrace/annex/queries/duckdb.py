"""DuckDB: in this process, within the memory of the run, spilling into the run's folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.queries.engines import ROW, Answer, Input, Query, Work
from headrace.core.door import install_hint, library
from headrace.core.terminal import one_line
from headrace.errors import MissingLibrary, OutOfMemory, OutputWriteFailed, PlanError, SourceError, nearest

# ---------------- types: which have the same values, and what is read and written where they differ

# Types of Arrow, and the types of DuckDB that have the same values.
_SAME = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
    pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
}
_ARROW = {name.lower(): kind for kind, name in _SAME.items()}
# Types whose values are the same in another type of Arrow, in which they are read.
_WIDER = {
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.timestamp("s"): pa.timestamp("ms"),
    pa.date64(): pa.date32(),
    pa.null(): pa.int32(),
}
# Types of results that Parquet does not have, and what they are written as: an error where a value does not fit.
_WRITTEN = {
    "hugeint": "DECIMAL(38, 0)",
    "uhugeint": "DECIMAL(38, 0)",
    "bignum": "DECIMAL(38, 0)",
    "uuid": "VARCHAR",
    "enum": "VARCHAR",
    "json": "VARCHAR",
    "timestamp_s": "TIMESTAMP",
    "null": "INTEGER",
}


def quoted(name: str) -> str:
    """Return a name as DuckDB takes any."""
    return '"' + name.replace('"', '""') + '"'


def normal(kind: Any) -> str:
    """Return a type's name so that names can be compared."""
    return str(kind).lower().replace(" ", "").replace('"', "")


def sql_type(kind: pa.DataType) -> str:
    """Return the type of DuckDB that has all values of a type of Arrow; "" if there is none."""
    kind = plain(kind)
    if kind in _SAME:
        return _SAME[kind]
    if pt.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})" if 0 <= kind.scale <= kind.precision <= 38 else ""
    if pt.is_struct(kind):
        fields = [(quoted(each.name), sql_type(each.type)) for each in kind.fields]
        return f"STRUCT({', '.join(map(' '.join, fields))})" if fields and all(t for _, t in fields) else ""
    if pt.is_map(kind):
        pair = [sql_type(kind.key_type), sql_type(kind.item_type)]
        return f"MAP({', '.join(pair)})" if all(pair) else ""
    if pt.is_fixed_size_list(kind):
        inner = sql_type(kind.value_type)
        return f"{inner}[{kind.list_size}]" if inner and kind.list_size else ""
    if pt.is_list(kind) or pt.is_large_list(kind):
        inner = sql_type(kind.value_type)
        return f"{inner}[]" if inner else ""
    return ""


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values are read, which is the same but for its name, its zone or its width."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind.storage_type
    if pt.is_dictionary(kind):
        return plain(kind.value_type)
    if pt.is_timestamp(kind) and kind.tz and kind.unit != "ns":
        return pa.timestamp("us", "UTC")
    if pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_decimal(kind) and not pt.is_decimal256(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return _WIDER.get(kind, kind)


def seen_as(kind: pa.DataType, seen: str) -> bool:
    """Say whether what DuckDB sees in a file has the values of a type: there, lists have no size, times no unit."""
    wanted = normal(sql_type(kind))
    if pt.is_fixed_size_list(plain(kind)):
        return seen == wanted.rpartition("[")[0] + "[]"
    return seen == wanted or (wanted == "timestamp_ms" and seen == "timestamp")


def written(text: str, relation: Any) -> str:
    """Return the query with casts for what Parquet does not have."""
    wanted = [
        (name, normal(kind), written_as(kind))
        for name, kind in zip(relation.columns, relation.types, strict=True)
    ]
    if all(is_ == normal(to) for _, is_, to in wanted):
        return text
    columns = [f"CAST({quoted(name)} AS {to}) AS {quoted(name)}" for name, _, to in wanted]
    return f"SELECT {', '.join(columns)} FROM ({text}\n) AS headrace_result"


def written_as(kind: Any) -> str:
    """Return the type in which a type of DuckDB is written."""
    if kind.id in _WRITTEN:
        return _WRITTEN[kind.id]
    if kind.id in ("list", "array"):
        size = dict(kind.children).get("size", "") if kind.id == "array" else ""
        return f"{written_as(kind.children[0][1])}[{size}]"
    if kind.id == "struct":
        return f"STRUCT({', '.join(f'{quoted(name)} {written_as(inner)}' for name, inner in kind.children)})"
    if kind.id == "map":
        return f"MAP({', '.join(written_as(inner) for _, inner in kind.children)})"
    return str(kind)


def arrow_type(kind: Any, name: str, label: str) -> pa.DataType:
    """Return the type of Arrow in which a column of the result is read."""
    if kind.id == "decimal":
        sizes = dict(kind.children)
        return pa.decimal128(sizes["precision"], sizes["scale"])
    if kind.id in ("hugeint", "uhugeint", "bignum"):
        return pa.decimal128(38, 0)
    if kind.id == "list":
        return pa.list_(arrow_type(kind.children[0][1], name, label))
    if kind.id == "array":
        children = dict(kind.children)
        return pa.list_(arrow_type(children["child"], name, label), children["size"])
    if kind.id == "struct":
        return pa.struct([(inner, arrow_type(each, name, label)) for inner, each in kind.children])
    if kind.id == "map":
        return pa.map_(*(arrow_type(inner, name, label) for _, inner in kind.children))
    found = _ARROW.get(_WRITTEN.get(kind.id, str(kind)).lower())
    if found is None:
        raise PlanError(
            f"{label}: the result's column {name!r} is {kind}, which cannot be written without a change of its "
            "values. Cast it in the query, such as to VARCHAR, or leave it out."
        )
    return found


def restored(schema: pa.Schema, query: Query) -> pa.Schema:
    """Give columns the shape or the zone back that a column of their name has in the inputs, if all agree on it."""
    found = []
    for field in schema:
        given = {each.field(field.name).type for each in query.schemas.values() if field.name in each.names}
        kind = next(iter(given)) if len(given) == 1 else field.type
        tensor, zone = isinstance(kind, pa.FixedShapeTensorType), pt.is_timestamp(kind) and kind.tz
        same = (tensor or zone) and plain(kind) == field.type
        found.append(field.with_type(pa.timestamp("us", kind.tz) if zone else kind) if same else field)
    return pa.schema(found)


HIDDEN = {"file_index", "file_row_number"}  # columns of DuckDB's, which those of a file hide
_SAID = (pt.is_integer, pt.is_boolean, pt.is_string, pt.is_date32, pt.is_decimal)  # by their texts, exactly
_LEAST = 64 << 20  # bytes: with less, not even a small file can be read


class DuckDB:
    """Answers queries with DuckDB."""

    name = "duckdb"
    bounded = True

    def __init__(self) -> None:
        self._duckdb: Any = library("hr.sql", "duckdb")
        if [int(part) for part in self.version.split(".")[:2]] < [1, 4]:
            raise MissingLibrary(
                f"Queries need DuckDB 1.4 or newer, and {self.version} is here: {install_hint('sql')}."
            )

    @property
    def version(self) -> str:
        """The version of the package."""
        return str(self._duckdb.__version__)

    def refusal(self, kind: pa.DataType) -> str:
        """Times finer than microseconds with a zone, decimals of more than 38 digits, and what only Arrow has."""
        return "" if sql_type(kind) else "DuckDB has no type with all of its values"

    def reads(self, given: Input) -> bool:
        """Ask DuckDB which columns it sees there; its texts say the values of those that are outside."""
        with self._connected() as connection:
            try:
                found = connection.sql(f"SELECT * FROM {_scan(given.files)}")
            except self._duckdb.Error:
                return False
            seen = {name: normal(kind) for name, kind in zip(found.columns, found.types, strict=True)}
        hidden = not HIDDEN.isdisjoint(map(str.lower, seen))
        own = [field for field in given.schema if field.name not in given.outside]
        said = all(any(test(each.type) for test in _SAID) for each in given.outside.values())
        return said and not hidden and all(seen_as(f.type, seen.get(f.name, "")) for f in own)

    def schema(self, query: Query) -> pa.Schema:
        """Let DuckDB look at the query with empty tables."""
        with self._connected() as connection:
            _refuse_names(query)
            for name, schema in query.schemas.items():
                columns = [f"{quoted(field.name)} {sql_type(field.type)}" for field in schema]
                columns += [f"{ROW} BIGINT"] * query.numbered
                connection.execute(f"CREATE TABLE {quoted(name)} ({', '.join(columns)})")
            connection.execute("SET enable_external_access = false")
            relation = self._bound(connection, query)
            return restored(
                pa.schema(
                    [
                        pa.field(name, arrow_type(kind, name, query.label))
                        for name, kind in zip(relation.columns, relation.types, strict=True)
                    ]
                ),
                query,
            )

    def answer(self, query: Query, work: Work) -> Answer:
        """Copy the result into one Parquet file."""
        settings = {
            "memory_limit": f"{max(work.memory, _LEAST) >> 20}MiB",
            "threads": str(work.cores),
            "temp_directory": str(work.spill),
        }
        with self._connected(settings) as connection:
            files = [file for each in work.inputs.values() for file in each.files]
            connection.execute(f"SET allowed_paths = [{', '.join(map(_text, [*files, str(work.result)]))}]")
            connection.execute(f"SET allowed_directories = [{_text(f'{work.spill}/')}]")
            connection.execute("SET enable_external_access = false")
            for name, each in work.inputs.items():
                connection.execute(f"CREATE VIEW {quoted(name)} AS {_view(each, numbered=query.numbered)}")
            relation = self._bound(connection, query)
            text = written(_single(connection, query), relation)
            connection.execute("SET preserve_insertion_order = false")  # that of ORDER BY is kept
            try:
                read = {name: len(connection.table(quoted(name))) for name in work.inputs}
                connection.execute("PRAGMA enable_profiling = 'no_output'")
                target = f"{_text(str(work.result))} (FORMAT parquet, COMPRESSION snappy)"
                with _shown(connection, work):
                    rows = connection.execute(f"COPY ({text}\n) TO {target}").fetchone()[0]
                told = getattr(connection, "get_profiling_information", lambda: "{}")()  # from 2.0 on
            except self._duckdb.Error as error:
                raise self._failed(error, query, work) from error
        written_bytes = int(json.loads(told).get("io", {}).get("total_bytes_written", 0))
        return Answer(read, int(rows), max(0, written_bytes - work.result.stat().st_size))

    def _connected(self, settings: dict[str, str] | None = None) -> Any:
        """Open a database in memory, which sees no variables of the program and fetches no extensions."""
        off = ("python_enable_replacements", "autoinstall_known_extensions", "autoload_known_extensions")
        connection = self._duckdb.connect(
            ":memory:", config={**dict.fromkeys(off, "false"), **(settings or {})}
        )
        connection.execute("SET TimeZone = 'UTC'")  # hours of a time are the same on every machine
        return connection

    def _bound(self, connection: Any, query: Query) -> Any:
        """Return the query as a relation, if it is one query of what is given."""
        try:
            text = _single(connection, query)
            relation = connection.sql(text)
        except self._duckdb.Error as error:
            raise _refused(error, query) from error
        names = sorted(relation.columns, key=str.lower)
        for one, other in itertools.pairwise(names):
            if one.lower() == other.lower():  # DuckDB would write one of them under another name
                raise PlanError(
                    f"{query.label}: the result has two columns named {one!r} and {other!r}, which DuckDB takes for "
                    "one. Name one of them by AS, rename it before, or join with USING."
                )
        return relation

    def _failed(self, error: Exception, query: Query, work: Work) -> Exception:
        said = _said(error)
        if re.search("Could not write file|No space left|failed to offload", said):
            return OutputWriteFailed(
                f"{query.label}: DuckDB cannot write its result, or what does not fit into memory, to "
                f"{work.spill.parent}: {said} Free space there, and run the same program again."
            )
        if isinstance(error, self._duckdb.OutOfMemoryException):
            return OutOfMemory(
                f"{query.label}: DuckDB cannot answer the query within {max(work.memory, _LEAST) >> 20:,} MiB, its "
                f"part of the memory of the run: {said} Raise memory_limit=, use fewer workers=, or let the query "
                "make less at a time."
            )
        return SourceError(
            f"{query.label}: DuckDB failed in the query: {said} Correct the query, or the values in a step before."
        )


@contextlib.contextmanager
def _shown(connection: Any, work: Work) -> Iterator[None]:
    """Have it shown how far a query is, by a thread that asks DuckDB meanwhile."""
    connection.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.5):
            work.say(max(0.0, connection.query_progress()))

    thread = threading.Thread(target=ask, name="headrace-query", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _single(connection: Any, query: Query) -> str:
    statements = connection.extract_statements(query.text)
    kinds = [str(each.type).rpartition(".")[2] for each in statements]
    if kinds != ["SELECT"]:
        found = f"{len(kinds)} statements" if len(kinds) != 1 else kinds[0]
        raise PlanError(f"{query.label}: the text has to be one SELECT, and this is {found}.")
    return str(statements[0].query).strip().rstrip(";")


def _said(error: Exception) -> str:
    """Return what DuckDB says, in one line, without the text of the query."""
    text = re.split("\n\n|\nLINE |\nThis limit was set", str(error))[0]
    inner = re.search(r'"exception_message":"((?:[^"\\]|\\.)*)"', text)
    text = inner[1].replace('\\"', "'") if inner else text
    return one_line(" ".join(text.split())).rstrip(".!") + "."


def _refused(error: Exception, query: Query) -> PlanError:
    said = _said(error)
    given = ", ".join(query.schemas) or "none"
    if "Table with name" in said:
        name = said.partition("Table with name ")[2].partition(" does not exist")[0]
        return PlanError(
            f"{query.label}: the query reads {name}, and no dataset of that name is given."
            f"{nearest(name, [*query.schemas])} Given: {given}. Datasets are given by keyword: "
            f"hr.sql(text, {name}=dataset)."
        )
    if "file system operations are disabled" in said:
        return PlanError(
            f"{query.label}: the query reads a file by itself, and a run would not notice if that changed. Give it "
            "as a dataset, such as hr.sql(text, zones=hr.read_csv(path))."
        )
    return PlanError(f"{query.label}: DuckDB does not take the query: {said}")


def _refuse_names(query: Query) -> None:
    for what, names in (
        ("datasets", list(query.schemas)),
        *((f"columns of {n}", s.names) for n, s in query.schemas.items()),
    ):
        known: dict[str, str] = {}
        if "" in names:  # as that of pandas' index in a CSV file
            raise PlanError(
                f"{query.label}: the {what} have the name '', which DuckDB does not take. Rename it, as with "
                "rename_columns({'': 'index'}) in a step before, or drop it."
            )
        for name in names:
            if (other := known.setdefault(name.lower(), name)) != name or names.count(name) > 1:
                raise PlanError(
                    f"{query.label}: the {what} have the names {other!r} and {name!r}, which DuckDB takes for one. "
                    "Rename one of them, as with rename_columns in a step before."
                )


# ---------------------------------------------------------------- text


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _scan(files: Sequence[str]) -> str:
    return f"read_parquet([{', '.join(map(_text, files))}], hive_partitioning = false)"


def _view(given: Input, *, numbered: bool) -> str:
    columns = [_column(field, given.outside.get(field.name)) for field in given.schema]
    if numbered:
        starts = [*itertools.accumulate(given.counts, initial=0)][:-1]
        columns.append(f"{_of_file(f'{starts}::BIGINT[]')} + file_row_number AS {ROW}")
    if not given.files:
        empty = ", ".join(f"NULL::{sql_type(field.type)} AS {quoted(field.name)}" for field in given.schema)
        return f"SELECT {empty}{f', NULL::BIGINT AS {ROW}' if numbered else ''} LIMIT 0"
    return f"SELECT {', '.join(columns)} FROM {_scan(given.files)}"


def _column(field: pa.Field, values: pa.Array | None) -> str:
    name, kind = quoted(field.name), sql_type(field.type)
    if values is None:
        return f"CAST({name} AS {kind}) AS {name}"
    texts = ", ".join("NULL" if t is None else _text(t) for t in values.cast(pa.string()).to_pylist())
    return f"{_of_file(f'CAST([{texts}] AS {kind}[])')} AS {name}"


def _of_file(values: str) -> str:
    """Return what a list has for the file of a row."""
    return f"list_extract({values}, (file_index + 1)::BIGINT)"
