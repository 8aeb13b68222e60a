"""The emulator itself: its twin of the hardware's instructions, and what it reports."""

from __future__ import annotations

import struct

import pytest
import torch
from emulator.backend import Emulator, EmulatorError, source_of_files
from torch import Tensor

PROBES = """
struct ProbeParameters { const void* input; const void* other; void* output; i64 size; };

template <class T>
DEVICE void multiply(const ProbeParameters& p) {  // output [16, 8] = input [16, 16] . other [16, 8]
  SHARED_MEMORY(shared);
  const int lane = threadIdx.x;
  const u32 a_address = shared_address(shared), b_address = a_address + 512;
  copy_async16(a_address + lane * 16, (const u8*)p.input + lane * 16, true);
  if (lane < 16) copy_async16(b_address + lane * 16, (const u8*)p.other + lane * 16, true);
  copy_async_commit();
  copy_async_wait<0>();
  __syncwarp();
  u32 a[4], b[4];
  float c[4] = {1.f, 1.f, 1.f, 1.f};
  // Quarters of a in the order of the fragment: upper left, lower left, upper right, lower right.
  load_matrices(a, a_address + (lane % 16) * 32 + lane / 16 * 16);
  load_matrices_transposed(b, b_address + lane % 16 * 16);
  multiply_add<T>(c, a, b[0], b[1]);
  float* out = (float*)p.output + lane / 4 * 8 + lane % 4 * 2;
  out[0] = c[0], out[1] = c[1], out[64] = c[2], out[65] = c[3];
}
KERNEL(multiply_f16, ProbeParameters, 32, 1) { multiply<f16>(params); }
#if __CUDA_ARCH__ >= 800
KERNEL(multiply_bf16, ProbeParameters, 32, 1) { multiply<bf16>(params); }
#endif

#if __CUDA_ARCH__ >= 890
KERNEL(from_e4m3, ProbeParameters, 1, 1) {
  for (int i = 0; i < params.size; i++) ((float*)params.output)[i] = to_float(((const e4m3*)params.input)[i]);
}
KERNEL(to_e4m3, ProbeParameters, 1, 1) {
  for (int i = 0; i < params.size; i++) ((e4m3*)params.output)[i] = from_float<e4m3>(((const float*)params.input)[i]);
}
#endif

KERNEL(collectives, ProbeParameters, 32, 1) {
  int* out = (int*)params.output + threadIdx.x * 8;
  const int lane = threadIdx.x;
  out[0] = __shfl_xor_sync(WHOLE_WARP, lane, 5);
  out[1] = __shfl_up_sync(WHOLE_WARP, lane, 3);
  out[2] = __shfl_down_sync(WHOLE_WARP, lane, 3);
  out[3] = __shfl_sync(WHOLE_WARP, lane, 9);
  out[4] = __ballot_sync(WHOLE_WARP, lane % 3 == 0);
  out[5] = lane < 16 ? __shfl_xor_sync(0xffffu, lane, 1) : __shfl_xor_sync(0xffff0000u, lane, 2);
  out[6] = __byte_perm(0x33221100, 0x77665544, 0x6420);
  out[7] = __shfl_down_sync(WHOLE_WARP, lane, 3, 8);
}

// Each thread of a block gives the next one its number.
KERNEL(pass_on, ProbeParameters, 128, 1) {
  SHARED_MEMORY(shared);
  int* numbers = (int*)shared;
  numbers[threadIdx.x] = threadIdx.x;
  if (params.size) __syncthreads();
  ((int*)params.output)[threadIdx.x] = numbers[(threadIdx.x + 1) % 128];
}

KERNEL(no_wait, ProbeParameters, 32, 1) {
  SHARED_MEMORY(shared);
  copy_async16(shared_address(shared) + threadIdx.x * 16, (const u8*)params.input + threadIdx.x * 16, true);
  copy_async_commit();
  if (params.size) copy_async_wait<0>();
  store16((u8*)params.output + threadIdx.x * 16, load16(shared + threadIdx.x * 16));
}

// Copies a byte a thread; waits at the time that `size` says.
KERNEL(overlap, ProbeParameters, 64, 1) {
  const u8* source = (const u8*)params.input + threadIdx.x;
  u8* target = (u8*)params.output + threadIdx.x;
  __syncthreads();
  if (params.size == 1) *(volatile u8*)target = 1;
  if (params.size == 2) *(volatile u8*)target = *source;
  if (params.size != 3 || threadIdx.x != 40) wait_for_previous_kernel();
  __syncthreads();
  if (threadIdx.x != 40 || params.size != 3) *target = *source;
}

KERNEL(misbehave, ProbeParameters, 64, 1) {
  SHARED_MEMORY(shared);
  const u8* input = (const u8*)params.input;
  u8* output = (u8*)params.output;
  const bool last = threadIdx.x == 63;
  volatile float unset;  // conspicuously low
  if (params.size == 0 && last) __syncwarp();
  if (params.size == 1 && last) __syncthreads();
  if (params.size == 2) last ? __shfl_sync(WHOLE_WARP, 1, 0) : __shfl_xor_sync(WHOLE_WARP, 1, 1);
  if (params.size == 3) __syncwarp(0x7fffffffu);
  if (params.size == 4) load16(input + 8);
  if (params.size == 5) output[0] = (u8)*(const int*)(input + 2);
  if (params.size == 6) output[0] = input[512];
  if (params.size == 7) output[0] = input[-100000];
  if (params.size == 8) shared[64] = 0;
  if (params.size == 9) shared[100000] = 0;
  if (params.size == 10) store16_shared(shared_address(shared) + 64, load16(input));
  if (params.size == 11) output[0] = unset > -1e37f;
  __syncthreads();
}
"""


@pytest.fixture(params=[75, 89])
def probes(request: pytest.FixtureRequest, emulator: Emulator) -> Probes:
    other = Emulator(emulator.folder, capability=request.param)
    return Probes(other, other.load("probes", source_of_files(()) + PROBES))


@pytest.fixture
def ada(emulator: Emulator) -> Probes:
    return Probes(emulator, emulator.load("probes", source_of_files(()) + PROBES))


class Probes:
    def __init__(self, emulator: Emulator, library: object) -> None:
        self.emulator, self.library = emulator, library

    def run(
        self, name: str, threads: int, output: Tensor, *inputs: Tensor, size: int = 0, shared_bytes: int = 1024
    ) -> Tensor:
        addresses = [tensor.data_ptr() for tensor in inputs] + [0] * (2 - len(inputs))
        parameters = struct.pack("<3Qq", *addresses, output.data_ptr(), size)
        self.emulator.launch_of(self.library, name)((1, 1, 1), threads, shared_bytes, parameters)
        return output


def test_multiply_add(probes: Probes) -> None:
    dtypes = [torch.float16] if probes.emulator.capability < 80 else [torch.float16, torch.bfloat16]
    for dtype in dtypes:
        a, b = torch.randn(16, 16).to(dtype), torch.randn(16, 8).to(dtype)
        out = probes.run("multiply_" + ("f16" if dtype == torch.float16 else "bf16"), 32, torch.empty(16, 8), a, b)
        torch.testing.assert_close(out, a.float() @ b.float() + 1.0)


def test_every_e4m3(ada: Probes) -> None:
    values = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    out = ada.run("from_e4m3", 1, torch.empty(256), values, size=256)
    assert torch.equal(out.nan_to_num(7e7), values.float().nan_to_num(7e7))


def test_rounding_to_e4m3(ada: Probes) -> None:
    exponents = torch.randint(-12, 9, (4000,)).float()
    halfway = (torch.arange(0, 64) + 0.5) * 2.0 ** torch.arange(-9, 3)[:, None]
    values = torch.cat([torch.randn(4000) * 2.0**exponents, halfway.flatten(), -halfway.flatten(), torch.zeros(1)])
    out = ada.run("to_e4m3", 1, torch.empty(len(values), dtype=torch.uint8), values, size=len(values))
    expected = values.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(out, expected)


def test_collectives(probes: Probes) -> None:
    out = probes.run("collectives", 32, torch.empty(32, 8, dtype=torch.int32))
    lane = torch.arange(32, dtype=torch.int32)
    votes = sum(1 << i for i in range(0, 32, 3))
    expected = [
        lane ^ 5, torch.where(lane < 3, lane, lane - 3), torch.where(lane > 28, lane, lane + 3), lane * 0 + 9,
        lane * 0 + (votes - 2**32 if votes >= 2**31 else votes), torch.where(lane < 16, lane ^ 1, lane ^ 2),
        lane * 0 + 0x66442200, torch.where(lane % 8 > 4, lane, lane + 3),
    ]  # fmt: skip
    assert torch.equal(out, torch.stack(expected, 1))


def test_a_missing_barrier_shows(probes: Probes) -> None:
    expected = (torch.arange(128, dtype=torch.int32) + 1) % 128
    for seed in range(5):
        probes.emulator.seed = seed
        assert torch.equal(probes.run("pass_on", 128, torch.empty(128, dtype=torch.int32), size=1), expected)
        assert not torch.equal(probes.run("pass_on", 128, torch.empty(128, dtype=torch.int32), size=0), expected)


def test_a_missing_wait_shows(ada: Probes) -> None:
    data = torch.randint(0, 255, (512,), dtype=torch.uint8)
    assert torch.equal(ada.run("no_wait", 32, torch.empty_like(data), data, size=1), data)
    output = torch.empty_like(data)
    with pytest.raises(EmulatorError, match="ends while copies to shared memory are on their way"):
        ada.run("no_wait", 32, output, data, size=0)
    assert not torch.equal(output, data)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (0, "threads wait for each other: some at __sync"),
        (1, "threads of a block at different barriers"),
        (2, r"lanes of a warp in different collectives: some at __shfl\w+ \(.*\d\), some at __shfl"),
        (3, "a lane is missing in its own mask"),
        (4, "not aligned to 16"),
        (5, "unaligned access"),
        (6, "outside of allocated memory"),
        (7, "outside of allocated memory"),
        (8, "behind the end of shared memory"),
        (9, "outside of allocated memory"),
        (10, "outside of shared memory"),
    ],
)
def test_reports(ada: Probes, case: int, message: str) -> None:
    data = ada.emulator.guard(torch.zeros(512, dtype=torch.uint8))
    with pytest.raises(EmulatorError, match=message):
        ada.run("misbehave", 64, torch.zeros(4), data, size=case, shared_bytes=64)
    # And the next launch works.
    assert ada.run("misbehave", 64, torch.zeros(4), data, size=99, shared_bytes=64).sum() == 0


def test_a_local_without_a_value_shows(ada: Probes) -> None:
    out = torch.full((4,), 7, dtype=torch.uint8)
    assert ada.run("misbehave", 64, out, torch.zeros(4), size=11, shared_bytes=64)[0] == 0


def test_parameters_of_another_size(ada: Probes) -> None:
    with pytest.raises(EmulatorError, match="the parameters differ in size"):
        ada.emulator.launch_of(ada.library, "misbehave")((1, 1, 1), 64, 0, bytes(40))


def test_a_kernel_that_overlaps_waits_for_the_previous_one(ada: Probes) -> None:
    source = ada.emulator.guard(torch.arange(64, dtype=torch.uint8))
    target = ada.emulator.guard(torch.zeros(64, dtype=torch.uint8))
    launch = ada.emulator.launch_of(ada.library, "overlap", overlaps=True)

    def run(when: int) -> None:
        launch((3, 1, 1), 64, 0, struct.pack("<3Qq", source.data_ptr(), 0, target.data_ptr(), when))

    run(0)
    assert torch.equal(target, source)
    for when, words in (
        (1, "access before the previous kernel has ended"),
        (2, "access before the previous kernel has ended"),
        (3, r"a thread ends before the previous kernel has \(block \d 0 0, thread 40\)"),
    ):
        with pytest.raises(EmulatorError, match=words):
            run(when)
    # Neither the memory nor other launches suffer from it.
    target.zero_()
    ada.emulator.launch_of(ada.library, "overlap")(
        (1, 1, 1), 64, 0, struct.pack("<3Qq", source.data_ptr(), 0, target.data_ptr(), 2)
    )
    assert torch.equal(target, source)
