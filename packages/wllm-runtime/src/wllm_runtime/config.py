"""What a user may ask of the engine: one frozen dataclass, built by the command line or by `LLM`.

Loads no torch, so that the API process can build it. Values are checked here as
far as no model is needed; `engine.py` resolves the rest and gives the reason for each resolved value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from wllm_runtime.errors import ConfigError
from wllm_sched import InvalidParameter, SamplingParams

Device = Literal["auto", "cuda", "cpu"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "dummy"]
KVCacheDType = Literal["auto", "int8", "fp8"]
StepWait = Literal["auto", "spin", "block"]
TaskChoice = Literal["auto", "generate", "embed", "score"]

BLOCK_SIZES = (8, 16, 32, 64, 128)
RECOMMENDED_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine; None means "choose for me". Raises `ConfigError` for a value that no model could take.

    `pipeline_depth` is the number of steps in flight (1 is for debugging). `max_stall_ms` bounds the time that a step
    with prefill may take while others decode. `gpu_memory_utilization` is the share to use of the device memory that is
    free at start. `kv_offload_gib` is pinned host memory for KV blocks that the device has no room for. `enforce_eager`
    runs without CUDA graphs. `step_wait` says how the engine waits for the GPU: "spin" takes a core, "block" lets go.
    `override_generation_config` replaces the model's recommended sampling, which holds where a request is silent.
    `task` is what the model does; "auto" goes by its files.
    """

    model: str
    device: Device = "auto"
    dtype: DType = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    load_format: LoadFormat = "auto"
    quantization: str | None = None
    kv_cache_dtype: KVCacheDType = "auto"
    kv_offload_gib: float = 0.0
    revision: str | None = None
    skip_tokenizer_init: bool = False
    seed: int = 0
    pipeline_depth: int = 2
    max_stall_ms: float = 100.0
    enforce_eager: bool = False
    step_wait: StepWait = "auto"
    override_generation_config: Mapping[str, float] | None = None
    task: TaskChoice = "auto"

    def __post_init__(self) -> None:
        self._check_choice("device", get_args(Device))
        self._check_choice("dtype", get_args(DType))
        self._check_choice("load_format", get_args(LoadFormat))
        self._check_choice("kv_cache_dtype", get_args(KVCacheDType))
        self._check_choice("step_wait", get_args(StepWait))
        self._check_choice("task", get_args(TaskChoice))
        self._check_choice("block_size", BLOCK_SIZES)
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_kv_blocks", "pipeline_depth"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(f"gpu_memory_utilization must lie in (0, 1], got {self.gpu_memory_utilization!r}")
        if not 0 < self.max_stall_ms < math.inf:
            raise ConfigError(
                f"max_stall_ms must be a number above 0, got {self.max_stall_ms!r}; a large one sets no limit"
            )
        if not 0 <= self.kv_offload_gib < math.inf:
            raise ConfigError(f"kv_offload_gib must be 0 or more, got {self.kv_offload_gib!r}")
        if self.kv_offload_gib and not self.enable_prefix_caching:
            raise ConfigError(
                f"kv_offload_gib={self.kv_offload_gib!r} keeps cached prefixes in the host's memory, and "
                "enable_prefix_caching is off; leave one of the two out"
            )
        self._check_sampling(self.override_generation_config or {})
        if self.quantization is not None:
            raise ConfigError(
                f"quantization={self.quantization!r} is not supported yet; leave it out "
                "(GGUF files are dequantised when they are loaded)"
            )

    def _check_sampling(self, sampling: Mapping[str, float]) -> None:
        unknown = ", ".join(sorted(set(sampling) - set(RECOMMENDED_SAMPLING)))
        if unknown:
            known = ", ".join(RECOMMENDED_SAMPLING)
            raise ConfigError(f"override_generation_config has the unknown names {unknown}; it takes {known}")
        try:
            SamplingParams(**dict(sampling))  # type: ignore[arg-type]
        except InvalidParameter as error:
            raise ConfigError(f"override_generation_config: {error}") from error

    def _check_choice(self, name: str, choices: tuple[object, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
