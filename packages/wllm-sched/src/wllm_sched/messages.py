"""The border between an engine and whoever feeds it: plain data, picklable, no behaviour.

The API process sends `Submit` (or `Pool`) and `Abort` over a pipe and receives `ModelInfo` first, then `TokenEvent` and
`EngineStats`. In-process callers hand the same data to the `Engine` protocol directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from wllm_sched.plan import TokenLogprobs
from wllm_sched.sampling import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
# What a model does: write text, make a vector of a text, or score a pair of texts.
Task = Literal["generate", "embed", "score"]


@dataclass(frozen=True, slots=True)
class Submit:
    """A new request. `request_id` is unique for the life of the engine."""

    request_id: int
    prompt_token_ids: Sequence[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request, or only its sample `index`. Unknown and finished requests are ignored."""

    request_id: int
    index: int | None = None


class StartTimes(NamedTuple):
    """How a sample came to its first token: seconds until it got a slot, and from there to the token."""

    queue_s: float
    prefill_s: float


# Not frozen: the scheduler makes one for every token, and freezing makes that six times slower (1.3 against 0.2 us).
@dataclass(slots=True)
class TokenEvent:
    """New tokens of one sample of a request; every sample gets exactly one event with a `finish_reason`, its last.

    `stop_token_id` is set when a token ended the sample; that token is the last of `token_ids`. `prompt_logprobs` comes
    once, on the first event of sample 0: one entry a prompt token, None for the first. `error` explains "error".
    `num_cached_tokens` is the part of the prompt that the request found in the prefix cache. `start_times` come with
    the sample's first token. The only event of a text that was pooled has its `vector`, float32 in little-endian bytes.
    Never changed once made.
    """

    request_id: int
    index: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    error: str | None = None
    error_code: str | None = None
    error_parameter: str | None = None
    start_times: StartTimes | None = None
    vector: bytes | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot; names ending in `_total` only grow while the engine lives.

    Running and waiting count samples. Prefix cache queries and hits count tokens; siblings that share a prompt within
    their request count neither. A prefill chunk is a row that computes prompt tokens or recomputes after a preemption.
    Steps are CUDA graph replays or run eagerly, kernel by kernel; a graph failure is a graph that was not captured.
    Host saves and loads count blocks that were copied to the host's memory and back. GPU memory is spilled that Windows
    moved to host memory for the sake of other programs.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    steps_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    prefix_cache_queries_total: int = 0
    prefix_cache_hits_total: int = 0
    preemptions_total: int = 0
    aborts_in_flight_total: int = 0
    prefill_chunks_total: int = 0
    max_in_flight_seen: int = 0
    graph_replays_total: int = 0
    eager_steps_total: int = 0
    graph_failures_total: int = 0
    num_host_blocks: int = 0
    num_used_host_blocks: int = 0
    host_saves_total: int = 0
    host_loads_total: int = 0
    gpu_spilled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server must know of the model; the engine's first message. No one else opens model files.

    `tokenizer_json` is the text of a tokenizer.json, None when there is no tokenizer. `special_tokens` are the names a
    chat template may use ("bos_token", "eos_token", ...). `default_sampling` holds the model's own recommended
    parameters (generation_config), by SamplingParams field name. `settings` are the resolved settings with the reason
    for each, as (name, value, reason), to be printed once. `num_parameters` and `weight_bytes` (in memory) are 0 for an
    engine without a model. A model whose `task` is not "generate" pools: `vector_size` numbers for each text, or what
    `vector_dimensions` has for a shorter vector. `restart_options` are for the factory, when it starts this engine
    again: what the engine has chosen by itself and must not choose anew.
    """

    model: str
    architecture: str
    tokenizer_json: str | None
    chat_template: str | None
    special_tokens: Mapping[str, str]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    vocab_size: int
    max_model_len: int
    num_kv_blocks: int
    block_size: int
    dtype: str
    device: str
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    settings: tuple[tuple[str, str, str], ...] = ()
    num_parameters: int = 0
    weight_bytes: int = 0
    task: Task = "generate"
    vector_size: int = 0
    vector_dimensions: Sequence[int] = ()
    restart_options: Mapping[str, object] = field(default_factory=dict)


class Engine(Protocol):
    """Serves requests step by step; single-threaded: one thread calls everything.

    `EngineLoop` of this package implements it over a scheduler and a runner.
    """

    def submit(self, request: Submit) -> None:
        """Queue a request; raises `RequestRefused` for one that can never run."""

    def abort(self, abort: Abort) -> None:
        """End a request early; its samples still get their final event ("abort") from a later `step`."""

    def has_work(self) -> bool:
        """Whether `step` has anything to do."""

    def step(self) -> list[TokenEvent]:
        """Plan and launch one step, commit the oldest when the pipeline is full; the events of what was committed."""

    def stats(self) -> EngineStats:
        """Counters now."""

    def close(self) -> None:
        """Finish what is in flight and release the model."""


class ServedEngine(Engine, Protocol):
    """An engine with its model's facts, whose device may be lost: what an engine factory returns."""

    @property
    def model_info(self) -> ModelInfo:
        """Facts about the model."""

    def check_device(self) -> None:
        """Raise `DeviceLost` unless the device still computes for this process; waits for what it is at."""
