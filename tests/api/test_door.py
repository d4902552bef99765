"""What an installed package brings is there by its name, without an import of it, in workers and in commands, too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script(script: Callable[..., Any]) -> Callable[..., Any]:
    """Packages are looked for once in a process, so a script is a new interpreter."""
    return partial(script, fresh=True)


MODULES = {
    "source": '''
        from pathlib import Path

        import pyarrow as pa

        from headrace.core.files.formats import DataFormat
        from headrace.core.source_ports import Location
        from headrace.core.work import Split
        from headrace.sources.file_source import FileSource

        FORMAT = DataFormat("acme", (".acme",), "read_acme")
        LINES = DataFormat("acme_lines", (".lines",), "read_text", writer="acme.target:Acme")


        class AcmeSource(FileSource):
            """Reads a number from each line."""

            suffixes = (".acme",)

            def __init__(self, paths, *, times=1):
                super().__init__(paths)
                self.times = times

            def describe(self):
                return {"kind": "acme", "paths": list(self.paths), "times": self.times}

            def schema(self):
                return pa.schema([("n", pa.int64())])

            def inspect(self, files):
                return [len(Path(file.path).read_text().splitlines()) for file in files]

            def splits(self):
                return [Split(at, 0, rows, rows, rows * 8, 0) for at, rows in enumerate(self.refreshed())]

            def read_rows(self, split, columns, batch_rows, bad):
                lines = Path(self.file(split.file).path).read_text().splitlines()
                batch = pa.record_batch({"n": [int(line) * self.times for line in lines]}, self.schema())
                yield batch if columns is None else batch.select(columns)

            def locate(self, split, row):
                return Location(self.file(split.file).path, row)
    ''',
    "target": '''
        from dataclasses import dataclass

        from headrace.core.target_ports import Format
        from headrace.sinks.files import FileSink


        class Lines:
            def __init__(self, stream, sign):
                self.stream, self.sign, self.rows = stream, sign, 0

            def write(self, batch):
                for row in batch.to_pylist():
                    self.stream.write((self.sign.join(map(str, row.values())) + "\\n").encode())
                self.rows += batch.num_rows

            def close(self):
                return self.rows


        @dataclass(frozen=True)
        class Acme(Format):
            """Writes the values of each row into a line."""

            sign: str = ","
            kind = "acme"
            suffix = "acme"

            def open(self, stream, schema):
                return Lines(stream, self.sign)


        def target(path, *, sign=","):
            return FileSink(str(path), Acme(sign))
    ''',
    "model": '''
        from pathlib import Path


        class Forest:
            """A model of the library acme."""

            def __init__(self, factor):
                self.factor = factor


        class AcmePredictor:
            batch_format = "numpy"
            label = "acme"
            classes = ("Forest",)

            def __init__(self, model):
                self.model = model
                self.factor = None

            @staticmethod
            def kind_of(path):
                return "forest" if path.endswith(".forest") else None

            def identity(self):
                return ("acme", self._factor())

            def weights(self):
                return "a number"

            def _factor(self):
                found = self.model if isinstance(self.model, Forest) else Forest(int(Path(self.model).read_text()))
                return found.factor

            def load(self):
                self.factor = self._factor()

            def predict(self, batch):
                (column,) = batch.values()
                return column * self.factor

            def close(self):
                self.factor = None
    ''',
    "engine": """
        import os
        from functools import partial

        from msgspec.structs import replace

        from headrace.engines.local.pool import LocalEngine


        def politely(make, context):
            os.nice(1)
            return make(context)


        class AcmeEngine(LocalEngine):
            def start(self, spec, notify):
                return super().start(replace(spec, factory=partial(politely, spec.factory)), notify)
    """,
    "metric": """
        class Biggest:
            def __init__(self, column, most=0):
                self.columns, self.most = (column,), most

            def empty(self):
                return Biggest(*self.columns)

            def update(self, batch):
                self.most = max([self.most, *batch.column(self.columns[0]).to_pylist()])

            def merge(self, other):
                self.most = max(self.most, other.most)

            def result(self):
                return self.most

            def to_bytes(self):
                return str(self.most).encode()

            def from_bytes(self, data):
                return Biggest(*self.columns, int(data))
    """,
    "observer": """
        class Trail:
            def __init__(self, path):
                self.path = path

            def on_event(self, event):
                with open(self.path, "a") as file:
                    print(type(event).__name__, file=file)
    """,
    "command": """
        import headrace as hr


        def main(argv):
            if argv == ["fail"]:
                raise KeyError("no such thing")
            if argv == ["refuse"]:
                hr.range(2).select_columns(["x"]).take_all()
            print(argv, hr.read_acme(argv[0]).count())
            return 3
    """,
}
POINTS = {
    "sources": {"acme": "acme.source:AcmeSource", "acme_twice": "acme.twice:twice"},
    "formats": {"acme": "acme.source:FORMAT", "acme_lines": "acme.source:LINES"},
    "targets": {"acme": "acme.target:target"},
    "models": {"acme": "acme.model:AcmePredictor"},
    "engines": {"acme": "acme.engine:AcmeEngine"},
    "metrics": {"Biggest": "acme.metric:Biggest"},
    "observers": {"Trail": "acme.observer:Trail"},
    "commands": {"acme": "acme.command:main"},
}
TWICE = """
    import headrace as hr


    def twice(paths):
        '''Read each number twice.'''
        return hr.read_acme(paths).flat_map(lambda row: [row, row])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed a package with one adapter of each kind."""
    folder = tmp_path_factory.mktemp("acme")
    (folder / "acme").mkdir()
    (folder / "acme/__init__.py").touch()
    for name, text in {**MODULES, "twice": TWICE}.items():
        (folder / f"acme/{name}.py").write_text(textwrap.dedent(text))
    groups = "".join(
        f'[project.entry-points."headrace.{kind}"]\n'
        + "".join(f'{name} = "{at}"\n' for name, at in points.items())
        for kind, points in POINTS.items()
    )
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "headrace-acme"\nversion = "1.0"\n{groups}[tool.setuptools]\npackages = ["acme"]\n'
    )
    return with_pip(folder)


def with_pip(project: Path) -> Path:
    """Build the wheel of a project, install it into a folder of its own, and return that."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install"]
    alone = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, *alone, "--target", str(project / "site"), str(project)], check=True)
    return project / "site"


def path_of(*folders: Path) -> dict[str, str]:
    """The environment of a process that finds packages there."""
    before = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([*map(str, folders), *([before] if before else [])])}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with input and a model."""
    (tmp_path / "in").mkdir()
    for part in range(3):
        (tmp_path / f"in/{part}.acme").write_text(
            "".join(f"{number}\n" for number in range(part * 4, part * 4 + 4))
        )
    (tmp_path / "by10.forest").write_text("10")
    return tmp_path


@pytest.mark.annex
@pytest.mark.local
def test_all_is_there_without_an_import(script: Callable[..., Any], installed: Path, place: Path) -> None:
    ended = script(
        """
        import os, sys
        import headrace as hr

        assert {"read_acme", "read_acme_twice", "Biggest"} <= {*dir(hr)} and "read_acme" not in hr.__all__
        assert "acme" not in sys.modules

        def seen():
            return {"nice": os.nice(0), "metric": hr.Biggest.__module__, "pid": os.getpid()}

        data = hr.read_acme("in", times=2).map(lambda row: {**seen(), **row}, concurrency=2)
        assert "write_acme" in dir(data)
        usual = data.with_options(worker_start="spawn", workers=2, shard_rows=4, engine="local")
        rows = usual.take_all()
        assert [row["n"] for row in rows] == list(range(0, 24, 2)), rows
        assert {row["metric"] for row in rows} == {"acme.metric"}
        assert os.getpid() not in {row["pid"] for row in rows}
        polite = usual.with_options(engine="acme").take_all()
        assert polite[0]["nice"] == rows[0]["nice"] + 1, polite[0]

        from acme.model import Forest

        usual = usual.with_options(observers=[hr.observers.Trail("trail.txt")], engine="acme").select_columns(["n"])
        scored = usual.predict("by10.forest", inputs=["n"], output="ten")
        scored = scored.predict(Forest(3), inputs=["n"], output="three")
        result = scored.accumulate(most=hr.Biggest("three")).write_acme("out", sign=";", mode="error")
        assert (result.rows, result.metrics) == (12, {"most": 66}), result
        lines = [line for part in sorted(os.listdir("out")) if part.endswith(".acme") for line in open("out/" + part)]
        assert lines[-1] == "22;220;66\\n", lines
        numbers = hr.range(4).with_options(engine="inline", shard_rows=4)
        assert numbers.write_acme_lines("lines", sign=":", max_rows_per_file=2).files == 2
        assert "RunFinished" in open("trail.txt").read(), open("trail.txt").read()
        assert hr.read_acme_twice("in").count() == 24
        assert hr.read_acme.__name__ == "read_acme" and "a number from each line" in hr.read_acme.__doc__
        print("fine")
        """,
        env=path_of(installed),
    )
    assert (ended.code, ended.out) == (0, "fine\n"), ended.err


@pytest.mark.annex
def test_commands_find_it(script: Callable[..., Any], installed: Path, place: Path) -> None:
    (place / "job.py").write_text(
        "import headrace as hr\ndataset = hr.read_acme('in').accumulate(most=hr.Biggest('n'))\n"
    )
    words = (
        "predict by10.forest in -o out --output-format acme --metric most=Biggest(prediction) --engine acme"
    )
    found = script("", command=["-m", "headrace", *words.split(), "--json"], env=path_of(installed))
    assert found.code == 0 and '"most": 110' in found.out, found
    assert len(list((place / "out").glob("*.acme"))) > 0
    ended = script(COMMANDS, env=path_of(installed))
    assert ended.code == 0, ended
    ran, looked, own, failed, refused, shown = ended.out.split("====\n")[:-1]
    assert ran.endswith("0\n") and '"most": 11' in ran
    assert looked.endswith("0\n") and '"rows": 12' in looked
    assert own == "['in', '--json', ''] 12\n3\n"
    assert failed == "1\n" and refused == "2\n"
    assert "KeyError: 'no such thing'\nheadrace: select_columns(['x']) asks for column 'x'" in ended.err
    assert "bug in Headrace" not in ended.err
    assert "Of installed packages:\n  acme      headrace-acme\n" in shown


COMMANDS = """
    from headrace.annex.cli import main

    for line in (
        ["run", "job.py", "-o", "ran", "--output-format", "acme", "--json"],
        ["inspect", "in", "--format", "acme", "--json"],
        ["acme", "in", "--json", ""],
        ["--debug", "acme", "fail"],
        ["acme", "refuse"],
        ["--help"],
    ):
        print(main(line), "====", sep="\\n")
"""


@pytest.mark.annex
def test_the_package_on_the_page_about_extending(script: Callable[..., Any], tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text()
    files = dict(re.findall(r'^```python title="(.+?)"\n(.*?)^```$', page, re.M | re.S))
    (files["pyproject.toml"],) = re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "n.six").write_text("    1\n    2\n")
    program = (
        "import headrace as hr\nfrom headrace.annex.cli import main\nprint(hr.read_six('n.six').take_all())\n"
    )
    ended = script(program + "main(['inspect', 'n.six'])", env=path_of(with_pip(tmp_path)))
    assert ended.out.startswith("[{'number': 1}, {'number': 2}]\nsix: 1 file, 12 B, 2 rows"), ended


# ---------------------------------------------------------------- packages that are broken


def package(folder: Path, name: str, points: str, **modules: str) -> Path:
    """Leave in a folder what pip leaves of a package."""
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(textwrap.dedent(points))
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(text))
    return folder


BROKEN = """
    [headrace.sources]
    odd = broken_odd:read
    gone = broken_gone:read
    nothing = broken_odd:nothing
    number = broken_odd:number
    parquet = broken_odd:read
    [headrace.targets]
    odd = broken_odd:read
    [headrace.metrics]
    Odd = broken_odd:read
    [headrace.observers]
    Odd = broken_odd:Empty
    [headrace.engines]
    odd = broken_odd:Empty
    [headrace.models]
    broken_odd = broken_odd:Empty
    [headrace.formats]
    odd = broken_odd:number
    [headrace.commands]
    odd = broken_odd:number
    run = broken_odd:number
"""
ODD = """
    number = 5

    class Empty: ...

    def read(*args): return number
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return package(
        tmp_path / "site", "acme-broken", BROKEN, broken_odd=ODD, broken_gone="import no_such_library\n"
    )


USES = {
    "hr.read_gone()": "The package acme-broken brings the source 'gone', but broken_gone:read cannot be imported: "
    "ModuleNotFoundError: No module named 'no_such_library'. Update the package, or remove it: pip uninstall "
    "acme-broken",
    "hr.read_nothing": "brings the source 'nothing', but broken_odd:nothing cannot be imported: AttributeError",
    "hr.read_number": "but broken_odd:number is 5. It has to be a function or a class. This is a fault of the",
    "hr.read_odd()": "The source 'odd' of the package acme-broken returned int, and not a Source or a Dataset.",
    "hr.range(3).write_odd()": "The target 'odd' of the package acme-broken returned int, and not a FileSink. This",
    "hr.Odd": "It has to be a class and to have empty, update, merge, result, to_bytes, from_bytes. This is",
    "hr.observers.Odd": "is <class 'broken_odd.Empty'>. It has to be a class and to have on_event.",
    "hr.range(3).with_options(engine='odd')": "to have start, hold, release, machine, close.",
    "hr.range(3).predict(broken_odd.Empty())": "brings the model 'broken_odd', but broken_odd:Empty is <class",
    "hr.load_model('model.bin')": "in its constructor. The package acme-broken brings the model 'broken_odd', but",
}


@pytest.mark.annex
def test_what_is_broken_is_told_where_it_is_used(
    script: Callable[..., Any], tmp_path: Path, broken: Path
) -> None:
    (tmp_path / "model.bin").write_text("?")
    ended = script(
        f"""
        import warnings
        warnings.simplefilter("error")
        import headrace as hr
        import broken_odd

        assert dir(hr) and dir(hr.range(3)) and hr.range(3).map(lambda row: row).count() == 3
        assert hr.read_parquet.__module__ == "headrace.readers.parquet"  # a name of ours is ours
        exec("from headrace import *")
        for use in {list(USES)}:
            try:
                eval(use)
            except hr.errors.HeadraceError as error:
                print(error)
        """,
        env=path_of(broken),
    )
    told = ended.out.splitlines()
    assert len(told) == len(USES), ended
    assert ended.err == (
        "The package acme-broken brings the source 'parquet'. It is not used, as Headrace itself has one of this "
        "name. The authors of the package have to choose another name.\n"
    )
    assert [line for line, says in zip(told, USES.values(), strict=True) if says not in line] == []


WORDS = {
    "inspect in.odd": "headrace: The names of the input files do not show their format ('in.odd'). Give it: --format "
    "parquet|csv|tsv|json|text|images|orc|avro|numpy|webdataset|tfrecords|audio|video|binary|odd. The package "
    "acme-broken brings the format 'odd', but broken_odd:number is 5. It has to have suffixes, reader, all_suffixes. "
    "This is a fault of the package: report it to its authors.",
    "inspect in.odd --format odd": "headrace: The package acme-broken brings the format 'odd', but",
    "odd": "headrace: The package acme-broken brings the command 'odd', but broken_odd:number is 5.",
    "explain m:f in.csv --metric x=Odd(a)": "headrace: The package acme-broken brings the metric 'Odd', but",
}


@pytest.mark.annex
def test_a_command_tells_it_too(script: Callable[..., Any], tmp_path: Path, broken: Path) -> None:
    (tmp_path / "in.odd").write_text("1\n")
    (tmp_path / "in.csv").write_text("a\n1\n")
    (tmp_path / "m.py").write_text("def f(batch): return batch\n")
    ended = script(
        f"""
        import sys
        from headrace.annex.cli import main

        assert main(["--help"]) == 0 and main(["inspect", "in.csv"]) == 0
        for words in {list(WORDS)}:
            assert main(words.split()) == 2, words
        """,
        env=path_of(broken),
    )
    told = ended.err.splitlines()
    assert told.pop(0).startswith(
        "The package acme-broken brings the command 'run'. It is not used, as Headrace"
    )
    assert ended.code == 0 and len(told) == len(WORDS), ended
    assert [line for line, says in zip(told, WORDS.values(), strict=True) if says not in line] == []


def test_two_packages_with_one_name_and_one_that_is_damaged(
    script: Callable[..., Any], tmp_path: Path
) -> None:
    fine = "import headrace as hr\n\ndef read(): return hr.range(4)\n"
    for name in ("one", "two"):
        points = f"[headrace.sources]\ntwin = {name}:read\n{name} = {name}:read\n"
        package(tmp_path / "site", f"acme-{name}", points, **{name: fine})
    package(tmp_path / "site", "acme-damaged", "[headrace.sources]\nthis is no entry point\n")
    again = package(
        tmp_path / "again", "acme-one", "[headrace.sources]\none = one:read\n"
    )  # behind the first
    ended = script(
        """
        import headrace as hr

        print(hr.read_one().count(), hr.read_two().count())
        for name in ("read_twin", "read_twi", "read_twoo"):
            try:
                getattr(hr, name)
            except hr.errors.HeadraceError as error:
                print(error)
        try:
            hr.range(1).read_two
        except hr.errors.HeadraceError as error:
            print(error)
        """,
        env=path_of(tmp_path / "site", again),
    )
    assert ended.out.splitlines() == [
        "4 4",
        "Several installed packages bring the source 'twin': acme-one and acme-two. Keep one of them, and remove the "
        "others: pip uninstall acme-two",
        "Headrace has no read_twi. Did you mean 'read_twin'?",
        "Headrace has no read_twoo. Did you mean 'read_two'?",
        "A dataset has no verb 'read_two': hr.read_two(…) makes a dataset.",
    ], ended


def test_packages_are_read_only_for_a_name_that_is_not_ours(script: Callable[..., Any]) -> None:
    ended = script(
        """
        import sys
        import headrace as hr

        class Model:
            def __call__(self, batch):
                return batch["id"]

        data = hr.range(3).map_batches(lambda batch: batch).predict(Model, inputs=["id"], output="x")
        data.accumulate(n=hr.Count()).with_options(engine="inline").write_json("out")
        hr.read_json("out").count()
        from headrace.core import door
        print(door._installed.cache_info().misses)
        """
    )
    assert (ended.code, ended.out) == (0, "0\n"), ended.err
