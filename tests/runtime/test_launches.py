"""Launches through the driver's interface: the arguments that it gets run in the emulator."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import leapgen
from leapgen.oracle.emulator import EmulatedKernel, lower
from leapgen.oracle.emulator.lowering import PASS_CONFIGS
from leapgen.oracle.emulator.run import _Launch, _table
from leapgen.report import binaries
from leapgen.runtime import launches
from leapgen.runtime.emulated import Emulator
from leapgen.runtime.host import DTYPES, Module, Pool

INVALID_CONTEXT = 201


class Driver:
    """What `launches` calls of the driver, over the emulator, which takes arguments alike."""

    def __init__(self) -> None:
        self.kernels: dict[bytes, EmulatedKernel] = {}
        self.calls: list[str] = []
        self.launches: list[tuple[Any, ...]] = []
        self.entered = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            return 0

        return call

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.entered += 1
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 1 + list(self.kernels).index(name)
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        grid, block, (shared, stream, pointers, extra) = rest[:3], rest[3:6], rest[6:]
        self.launches.append((grid, block, shared, stream, extra))
        if not self.entered:
            return INVALID_CONTEXT
        kernel = list(self.kernels.values())[function.value - 1]
        info, table = _Launch(grid, block, 1, 0, 0, True), _table([], ())
        info.regions, info.region_count = ctypes.addressof(table), len(table)
        return int(kernel._launch(pointers, ctypes.byref(info)))


class Driven:
    """A backend: kernels as in a bundle, launched on the fake driver."""

    device = "cpu"

    def __init__(self, driver: Driver, file: Path) -> None:
        self.driver, self.file = driver, file

    def compile(
        self, func: Any, target: str | Mapping[str, str], pass_configs: Mapping[str, Any]
    ) -> Callable[..., None]:
        assert not isinstance(target, str)
        lowered = lower(func, target["arch"], {**PASS_CONFIGS, **pass_configs})
        self.driver.kernels[lowered.kernel.encode()] = EmulatedKernel(
            lowered.source,
            lowered.threads,
            kernel=lowered.kernel,
            dynamic_bytes=lowered.shared_bytes,
        )
        names = binaries.names_of(func)
        return launches.on_gpu(self.file, binaries.entry_of(lowered, names), names)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(launches, "_driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 77, raising=False)
    return made


def steps(module: Module) -> tuple[Pool, list[torch.Tensor]]:
    """Three tokens of two of three rows, on a strided pool."""
    generator = torch.Generator().manual_seed(3)
    pool = module.allocate(4, H=1, HV=2, K=16, V=24)
    slots = torch.tensor([3, -1, 1], dtype=torch.int32)
    state = torch.randn(3, 2, 24, 16, generator=generator)
    module.load_state(pool, slots, state)
    outs = []
    for _ in range(3):
        inputs = [
            torch.randn(i.sizes((3,), pool.shape), generator=generator).to(DTYPES[i.dtype])
            for i in module.inputs
        ]
        outs.append(module.step(pool, slots, *inputs))
    return pool, [*outs, module.materialize(pool, slots)]


def test_kernels_get_their_arguments(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "kernel.cubin"
    file.write_bytes(b"read by the driver only")
    module = leapgen.load("gdn", arch="sm90", format="fp32-step")
    pool, found = steps(module.with_backend(Driven(driver, file)))
    same, expected = steps(module.with_backend(Emulator()))
    assert all(map(torch.equal, found, expected))
    assert all(torch.equal(pool[name], same[name]) for name in pool)
    assert expected[-1].any()
    assert {stream for *_, stream, _ in driver.launches} == {77}
    grid, block, *_ = driver.launches[-1]
    assert grid[0] % 6 == 0  # 3 rows of 2 heads
    assert len(grid) == len(block) == 3


def test_a_thread_without_a_context_gets_one(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "kernel.cubin"
    file.write_bytes(b"")
    entry = {"symbol": "none", "parameters": [["x", "pointer"], ["n", "int32"]], "shared": 60000}
    entry |= {"grid": ["n", 1, 1], "block": [32, 1, 1]}
    driver.kernels[b"none"] = None  # type: ignore[assignment]
    launch = launches.on_gpu(file, entry, ["x", "n"])
    assert "cuFuncSetAttribute" in driver.calls
    driver.entered = 0
    with pytest.raises(AttributeError):  # the second attempt reaches the kernel, which is None
        launch(torch.zeros(1), 5)
    assert driver.entered == 1
    assert [grid for grid, *_ in driver.launches] == [(5, 1, 1)] * 2


def test_a_refusal_of_the_driver_has_its_name(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kernel.cubin"
    file.write_bytes(b"")
    monkeypatch.setattr(driver, "cuModuleLoadData", lambda *_: 209, raising=False)
    entry = {"symbol": "s", "parameters": [], "shared": 0, "grid": [1, 1, 1], "block": [1, 1, 1]}
    with pytest.raises(launches.DriverError, match=r"cuModuleLoadData: .* \(209\)"):
        launches.on_gpu(file, entry, [])


def test_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(launches.DriverError, match="no driver of a GPU: libcuda"):
        launches._driver.__wrapped__()


LIBRARY = """
extern "C" {
long long seen[16];
int cuInit(unsigned) { return 0; }
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = (void*)0x7000000000000001; return 0; }
int cuCtxSetCurrent(void* context) { seen[0] = (long long)context; return 0; }
int cuModuleLoadData(void** made, const char* code) {
  seen[1] = code[0] * 256 + code[1]; *made = (void*)0x7000000000000002; return 0; }
int cuModuleGetFunction(void** made, void* from, const char* name) {
  seen[2] = (long long)from; seen[3] = name[0]; *made = (void*)0x7000000000000003; return 0; }
int cuFuncSetAttribute(void* of, int, int value) {
  seen[4] = (long long)of; seen[5] = value; return 0; }
int cuLaunchKernel(void* of, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned shared, void* stream, void** arguments, void**) {
  seen[6] = (long long)of; seen[7] = x; seen[8] = threads; seen[9] = shared;
  seen[10] = (long long)stream;
  seen[11] = *(long long*)arguments[0]; seen[12] = *(int*)arguments[1];
  seen[13] = *(unsigned*)arguments[2]; seen[14] = *(long long*)arguments[3]; return 0; }
}
"""


def test_a_library_gets_every_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through ctypes, as the driver's own library would: 64 bits of handles and strides."""
    (tmp_path / "driver.cpp").write_text(LIBRARY)
    path = tmp_path / "driver.so"
    command = ["g++", "-shared", "-fPIC", "-o", str(path), str(tmp_path / "driver.cpp")]
    subprocess.run(command, check=True)
    library, real = ctypes.CDLL(str(path)), ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda _: real(str(path)))
    found = launches._driver.__wrapped__()
    monkeypatch.setattr(launches, "_driver", lambda: found)
    stream = 0x7000000000000009
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: stream, raising=False)
    file = tmp_path / "kernel.cubin"
    file.write_bytes(b"\1\2")
    parameters = [["x", "pointer"], ["n", "int32"], ["far", "uint32"], ["n_x", "int64"]]
    entry = {"symbol": "k", "parameters": parameters, "shared": 60000}
    entry |= {"grid": [["mul", "n", 32], 1, 1], "block": [128, 1, 1]}
    x = torch.zeros(7)
    launches.on_gpu(file, entry, ["far", "n", "x"])(2**32 - 1, 5, x)
    context, module, function = (0x7000000000000000 + i for i in (1, 2, 3))
    before = [context, 258, module, ord("k"), function, 60000]
    launch = [function, 160, 128, 60000, stream, x.data_ptr(), 5, 2**32 - 1, 7]
    assert list((ctypes.c_longlong * 16).in_dll(library, "seen"))[:15] == [*before, *launch]
