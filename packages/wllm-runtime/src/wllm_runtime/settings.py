"""Resolve "choose for me": device, types, sizes and waiting, each with the reason that is printed at start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

import psutil
import torch

from wllm_kernels import capabilities
from wllm_runtime.config import EngineConfig
from wllm_runtime.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Prefill on a CPU is bound by arithmetic from a few dozen tokens on, so long steps only delay others.
CPU_SIZES = (64, 512)
# (max_num_seqs, max_num_batched_tokens) by the GiB that are free on a GPU. Requests at a time are bound by the KV cache
# that they share; long steps make prefill faster on a large GPU, and take memory for activations on a small one.
GPU_SIZES = ((40, (256, 8192)), (20, (128, 4096)), (0, (64, 2048)))
# A spinning engine takes a core of its own: with fewer than these, text work and the desktop would miss it.
SPIN_CORES = 6

# (name, value, reason)
SettingRow: TypeAlias = tuple[str, str, str]


@dataclass(slots=True)
class Settings:
    """The resolved settings in the order they were resolved, and the seconds that each phase of the start took."""

    rows: list[SettingRow] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of the start."""
        begin = perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - begin

    def add_weights(self, num_bytes: int, *, is_random: bool) -> None:
        """Note the model's parameters, behind the phase "weights"."""
        how = "made up (load_format 'dummy')" if is_random else "loaded"
        self.add("weights", f"{num_bytes / 2**20:,.0f} MiB", f"{how} in {self.seconds['weights']:.1f} s")

    def add_sampling(self, sampling: Mapping[str, float]) -> None:
        """Note the sampling that holds where a request is silent."""
        text = ", ".join(f"{name} {value:g}" for name, value in sampling.items())
        self.add("default_sampling", text or "temperature 1", "where a request is silent")

    def add_host_blocks(self, num_blocks: int, bytes_per_block: int) -> None:
        """Note the host's tier; raises `ConfigError` where it could hold nothing."""
        if num_blocks < 1:
            raise ConfigError(
                f"kv_offload_gib holds no KV block of {bytes_per_block / 2**20:,.1f} MiB; give more, or 0 for none"
            )
        size = num_blocks * bytes_per_block / 2**20
        self.add("kv_host_blocks", num_blocks, f"{size:,.0f} MiB of the host's memory, kv_offload_gib as given")

    def add_start(self) -> None:
        """Note what the start took, when it is over."""
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        self.add("start", f"{sum(self.seconds.values()):.1f} s", f"{phases}; without loading Python's modules")

    def add(self, name: str, value: object, reason: str) -> None:
        """Note one resolved setting."""
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        self.rows.append((name, text, reason))


def resolve_device(config: EngineConfig, settings: Settings) -> torch.device:
    """The device; raises `ConfigError` when CUDA is asked for and this torch or machine has none."""
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise ConfigError(f"device='cuda' was asked for, but {_why_no_cuda()}; or use device='cpu'")
    if config.device == "auto":
        name = "cuda" if has_cuda else "cpu"
        reason = torch.cuda.get_device_name() if has_cuda else _why_no_cuda()
    else:
        name, reason = config.device, "as given"
    if name == "cpu":
        reason = f"{reason}; {torch.get_num_threads()} threads"
    settings.add("device", name, reason)
    # With its index: some calls of torch take no other form.
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return (
            f"PyTorch {torch.__version__} sees no CUDA device (it is a CPU build; for a GPU install the CUDA build, "
            "https://pytorch.org/get-started/locally)"
        )
    return f"PyTorch {torch.__version__} sees no CUDA device: {capabilities().problem}"


def resolve_dtype(
    config: EngineConfig, checkpoint_dtype: torch.dtype | None, device: torch.device, settings: Settings
) -> torch.dtype:
    """The dtype of weights and KV cache; `checkpoint_dtype` is what the model's config names, if anything."""
    if config.dtype != "auto":
        settings.add("dtype", config.dtype, "as given")
        return DTYPES[config.dtype]
    if device.type == "cpu":
        name, reason = "float32", "the fastest exact type on a CPU"
    elif torch.cuda.get_device_capability(device) < (8, 0):
        name, reason = "float16", "this GPU has no bfloat16"
    elif checkpoint_dtype == torch.float16:
        name, reason = "float16", "the checkpoint's"
    else:
        name, reason = (
            "bfloat16",
            "the checkpoint's" if checkpoint_dtype == torch.bfloat16 else "half of float32's memory",
        )
    settings.add("dtype", name, reason)
    return DTYPES[name]


def resolve_kv_dtype(config: EngineConfig, dtype: torch.dtype, device: torch.device, settings: Settings) -> torch.dtype:
    """The dtype of the KV cache of a model in `dtype`; raises `ConfigError` where the GPU has no FP8."""
    if config.kv_cache_dtype == "auto":
        settings.add("kv_cache_dtype", str(dtype).removeprefix("torch."), "the model's")
        return dtype
    if config.kv_cache_dtype == "int8":
        settings.add("kv_cache_dtype", "int8", "as given; a float16 scale for each token, head, key and value")
        return torch.int8
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < (8, 9):
            raise ConfigError(
                f"kv_cache_dtype='fp8' needs a GPU of compute capability 8.9 or newer, and this one has "
                f"{major}.{minor}; use 'int8', which takes as little memory"
            )
    settings.add("kv_cache_dtype", "fp8", "as given; float8_e4m3fn, without scales")
    return torch.float8_e4m3fn


def resolve_sizes(config: EngineConfig, free_bytes: int | None, settings: Settings) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens): requests that run at a time, and tokens computed in one step.

    `free_bytes` are those of the GPU, None on a CPU.
    """
    if free_bytes is None:
        (seqs, tokens), why = CPU_SIZES, "the default on a CPU"
    else:
        free_gib = free_bytes / 2**30
        seqs, tokens = next(sizes for at_least, sizes in GPU_SIZES if free_gib >= at_least)
        why = f"the default for a GPU with {free_gib:.1f} GiB free"
    num_seqs = config.max_num_seqs or seqs
    settings.add("max_num_seqs", num_seqs, "as given" if config.max_num_seqs else why)
    # Each running request needs a token of every step's budget.
    num_tokens = config.max_num_batched_tokens or max(tokens, num_seqs)
    settings.add("max_num_batched_tokens", num_tokens, "as given" if config.max_num_batched_tokens else why)
    return num_seqs, num_tokens


def resolve_wait(config: EngineConfig, device: torch.device, settings: Settings) -> bool:
    """Whether the engine spins while it waits for the GPU; always False on a CPU, whose cores the model needs."""
    if device.type == "cpu":
        return False
    if config.step_wait != "auto":
        settings.add("step_wait", config.step_wait, "as given")
        return config.step_wait == "spin"
    cores = psutil.cpu_count(logical=False) or 1
    spins = cores >= SPIN_CORES
    settings.add("step_wait", "spin" if spins else "block", f"{cores} cores; spinning takes one")
    return spins
