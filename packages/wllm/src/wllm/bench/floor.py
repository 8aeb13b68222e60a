"""What a decode step must read, and so the least time that it can take on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wllm.bench.measure import DecodeStep, Measurement

if TYPE_CHECKING:
    from wllm_runtime.models.decoder_config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Floor:
    """Bytes of one decode step of a model, over the bandwidth of copying on this machine (bytes a second)."""

    weight_bytes: int
    kv_bytes_per_token: int
    bandwidth: float

    @classmethod
    def of(cls, config: DecoderConfig, itemsize: int, bandwidth: float) -> Floor:
        """Of a decoder whose weights and KV cache have `itemsize` bytes an element."""
        heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        layer = config.hidden_size * (heads + 3 * config.intermediate_size)
        # The head is read as a whole; of the embedding only the rows of the tokens, which is next to nothing.
        elements = config.num_layers * layer + config.vocab_size * config.hidden_size
        return cls(elements * itemsize, config.kv_elements_per_token * itemsize, bandwidth)

    def bytes_of(self, step: DecodeStep) -> int:
        """Weights once, and the KV cache of every request as it is half-way through its answer."""
        context = step.prompt_len + step.output_len // 2
        return self.weight_bytes + step.batch * context * self.kv_bytes_per_token

    def under(self, measurement: Measurement) -> float | None:
        """The floor in the measurement's unit; None for what memory bandwidth does not bound."""
        if isinstance(measurement, DecodeStep):
            return 1e3 * self.bytes_of(measurement) / self.bandwidth
        return None

    def __str__(self) -> str:
        return (
            f"copy bandwidth {self.bandwidth / 1e9:,.0f} GB/s (read plus written); a decode step reads "
            f"{self.weight_bytes / 1e6:,.1f} MB of weights and {self.kv_bytes_per_token / 1e3:,.1f} kB of KV a token"
        )
