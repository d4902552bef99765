"""One copy of a model's weights per machine: what is shared, that it is not written to, and what it costs.

``HEADRACE_TEST_WEIGHTS_MIB`` sets the size of the model (256); with ``-s`` the figures are printed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch
from torch import nn

from headrace.core.engine_ports import Pool, PoolSpec, WorkerContext
from headrace.engines import out_of_band_pickle as parcel
from headrace.engines.local.pool import LocalEngine
from headrace.engines.local.spawner import Starting
from headrace.engines.out_of_band_pickle import pack, sizes, unpack
from headrace.predictors.torch.predictor import TorchPredictor

MIB = 1 << 20
MODEL = int(os.environ.get("HEADRACE_TEST_WEIGHTS_MIB", "128"))
WORKERS = 3
LINUX = sys.platform == "linux"
_MARK = "HEADRACE_TEST_FAMILY"


# ---------------------------------------------------------------- what travels


def travelled(value: Any) -> Any:
    """Pack and unpack, as the way to a worker does."""
    sent = pack(value)
    try:
        return unpack(msgspec.structs.replace(sent, fd=os.dup(sent.fd) if sent.fd >= 0 else -1))
    finally:
        sent.close()


@pytest.mark.parametrize("length", [0, 1, 1000, 40_000])
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.uint16,
        torch.float8_e4m3fn,
    ],
    ids=str,
)
def test_tensors_of_every_dtype_and_size_travel(dtype: torch.dtype, length: int) -> None:
    tensor = torch.arange(length).to(torch.float32).to(dtype)
    for value in (tensor, tensor[length // 2 :], tensor.expand(2, length).t()):
        made = travelled(value)
        assert (made.dtype, made.stride(), made.storage_offset()) == (
            dtype,
            value.stride(),
            value.storage_offset(),
        )
        assert made.tolist() == value.tolist()


def test_what_shares_a_storage_shares_it_again() -> None:
    base = torch.arange(1e5)
    weight = nn.Parameter(base.view(100, 1000), requires_grad=False)
    made = travelled([base, base[7:], base.view(1000, 100).t(), weight, base.untyped_storage(), weight])
    assert [tensor.data_ptr() - made[0].data_ptr() for tensor in made[1:5]] == [28, 0, 0, 0]
    made[0][7] = -1.0
    assert made[1][0] == made[3][0, 7] == -1.0
    assert made[5] is made[3] and type(made[3]) is nn.Parameter and not made[3].requires_grad
    assert base[7] == 7.0


def test_modules_keep_ties_buffers_flags_and_hooks() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(300, 64)
            self.out = nn.Linear(64, 300, bias=False)
            self.out.weight = self.words.weight
            self.norm = nn.BatchNorm1d(64)
            self.register_buffer("table", torch.arange(20_000), persistent=False)
            self.out.weight.requires_grad_(False)

    module = Both().eval()
    module.norm.register_forward_hook(lambda layer, args, out: out + 1)
    made = travelled(module)
    assert made.out.weight is made.words.weight and not made.out.weight.requires_grad
    assert made.norm.weight.requires_grad and not made.training
    assert torch.equal(made.table, module.table) and "table" not in made.state_dict()
    rows = torch.randn(5, 64)
    assert torch.equal(made.norm(rows), module.norm(rows))


def test_what_lies_elsewhere_travels_in_torchs_own_way() -> None:
    assert travelled(torch.empty(3, 4, device="meta")).shape == (3, 4)
    sparse = torch.eye(300).to_sparse()
    assert torch.equal(travelled(sparse).to_dense(), sparse.to_dense())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own way of quantised tensors is deprecated
        quantised = torch.quantize_per_tensor(torch.arange(1e5), 0.5, 3, torch.quint8)
        assert torch.equal(travelled(quantised).int_repr(), quantised.int_repr())


def test_arrays_inside_objects_are_shared_and_writable() -> None:
    value = {"a": [np.arange(1e5)], "b": {"t": torch.ones(100_000)}}
    made = travelled(value)
    made["a"][0][0] = made["b"]["t"][0] = 5.0
    assert value["a"][0][0] == 0.0 and value["b"]["t"][0] == 1.0  # type: ignore[index,call-overload]


def test_a_worker_gets_small_storages_in_band() -> None:
    sent = pack([torch.zeros(parcel.SMALL // 4 - 1), torch.zeros(0)])
    assert sent.fd == -1
    sent.close()


FACTOR = 4


@pytest.mark.parametrize("length", [1, 1 << 17])
def test_measuring_a_model_leaves_its_class_as_it_is(length: int) -> None:
    class Model:  # it travels by value, as one of a program does
        weights = np.ones(length)

        def __call__(self, batch: Any) -> Any:
            return batch * FACTOR

    called, weights = Model.__call__, Model.weights
    measured = sizes(Model)
    assert (measured.shared > 0) == (length > 1)
    assert Model.__call__ is called
    assert Model.weights is weights


# ---------------------------------------------------------------- sizes


def test_sizes_of_what_is_kept_and_of_what_is_copied() -> None:
    class Copies:
        """Hands out a buffer, and copies it when it is made again; as trees do."""

        def __init__(self, data: Any) -> None:
            self.data = np.array(data)

        def __reduce__(self) -> Any:
            return Copies, (self.data,)

    big = np.zeros(MIB, np.uint8)
    assert sizes(big).shared == MIB
    assert sizes([big, big]).shared == MIB
    copied = sizes(Copies(big))
    assert copied.shared == 0 and copied.private >= MIB
    mixed = sizes({"kept": big, "copied": Copies(big), "text": "x" * 1000})
    assert mixed.shared == MIB and MIB + 1000 < mixed.private < MIB + 20_000
    assert sizes(torch.nn.Linear(1000, 1000)).shared == 4_000_000
    assert sizes("little").shared == 0


def test_sizes_survive_what_cannot_be_made_again() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            return _fill, (np.zeros(MIB, np.uint8),)

    told = sizes(Stubborn())  # it writes to what it is given, and what it is given here is the user's own
    assert told.shared == 0 and told.private >= MIB


def _fill(array: Any) -> Any:
    array[:] = 1
    return array


def test_sizes_of_predictors(tmp_path: Path) -> None:
    module = nn.Linear(1000, 1000, bias=False)
    assert sizes(TorchPredictor(module)).shared == 4_000_000
    assert sizes(TorchPredictor(module, dtype="float16")).shared == 2_000_000


def test_sizes_of_a_large_module_copy_nothing() -> None:
    module = large()
    before = peak()
    told = sizes(module)
    assert told.shared == MODEL * MIB and told.private < 100_000
    assert peak() - before < MODEL * MIB / 10


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if LINUX else 1)


# ---------------------------------------------------------------- workers


def large(mib: int = MODEL) -> nn.Module:
    """Return layers of 16 MiB each."""
    torch.manual_seed(0)
    layers = [nn.Linear(2048, 2048, bias=False) for _ in range(mib // 16)]
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Seen:
    """What a worker says of itself."""

    pid: int
    pss: int
    """Proportional set size in bytes: what is shared counts in parts."""
    ready: float
    """Seconds from the parcel to a loaded model; this module was imported before, and so was torch."""


class Timed:
    """Travels as a pickle of its own, so that the time of making it again can be taken in the worker."""

    def __init__(self, predictor: TorchPredictor | None) -> None:
        self.predictor = predictor
        self.started = 0.0

    def __reduce__(self) -> Any:
        return _timed, (_Start(), self.predictor)


class _Start:
    def __reduce__(self) -> Any:
        return time.perf_counter, ()


def _timed(started: float, predictor: Any) -> Timed:
    timed = Timed(predictor)
    timed.started = started
    return timed


class Hosted:
    """Hosts a predictor, or only what it imports."""

    def __init__(self, timed: Timed, context: WorkerContext) -> None:
        self._predictor = timed.predictor
        if self._predictor is not None:
            self._predictor.load()
        self._ready = time.perf_counter() - timed.started

    def predict(self, rows: Any) -> Any:
        """Use every weight, as a forward pass does."""
        assert self._predictor is not None
        return self._predictor.predict({"x": rows})

    def warm(self, rows: Any) -> None:
        """Bring in what any forward pass needs."""
        self._warm = TorchPredictor(nn.Linear(rows.shape[1], 8))
        self._warm.load()
        self._warm.predict({"x": rows})

    def sums(self) -> list[int]:
        """Return a checksum of each layer's weights."""
        return checksums(self._weights())

    def overwrite(self) -> None:
        """Write to every weight."""
        with torch.no_grad():
            for weight in self._weights():
                weight.fill_(1.0)

    def _weights(self) -> Any:
        assert self._predictor is not None
        return list(self._predictor._model.parameters())

    def seen(self) -> Seen:
        """Say how this worker is."""
        return Seen(os.getpid(), pss(), self._ready)


def checksums(weights: Any) -> list[int]:
    return [zlib.crc32(weight.detach().numpy()) for weight in weights]


def pss() -> int:
    """Proportional set size of this process, in bytes; 0 where the system does not tell."""
    if not LINUX:
        return 0
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss in smaps_rollup")


@pytest.fixture
def start(no_template: None, request: pytest.FixtureRequest) -> Iterator[Callable[..., Pool]]:
    starting = Starting(modules=(*Starting().modules, *getattr(request, "param", ())))
    engine = LocalEngine(starting=starting)

    def start(predictor: TorchPredictor | None, size: int = WORKERS) -> Pool:
        spec = PoolSpec("weights", partial(Hosted, Timed(predictor)), size, threads=1)
        return engine.start(spec, lambda worker, message: None)

    yield start
    engine.close(kill=True)


imported_once = pytest.mark.parametrize("start", [["torch"]], indirect=True, ids=[""])  # not by each worker


def everyone(pool: Pool, method: str, *args: Any) -> dict[int, Any]:
    asked = {worker: pool.submit(method, *args, worker=worker) for worker in pool.loads()}
    return {worker: future.result() for worker, future in asked.items()}


def test_workers_share_one_copy_and_a_further_one_is_ready_at_once(start: Callable[..., Pool]) -> None:
    module = large()
    rows = np.random.default_rng(0).normal(size=(8, 2048)).astype(np.float32)
    with torch.inference_mode():
        expected = module(torch.from_numpy(rows)).numpy()
    pool = start(TorchPredictor(module))
    bare = start(None, 1)
    for made in everyone(pool, "predict", rows).values():
        np.testing.assert_allclose(made, expected, atol=1e-5)
    everyone(bare, "warm", rows)
    with_model = [seen.pss for seen in everyone(pool, "seen").values()]
    (without,) = [seen.pss for seen in everyone(bare, "seen").values()]
    beyond_the_first = (sum(with_model) - WORKERS * without - MODEL * MIB) / (WORKERS - 1)
    pool.resize(WORKERS + 1)
    seen = everyone(pool, "seen").values()
    print(
        f"\n{MODEL} MiB, {WORKERS} workers. PSS with the model {_mib(with_model)}, without {_mib([without])}; "
        f"each worker beyond the first: {beyond_the_first / MIB:.1f} MiB. "
        f"made and loaded in a worker: {[round(one.ready, 3) for one in seen]} s"
    )
    assert len(seen) == WORKERS + 1
    if LINUX:
        assert beyond_the_first < 0.1 * MODEL * MIB


def _mib(sizes: list[int]) -> str:
    return ", ".join(f"{size / MIB:.0f}" for size in sizes)


@imported_once
def test_what_a_worker_writes_nobody_else_sees(start: Callable[..., Pool]) -> None:
    module = large(32)
    wanted = checksums(module.parameters())
    pool = start(TorchPredictor(module), 2)
    first, second = sorted(pool.loads())
    assert list(everyone(pool, "sums").values()) == [wanted, wanted]
    pool.submit("overwrite", worker=first).result()
    assert pool.submit("sums", worker=first).result() == checksums([torch.ones(2048, 2048)] * 2)
    assert pool.submit("sums", worker=second).result() == wanted
    pool.resize(3)
    (third,) = set(pool.loads()) - {first, second}
    assert pool.submit("sums", worker=third).result() == wanted
    assert checksums(module.parameters()) == wanted


# ---------------------------------------------------------------- nothing stays behind


@imported_once
@pytest.mark.skipif(not LINUX, reason="looks into /proc")
def test_nothing_remains_after_a_run(start: Callable[..., Pool]) -> None:
    pool = start(TorchPredictor(large(32)), 2)
    pids = [seen.pid for seen in everyone(pool, "seen").values()]
    assert all(memory_files(pid) for pid in (*pids, os.getpid()))
    pool.close()
    assert memory_files(os.getpid()) == []
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.skipif(not LINUX, reason="looks into /proc")
def test_nothing_remains_after_a_driver_was_killed() -> None:
    tests = str(Path(__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {tests!r}); from engines.test_weights import drive; drive()"
    mark = f"weights-{os.getpid()}"
    driver = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, _MARK: mark}, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    family = [psutil.Process(pid) for pid in (driver.pid, *pids)]
    assert len(family) == 3 and all(memory_files(process.pid) for process in family)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    psutil.wait_procs(family)
    assert [pid for pid in psutil.pids() if marked(pid, mark)] == []
    assert not [name for name in os.listdir("/dev/shm") if "headrace" in name]


def drive() -> None:
    """Be a driver with two workers that hold weights, until killed."""
    engine = LocalEngine(starting=Starting(modules=(*Starting().modules, "torch")))
    spec = PoolSpec("weights", partial(Hosted, Timed(TorchPredictor(large(32)))), 2, threads=1)
    pool = engine.start(spec, lambda worker, message: None)
    print(*(seen.pid for seen in everyone(pool, "seen").values()), flush=True)
    signal.pause()


def memory_files(pid: int) -> list[str]:
    """Return our memory files that a process maps or holds open."""
    names = []
    with contextlib.suppress(OSError):
        names += Path(f"/proc/{pid}/maps").read_text().splitlines()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # that of this very look
                names.append(os.readlink(link))
    return [name for name in names if "memfd:headrace" in name]


def marked(pid: int, mark: str) -> bool:
    """Say whether a process was started by the driver of that mark."""
    try:
        return psutil.Process(pid).environ().get(_MARK) == mark
    except psutil.Error:
        return False
