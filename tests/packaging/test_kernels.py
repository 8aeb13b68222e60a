"""The machine code in the wheel of wllm-kernels: complete, of these sources, small, and as its authors think it is."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from wllm_kernels.compiler.container import Container
from wllm_kernels.compiler.families import FAMILIES
from wllm_kernels.compiler.report import KernelUse, parse
from wllm_kernels.compiler.sources import source_of
from wllm_kernels.device.kernel import Kernel

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "packages" / "wllm-kernels" / "src" / "wllm_kernels" / "csrc"
MODULES = [(family.name, f"sm_{target}") for family in FAMILIES for target in family.targets]
MAX_WHEEL_BYTES = 5_000_000
# Up to this head dimension the registers suffice; larger ones may spill, and the report lists them.
MAX_HEAD_DIM_WITHOUT_SPILLS = 128


@pytest.fixture(scope="module")
def wheel_path(dist: Path) -> Path:
    """The wheel of wllm-kernels."""
    (path,) = dist.glob("wllm_kernels-*.whl")
    return path


@pytest.fixture(scope="module")
def container(wheel_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Container:
    """The wheel's container."""
    with zipfile.ZipFile(wheel_path) as wheel:
        return Container(Path(wheel.extract("wllm_kernels/kernels.wk", tmp_path_factory.mktemp("wheel"))))


@pytest.fixture(scope="module")
def kernels(wheel_path: Path) -> list[KernelUse]:
    """The wheel's report."""
    with zipfile.ZipFile(wheel_path) as wheel:
        return parse(wheel.read("wllm_kernels/kernels-report.txt").decode("utf-8"))


def test_small(wheel_path: Path) -> None:
    assert wheel_path.stat().st_size < MAX_WHEEL_BYTES


@pytest.mark.parametrize(("family", "target"), MODULES)
def test_every_family_has_code_for_every_target(family: str, target: str, container: Container) -> None:
    assert container.code(family, target).startswith(b"\x7fELF")


def test_nothing_else_is_in_the_container(container: Container) -> None:
    inside = [(family.name, target) for family in FAMILIES for target in container.targets(family.name)]
    assert sorted(inside) == sorted(MODULES)
    assert set(container.sources) == {family.name for family in FAMILIES}


def test_built_from_these_sources(container: Container) -> None:
    assert container.sources == {family.name: source_of(family, CSRC).digest for family in FAMILIES}


def test_built_for_drivers_of_cuda_12(container: Container) -> None:
    """A later compiler's code needs a driver of CUDA 13."""
    assert container.compiler == "12.9"


def test_the_report_has_every_module(kernels: list[KernelUse]) -> None:
    assert {(use.family, use.target) for use in kernels} == set(MODULES)


def test_no_kernel_spills(kernels: list[KernelUse]) -> None:
    small = [use for use in kernels if (use.head_dim or 0) <= MAX_HEAD_DIM_WITHOUT_SPILLS]
    assert small
    assert [use for use in small if use.spills] == []


def test_every_kernel_of_python_is_in_the_wheel(kernels: list[KernelUse]) -> None:
    launched = {(kernel.family, kernel.name) for kernel in Kernel.all}
    assert launched == {(use.family, use.kernel) for use in kernels}


def test_parameters_have_the_size_that_python_packs(kernels: list[KernelUse]) -> None:
    """The compiler's count may lack the padding behind the last field."""
    compiled = {(use.family, use.kernel): use.parameters for use in kernels if use.parameters is not None}
    packed = {(kernel.family, kernel.name): kernel.parameter_bytes for kernel in Kernel.all}
    assert compiled.keys() == packed.keys()
    assert {key: packed[key] for key in packed if not 0 <= packed[key] - compiled[key] < 8} == {}
