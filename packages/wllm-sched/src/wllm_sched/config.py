"""`SchedulerConfig`: the limits that a scheduler works within."""

from __future__ import annotations

from dataclasses import dataclass

from wllm_sched import checks


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one engine; raises `InvalidParameter` for a limit that makes no sense.

    `max_num_seqs` is the number of slots. A running request needs one token of every step, so no more than
    `max_num_batched_tokens` requests run at once. `max_stall_ms` bounds a step that mixes prefill with decodes, and
    `max_step_ms` any step with prefill; None sets no limit where nobody decodes.
    `length_salt_above`: prompts longer than this have KV that depends on the prompt's length (dynamic RoPE scaling), so
    they share cached blocks only with prompts of the same length; None if there is no such length.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    enable_prefix_caching: bool = True
    max_stall_ms: float = 100.0
    max_step_ms: float | None = None
    length_salt_above: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "vocab_size"):
            checks.integer(name, getattr(self, name), 1)
        checks.token_ids("eos_token_ids", self.eos_token_ids)
        checks.boolean("enable_prefix_caching", self.enable_prefix_caching)
        checks.number("max_stall_ms", self.max_stall_ms, 0.0)
        if self.max_step_ms is not None:
            checks.number("max_step_ms", self.max_step_ms, 0.0)
        if self.length_salt_above is not None:
            checks.integer("length_salt_above", self.length_salt_above, 0)

    @property
    def max_running(self) -> int:
        """Requests that can run at once."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)
