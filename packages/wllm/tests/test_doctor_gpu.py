"""The checks of `wllm doctor` on drivers, GPUs, torch and wheels, each with its broken set-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch
from stub_driver import AVAILABLE, StubLibrary, build

import wllm_kernels
from wllm.doctor import driver as driver_module
from wllm.doctor import torch_probe
from wllm.doctor.checks import gpu, packages
from wllm.doctor.driver import Driver, GpuOfDriver, ask_driver
from wllm.doctor.facts import Facts, Torch, TorchGpu, ask_torch
from wllm.doctor.finding import Finding, Verdict
from wllm_kernels import Capabilities, Gpu, UnsupportedByGpu
from wllm_kernels.compiler.families import TARGETS
from wllm_kernels.device import cuda_backend, driver

Look = Callable[[Facts], Iterator[Finding]]

CPU_TORCH, CUDA_TORCH = Torch("2.13.0+cpu"), Torch("2.13.0+cu130", "13.0")
GPU = Gpu(0, "RTX 1", "8.9", "CUDA 13.0", {"norm": "sm_89 (container)"})
NO_DRIVER = Driver(loaded=False, problem="no such file")
RTX_4070, RTX_5090, GTX_1080 = (
    GpuOfDriver(f"NVIDIA {name}", capability)
    for name, capability in (("RTX 4070", (8, 9)), ("RTX 5090", (12, 0)), ("GTX 1080", (6, 1)))
)


def one(look: Look, driver: Driver = NO_DRIVER, torch: Torch = CPU_TORCH, smi: str = "") -> Finding:
    """The only finding. `smi`: what nvidia-smi says, of one GPU."""
    found = many(look, driver, torch, smi)
    assert len(found) == 1, found
    return found[0]


def many(look: Look, driver: Driver = NO_DRIVER, torch: Torch = CPU_TORCH, smi: str = "") -> list[Finding]:
    def ask_smi(columns: str) -> list[dict[str, str]]:
        return [dict(zip(columns.split(","), smi.split(", ")))] if smi else []

    return list(look(Facts(driver=lambda: driver, torch=lambda: torch, smi=ask_smi)))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> StubLibrary:
    if not AVAILABLE:
        pytest.skip("the stub driver needs a C compiler (gcc)")
    stub = StubLibrary(build(tmp_path_factory.mktemp("driver")))
    stub.state.reset()
    return stub


# The driver and the GPUs


def test_the_driver_is_asked_for_its_version_and_gpus(library: StubLibrary) -> None:
    library.state.reset()
    library.state.capability[:] = (89, 120, 0, 0)
    found = ask_driver(str(library.path))
    assert found == Driver(True, 12090, (GpuOfDriver("Stub GPU", (8, 9)), GpuOfDriver("Stub GPU", (12, 0))))
    assert one(gpu.driver, found).seen == "CUDA 12.9, 2 GPU(s)"
    assert library.state.contexts == 0


@pytest.mark.parametrize(
    ("version", "result", "verdict", "words"),
    [
        (11080, 0, Verdict.PROBLEM, "CUDA 11.8"),
        (12090, 100, Verdict.WARNING, "finds no GPU"),
        (12090, 804, Verdict.WARNING, "cuInit returned 804"),
    ],
)
def test_a_driver_that_does_not_serve(
    version: int, result: int, verdict: Verdict, words: str, library: StubLibrary
) -> None:
    library.state.reset()
    library.state.version, library.state.init_result = version, result
    found = one(gpu.driver, ask_driver(str(library.path)))
    assert found.verdict is verdict and words in found.seen and found.fix


def test_no_driver_is_no_fault(tmp_path: Path) -> None:
    found = one(gpu.driver, ask_driver(str(tmp_path / "none.dll")))
    assert found.verdict is Verdict.NOTE and "none.dll" in found.seen and "nvidia.com/drivers" in found.fix
    assert many(gpu.gpus) == many(gpu.gpu_memory, smi="is not asked") == []


def test_hidden_gpus_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    found = one(gpu.driver, Driver(True, 13000, problem="it finds no GPU"))
    assert found.verdict is Verdict.WARNING and "unset CUDA_VISIBLE_DEVICES, which is '-1'" in found.fix


def test_the_oldest_driver_is_that_of_the_kernels() -> None:
    assert (driver_module.MINIMUM_VERSION, driver_module.LIBRARY) == (driver.MINIMUM_VERSION, driver.LIBRARY)


def test_the_oldest_gpu_is_that_of_the_kernels() -> None:
    assert divmod(min(TARGETS), 10) == gpu._OLDEST


def test_an_old_gpu_is_told_by_name() -> None:
    found = many(gpu.gpus, Driver(True, 12080, (RTX_4070, GTX_1080)))
    assert [finding.verdict for finding in found] == [Verdict.OK, Verdict.WARNING]
    assert "GTX 1080 (compute capability 6.1)" in found[1].seen and "7.5" in found[1].reason


@pytest.mark.parametrize(
    ("smi", "verdict", "words"),
    [
        ("RTX 4070, 11000 MiB, 12282 MiB, 581.15", Verdict.OK, "RTX 4070: 10.7 GiB of 12.0 GiB free, driver 581.15"),
        ("RTX 4070, 900 MiB, 12282 MiB, 581.15", Verdict.WARNING, "900 MiB of 12.0 GiB"),
        ("GB10, [N/A], [N/A], 581.15", Verdict.NOTE, "tells no sizes"),
    ],
)
def test_free_memory(smi: str, verdict: Verdict, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    found = one(gpu.gpu_memory, Driver(True, 13000, (RTX_4070,)), smi=smi)
    assert found.verdict is verdict and words in found.seen


def test_the_model_of_a_windows_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    row = "RTX 4070, 11000 MiB, 12282 MiB, 581.15, "
    found = one(gpu.gpu_memory, Driver(True, 13000, (RTX_4070,)), smi=row + "WDDM")
    assert found.verdict is Verdict.NOTE and "WDDM" in found.seen and "Prefer No Sysmem Fallback" in found.fix
    assert one(gpu.gpu_memory, Driver(True, 13000, (RTX_4070,)), smi=row + "TCC").verdict is Verdict.OK


# R47: no code for a GPU.
def test_a_gpu_without_code_is_a_problem() -> None:
    bad = TorchGpu("RTX 9090", "RTX 9090 (sm_150): the container has sm_75..sm_120")
    good = TorchGpu("RTX 4070", code=["sm_89 (container)"])
    driver = Driver(True, 13000, (RTX_4070,))
    found = many(gpu.kernels, driver, Torch("2.13.0", "13.0", gpus=(bad, good)))
    assert [finding.verdict for finding in found] == [Verdict.PROBLEM, Verdict.OK]
    assert "sm_150" in found[0].seen and "sm_89" in found[1].seen
    blind = one(gpu.kernels, driver, Torch("2.13.0", "13.0", problem="torch 2.13.0 sees no GPU"))
    assert blind.verdict is Verdict.PROBLEM and "sees no GPU" in blind.seen


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, ""),
        (UnsupportedByGpu("RTX 0 has compute capability 1.0"), "RTX 0 has compute capability 1.0"),
        (RuntimeError("CUDA out of memory"), "torch cannot use RTX 1: RuntimeError: CUDA out of memory"),
    ],
)
def test_what_the_probe_says_of_a_gpu(error: Exception | None, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_gpu(_: torch.device) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "RTX 1")
    monkeypatch.setattr(wllm_kernels, "check_gpu", check_gpu)
    monkeypatch.setattr(wllm_kernels, "capabilities", lambda: Capabilities({}, (GPU,), None))
    found = torch_probe.facts()
    assert found["gpus"] == [{"name": "RTX 1", "problem": words, "code": ["sm_89 (container)"]}]
    assert found["cuda"] == "13.0" and found["problem"] == ""


def test_what_the_probe_says_where_torch_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpus() -> None:
        raise UnsupportedByGpu("the reason")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cuda_backend, "gpus", no_gpus)
    assert torch_probe.facts() == {"version": torch.__version__, "cuda": "13.0", "problem": "the reason"}


def test_kernels_without_a_gpu() -> None:
    assert one(gpu.kernels).verdict is Verdict.OK
    assert one(gpu.kernels, torch=CUDA_TORCH).verdict is Verdict.NOTE
    assert many(gpu.kernels, torch=Torch()) == []


# torch and the wheels


def with_gpu(version: int, *gpus: GpuOfDriver) -> Driver:
    return Driver(True, version, gpus or (RTX_4070,))


@pytest.mark.parametrize(
    ("driver", "command"),
    [
        (with_gpu(13010), "whl/cu130"),
        (with_gpu(12080), "whl/cu126"),
        (with_gpu(13000, RTX_5090), "whl/cu130"),
        (with_gpu(12080, RTX_5090), "update the NVIDIA driver (R580 or newer), then: "),
        (with_gpu(11080), "update the NVIDIA driver (R580 or newer), then: "),
    ],
)
def test_a_cpu_torch_beside_a_gpu_gets_the_one_command(driver: Driver, command: str) -> None:
    found = one(packages.torch, driver)
    assert found.verdict is Verdict.PROBLEM
    assert "2.13.0+cpu, a CPU build, beside NVIDIA RTX" in found.seen
    assert command in found.fix and 'pip install --force-reinstall "torch>=2.9,<2.16" --index-url' in found.fix


@pytest.mark.parametrize(
    ("driver", "torch", "verdict", "words"),
    [
        (NO_DRIVER, CPU_TORCH, Verdict.OK, "whatever"),
        (with_gpu(13000), CUDA_TORCH, Verdict.OK, "whatever"),
        (with_gpu(13000), Torch("2.13.0+cu126", "12.6"), Verdict.OK, "whatever"),
        (with_gpu(12080), CUDA_TORCH, Verdict.PROBLEM, "whl/cu126"),
        (Driver(True, 12080, problem="it finds no GPU"), CUDA_TORCH, Verdict.OK, "whatever"),
        (NO_DRIVER, Torch(), Verdict.PROBLEM, "whl/cpu"),
        (NO_DRIVER, Torch("2.8.1"), Verdict.PROBLEM, ">=2.9,<2.16"),
        (NO_DRIVER, Torch("2.16.0+cpu"), Verdict.PROBLEM, ">=2.9,<2.16"),
        (NO_DRIVER, Torch("2.15.1.dev3+cpu"), Verdict.OK, "whatever"),
        (with_gpu(13000), Torch(error="ImportError: libcudart"), Verdict.PROBLEM, "whl/cu130"),
        (with_gpu(13000), Torch(error="did not end", is_slow=True), Verdict.WARNING, "again when the machine is idle"),
    ],
)
def test_the_installed_torch(driver: Driver, torch: Torch, verdict: Verdict, words: str) -> None:
    found = one(packages.torch, driver, torch)
    assert found.verdict is verdict
    assert verdict is Verdict.OK or words in found.reason + found.fix


def test_the_torch_of_this_environment() -> None:
    found = ask_torch()
    assert (found.version, found.cuda, found.error) == (torch.__version__, torch.version.cuda, "")


@pytest.mark.parametrize(
    ("versions", "verdict", "words"),
    [
        ({"pywin32": None}, Verdict.OK, "all six, 1.2.3"),  # of another system
        (
            {"wllm-cache": "1.2.2"},
            Verdict.PROBLEM,
            "wllm-cache 1.2.2, wllm-kernels 1.2.3, wllm-runtime 1.2.3, wllm-sched 1.2.3",
        ),
        ({"wllm-sched": None, "wllm-api": None}, Verdict.PROBLEM, "not installed: wllm-api, wllm-sched"),
        ({"numpy": None, "psutil": None}, Verdict.PROBLEM, "not installed: numpy, psutil"),
        ({"numpy": None, "torch": None}, Verdict.PROBLEM, "not installed: numpy"),
        ({"torch": None}, Verdict.OK, "all six, 1.2.3"),  # a check of its own
    ],
)
def test_a_broken_set_of_wheels(
    versions: dict[str, str | None], verdict: Verdict, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        found = versions.get(name, "1.2.3")
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    needs = [
        "psutil>=6.0",
        "numpy>=1.26",
        "torch>=2.9,<2.16",
        "wllm-sched==1.2.3",
        "pywin32>=1; sys_platform == 'win32'",
    ]
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    found = many(packages.wheels)
    assert found[-1].verdict is verdict and found[-1].seen.endswith(words)
    assert verdict is Verdict.OK or "pip install" in found[-1].fix


def test_sources_without_wheels_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_version", lambda name: None)
    assert one(packages.wheels).verdict is Verdict.NOTE


# The whole command, on a driver that is older than torch


def test_the_command_on_a_stub_driver(library: StubLibrary) -> None:
    code = (
        "import sys; from stub_driver import StubLibrary; from pathlib import Path;"
        "from wllm.cli import main; from wllm.doctor import facts, driver;"
        "stub = StubLibrary(Path(sys.argv[1])); stub.state.reset(); stub.state.version = 11080;"
        "stub.state.capability[:] = (89, 0, 0, 0); driver.ask_driver.__defaults__ = (sys.argv[1],);"
        "sys.exit(main(['doctor', '--json', '--port', '0']))"
    )
    path = os.pathsep.join([str(Path(sys.modules["stub_driver"].__file__ or "").parents[1]), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code, str(library.path)],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = {row["check"]: row for row in json.loads(done.stdout)["findings"]}
    assert found["NVIDIA driver"]["verdict"] == "problem" and "R525" in found["NVIDIA driver"]["fix"]
    assert found["GPU 0"]["seen"] == "Stub GPU (compute capability 8.9)"
    assert found["torch"]["verdict"] == "problem" and "update the NVIDIA driver" in found["torch"]["fix"]


def test_a_torch_that_is_too_new_for_the_gpu_and_its_driver_can_stay() -> None:
    found = one(packages.torch, with_gpu(12080, RTX_5090), CUDA_TORCH)
    assert found.fix == "update the NVIDIA driver (R580 or newer)"
