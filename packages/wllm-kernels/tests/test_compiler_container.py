"""The container and the report, with made-up modules."""

from __future__ import annotations

import dataclasses
import lzma
from pathlib import Path

import pytest

from wllm_kernels.compiler.container import Container, write
from wllm_kernels.compiler.families import FAMILIES
from wllm_kernels.compiler.report import KernelUse, kernels_in, parse, table
from wllm_kernels.compiler.sources import source_of
from wllm_kernels.errors import KernelError

CODES = {("norm", "sm_86"): b"one" * 100, ("norm", "compute_80"): b"\0", ("sampler", "sm_86"): b"three"}
MODULES = {key: lzma.compress(code) for key, code in CODES.items()}
LOG = """\
ptxas info    : Compiling entry function 'decode_bf16_d256' for 'sm_86'
ptxas info    : Function properties for decode_bf16_d256
ptxas         .     24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 64 bytes smem, 448 bytes cmem[0]
ptxas info    : Compiling entry function 'decode_bf16_d64' for 'sm_86'
ptxas info    : Function properties for decode_bf16_d64
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 90 registers, used 0 barriers, 392 bytes cmem[0]
"""


@pytest.fixture
def container(tmp_path: Path) -> Container:
    """The written and opened container of MODULES."""
    write(tmp_path / "folder ü" / "kernels.wk", "12.9", {"norm": "digest"}, MODULES)
    return Container(tmp_path / "folder ü" / "kernels.wk")


def test_round_trip(container: Container) -> None:
    assert {key: container.code(*key) for key in CODES} == CODES
    assert set(container.targets("norm")) == {"sm_86", "compute_80"}
    assert container.targets("unknown") == ()
    assert (container.compiler, container.sources) == ("12.9", {"norm": "digest"})


def test_the_order_of_modules_does_not_matter(container: Container, tmp_path: Path) -> None:
    write(tmp_path / "other.wk", "12.9", {"norm": "digest"}, dict(reversed(MODULES.items())))
    assert (tmp_path / "other.wk").read_bytes() == container.path.read_bytes()


def test_a_missing_module_is_a_key_error(container: Container) -> None:
    with pytest.raises(KeyError):
        container.code("sampler", "sm_90")


def test_a_changed_source_is_noticed(tmp_path: Path) -> None:
    family = FAMILIES[0]
    write(tmp_path / "kernels.wk", "12.9", {family.name: source_of(family).digest}, {})
    assert Container(tmp_path / "kernels.wk").is_current(family)
    changed = dataclasses.replace(family, defines=(("CHANGED", "1"),))
    assert not Container(tmp_path / "kernels.wk").is_current(changed)


def test_an_absent_family_is_not_current(container: Container) -> None:
    assert not container.is_current(dataclasses.replace(FAMILIES[0], name="new"))


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"wllm-wk1\2\0\0\0[]", b"wllm-wk1\xff\xff\0\0{}"])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "kernels.wk").write_bytes(content)
    with pytest.raises(KernelError, match="no kernel container"):
        Container(tmp_path / "kernels.wk")


def test_damage_is_noticed(container: Container) -> None:
    content = bytearray(container.path.read_bytes())
    content[-20] ^= 1
    container.path.write_bytes(content)
    with pytest.raises(KernelError, match="damaged at family sampler, sm_86"):
        container.code("sampler", "sm_86")
    assert container.code("norm", "sm_86") == CODES["norm", "sm_86"]


def test_an_absent_container_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Container(tmp_path / "kernels.wk")


def test_the_report_is_read_from_the_log() -> None:
    assert kernels_in("decode", LOG) == [
        KernelUse("decode", "decode_bf16_d256", "sm_86", registers=255, stack=24, spills=20, shared=64, parameters=96),
        KernelUse("decode", "decode_bf16_d64", "sm_86", registers=90, stack=0, spills=0, shared=0, parameters=40),
    ]


@pytest.mark.parametrize(
    ("family", "kernel", "head_dim"),
    [("decode", "decode_bf16_d256", 256), ("decode_e4m3_d80", "decode_f16_e4m3", 80), ("norm", "rms_norm_f16", None)],
)
def test_the_head_dimension_is_in_a_name(family: str, kernel: str, head_dim: int | None) -> None:
    assert KernelUse(family, kernel, "sm_86", 32, 0, 0, 0, None).head_dim == head_dim


def test_the_table_is_read_again() -> None:
    uses = kernels_in("decode", LOG)
    uses.append(dataclasses.replace(uses[0], target="sm_90", parameters=None))
    assert parse(table(reversed(uses))) == [uses[0], uses[2], uses[1]]
