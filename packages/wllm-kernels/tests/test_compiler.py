"""From csrc/ to modules: the rules of the sources, what their digest covers, errors, the cache. Needs NVRTC, no GPU."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from wllm_kernels.compiler import container, modules, report
from wllm_kernels.compiler.build import build, check_sources, targets_of
from wllm_kernels.compiler.families import FAMILIES, PRELUDE, TARGETS, Family
from wllm_kernels.compiler.modules import compile_module
from wllm_kernels.compiler.nvrtc import Compiled, Nvrtc, find_wheel
from wllm_kernels.compiler.sources import CSRC, offences, source_of
from wllm_kernels.errors import CompilationFailed, InvalidArgument

KERNEL = """\
struct CopyParameters {
  const int* from;
  int* to;
};

KERNEL(copy_f32, CopyParameters, 32, 1) {
  params.to[threadIdx.x] = params.from[threadIdx.x];
}
"""
COPY = Family("copy", ("copy.cu",), targets=(86,))


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    """A folder of sources with the real prelude and one family, COPY."""
    folder = tmp_path / "csrc ü"
    folder.mkdir()
    for part in PRELUDE:
        shutil.copyfile(CSRC / part, folder / part)
    (folder / "copy.cu").write_text(KERNEL, encoding="utf-8", newline="\n")
    return folder


@pytest.fixture(scope="module")
def compiler() -> Nvrtc:
    """The NVRTC that builds the wheels."""
    if sys.platform == "darwin":
        pytest.skip("there is no NVRTC for macOS")
    return Nvrtc(find_wheel())


class Forbidden(Nvrtc):
    """A compiler that must not be asked."""

    def __init__(self, version: str) -> None:
        self.version = version

    def compile(self, *_: object) -> Compiled:
        raise AssertionError("compiled though it is in the cache")


def test_every_file_belongs_to_a_family() -> None:
    used = {*PRELUDE, *(part for family in FAMILIES for part in family.parts)}
    assert used == {path.name for path in CSRC.iterdir()}


def test_family_names_are_unique() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_targets_are_known() -> None:
    assert {target for family in FAMILIES for target in family.targets} <= set(TARGETS)


def test_the_sources_keep_the_rules() -> None:
    check_sources()


@pytest.mark.parametrize(
    "line",
    ["#include <cuda.h>", '# include "x.cuh"', "long a;", "unsigned long a;", "size_t a;", "__shared__ int a[8];"],
)
def test_a_broken_rule_is_found(line: str) -> None:
    (offence,) = offences(f"int first;\n{line}\n")
    assert offence[0] == 2


@pytest.mark.parametrize(
    "line",
    ["unsigned long long a;", "int belongs;", "// long\n", "/* long\n */", 'f("long");', "extern __shared__ u8 a[];"],
)
def test_what_keeps_the_rules_passes(line: str) -> None:
    assert offences(line) == []


def test_a_broken_rule_stops_the_build(csrc: Path) -> None:
    (csrc / "copy.cu").write_text(f"{KERNEL}long a;\n", encoding="utf-8")
    with pytest.raises(CompilationFailed, match=r"copy\.cu\(9\): no `long`"):
        build(csrc.parent / "built", cache=None, families=[COPY], csrc=csrc)


def test_the_digest_covers_every_part(csrc: Path) -> None:
    digests = {source_of(COPY, csrc).digest}
    for part in (*PRELUDE, "copy.cu"):
        with (csrc / part).open("a", encoding="utf-8") as file:
            file.write("// changed\n")
        digests.add(source_of(COPY, csrc).digest)
    digests.add(source_of(Family("copy", ("copy.cu",), defines=(("HEAD_DIM", "64"),)), csrc).digest)
    assert len(digests) == len(PRELUDE) + 3


def test_windows_newlines_change_nothing(csrc: Path) -> None:
    before = source_of(COPY, csrc)
    for part in (*PRELUDE, "copy.cu"):
        content = (csrc / part).read_bytes()
        (csrc / part).write_bytes(content.replace(b"\n", b"\r\n"))
    assert source_of(COPY, csrc) == before


def test_an_error_names_file_and_line(csrc: Path, compiler: Nvrtc) -> None:
    (csrc / "copy.cu").write_text(KERNEL.replace("params.from", "params.form"), encoding="utf-8")
    with pytest.raises(CompilationFailed, match=r'copy\.cu\(7\): error: class "CopyParameters" has no member "form"'):
        compile_module(source_of(COPY, csrc), "sm_86", compiler, None)


def test_a_warning_stops_the_build(csrc: Path, compiler: Nvrtc) -> None:
    (csrc / "copy.cu").write_text(KERNEL.replace("  params.to", "  int unused;\n  params.to"), encoding="utf-8")
    with pytest.raises(CompilationFailed, match=r"copy\.cu\(7\): warning"):
        build(csrc.parent / "built", cache=None, families=[COPY], csrc=csrc, say=lambda _: None)


def test_an_unknown_target_is_named(csrc: Path, compiler: Nvrtc) -> None:
    with pytest.raises(CompilationFailed, match="copy for sm_42"):
        compile_module(source_of(COPY, csrc), "sm_42", compiler, None)


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompilationFailed, match="absent"):
        Nvrtc(tmp_path / "absent")


def test_machine_code_and_ptx(csrc: Path, compiler: Nvrtc) -> None:
    source = source_of(COPY, csrc)
    assert compile_module(source, "sm_86", compiler, None).code.startswith(b"\x7fELF")
    # The driver takes PTX as a string of C.
    ptx = compile_module(source, "compute_80", compiler, None).code
    assert b".target sm_80" in ptx
    assert ptx.endswith(b"\0")


def test_the_cache_is_hit(csrc: Path, tmp_path: Path, compiler: Nvrtc) -> None:
    source = source_of(COPY, csrc)
    first = compile_module(source, "sm_86", compiler, tmp_path / "cache")
    second = compile_module(source, "sm_86", Forbidden(compiler.version), tmp_path / "cache")
    assert (second.packed, second.log) == (first.packed, first.log)


@pytest.mark.parametrize("what", ["source", "target", "compiler"])
def test_the_cache_is_missed(what: str, csrc: Path, tmp_path: Path, compiler: Nvrtc) -> None:
    compile_module(source_of(COPY, csrc), "sm_86", compiler, tmp_path)
    if what == "source":
        (csrc / "copy.cu").write_text(f"{KERNEL}\n", encoding="utf-8")
    other = Forbidden("13.0" if what == "compiler" else compiler.version)
    with pytest.raises(AssertionError):
        compile_module(source_of(COPY, csrc), "sm_80" if what == "target" else "sm_86", other, tmp_path)


@pytest.mark.parametrize("damage", [b"", b"{}\nxz", b'{"log": ""}\n', b"\xff\x00"])
def test_a_damaged_entry_is_compiled_anew(damage: bytes, csrc: Path, tmp_path: Path, compiler: Nvrtc) -> None:
    source = source_of(COPY, csrc)
    first = compile_module(source, "sm_86", compiler, tmp_path / "cache")
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_bytes(damage)
    assert compile_module(source, "sm_86", compiler, tmp_path / "cache").code == first.code
    assert compile_module(source, "sm_86", Forbidden(compiler.version), tmp_path / "cache").code == first.code
    assert list((tmp_path / "cache").iterdir()) == [entry]


def test_a_cache_that_cannot_be_written_costs_time_only(csrc: Path, tmp_path: Path, compiler: Nvrtc) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    assert compile_module(source_of(COPY, csrc), "sm_86", compiler, blocked / "cache").code


def test_the_cache_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WLLM_KERNELS_CACHE", str(tmp_path))
    assert modules.folder() == tmp_path


@pytest.mark.parametrize(
    ("target", "message"), [("90", "'90' is no target"), ("sm_50", "no family wanted is for sm_50")]
)
def test_a_target_that_nothing_can_be_built_for(target: str, message: str, csrc: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=message):
        build(tmp_path, cache=None, families=[COPY], targets=[target], csrc=csrc)


def test_a_target_needs_the_instructions_of_the_family() -> None:
    family = Family("fp8", ("fp8.cu",), targets=(89, 90))
    assert targets_of(family) == ("sm_89", "sm_90")
    assert targets_of(family, ("sm_80", "compute_80", "compute_89", "sm_120")) == ("compute_89", "sm_120")


def test_a_build_repeats_itself(csrc: Path, tmp_path: Path, compiler: Nvrtc) -> None:
    said: list[str] = []
    targets = ["sm_86", "sm_90", "compute_86"]
    for name in ("first", "second"):
        build(tmp_path / name, cache=None, families=[COPY], targets=targets, csrc=csrc, say=said.append)
    for name in (container.FILE_NAME, report.FILE_NAME):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert sum("3 modules, 3 compiled" in line for line in said) == 2


def test_a_build_from_the_cache_is_the_same(csrc: Path, tmp_path: Path, compiler: Nvrtc) -> None:
    said: list[str] = []
    for name in ("first", "second"):
        build(tmp_path / name, cache=tmp_path / "cache", families=[COPY], csrc=csrc, say=said.append)
    assert "1 modules, 0 compiled" in said[-1]
    for name in (container.FILE_NAME, report.FILE_NAME):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
