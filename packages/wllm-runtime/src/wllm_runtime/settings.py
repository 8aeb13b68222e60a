"""Resolve "choose for me": device, dtype and sizes, each with the reason that is printed at start."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from wllm_runtime.config import EngineConfig
from wllm_runtime.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

DEFAULT_NUM_SEQS = 64
# Prefill on a CPU is bound by arithmetic from a few dozen tokens on, so long steps only delay others.
DEFAULT_BATCHED_TOKENS = {"cpu": 512, "cuda": 2048}


@dataclass(slots=True)
class Settings:
    """The resolved settings as (name, value, reason), in the order they were resolved."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, name: str, value: object, reason: str) -> None:
        """Note one resolved setting."""
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        self.rows.append((name, text, reason))


def resolve_device(config: EngineConfig, settings: Settings) -> torch.device:
    """The device; raises `ConfigError` when CUDA is asked for and this torch or machine has none."""
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        build = "is a CPU build" if torch.version.cuda is None else f"was built for CUDA {torch.version.cuda}"
        raise ConfigError(
            f"device='cuda' was asked for, but PyTorch {torch.__version__} sees no CUDA device (this PyTorch {build}); "
            "install the CUDA build (https://pytorch.org/get-started/locally) and an NVIDIA driver, or use device='cpu'"
        )
    if config.device == "auto":
        name = "cuda" if has_cuda else "cpu"
        reason = torch.cuda.get_device_name(0) if has_cuda else "PyTorch sees no CUDA device"
    else:
        name, reason = config.device, "as given"
    if name == "cpu":
        reason = f"{reason}; {torch.get_num_threads()} threads"
    settings.add("device", name, reason)
    return torch.device(name)


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


def resolve_sizes(config: EngineConfig, device: torch.device, settings: Settings) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens): requests that run at a time, and tokens computed in one step."""
    num_seqs = config.max_num_seqs or DEFAULT_NUM_SEQS
    settings.add("max_num_seqs", num_seqs, "as given" if config.max_num_seqs else "the default")
    default = max(DEFAULT_BATCHED_TOKENS[device.type], num_seqs)
    tokens = config.max_num_batched_tokens or default
    settings.add("max_num_batched_tokens", tokens, "as given" if config.max_num_batched_tokens else "the default")
    return num_seqs, tokens
