"""Rotary position embedding: inverse frequencies and the cos/sin table of each scaling method.

Sources: RoPE (Su et al., arXiv 2104.09864), linear interpolation (Chen et al., arXiv 2306.15595), NTK-aware dynamic
scaling and YaRN (Peng et al., arXiv 2309.00071), Llama 3.1's piecewise scaling (model card of Llama 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from wllm_runtime.errors import UnsupportedModel

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Parameters of the rotation of one head; `kind` is one of `ROPE_TYPES`.

    `freq_factors` divides the frequencies one by one (GGUF files carry Llama 3's scaling in that form).
    """

    kind: str
    theta: float
    head_dim: int
    max_position_embeddings: int
    parameters: Mapping[str, Any]
    freq_factors: tuple[float, ...] | None = None

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], head_dim: int, max_positions: int) -> RopeConfig:
        """From a transformers config's `rope_parameters`; raises `UnsupportedModel` for an unknown method."""
        kind = parameters.get("rope_type", "default")
        if kind not in ROPE_TYPES:
            raise UnsupportedModel(f"RoPE type {kind!r} is not supported; known: {', '.join(ROPE_TYPES)}")
        if parameters.get("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModel(
                f"a partial rotary embedding (factor {parameters['partial_rotary_factor']}) is not supported; "
                "the known families rotate whole heads"
            )
        return cls(kind, float(parameters["rope_theta"]), head_dim, max_positions, dict(parameters))

    @property
    def depends_on_length(self) -> bool:
        """Whether a token's rotation depends on the length of the text around it (dynamic NTK)."""
        return self.kind == "dynamic"

    @property
    def longest_context(self) -> int:
        """Tokens of context that the model is meant for, with its scaling applied."""
        # The same reading as vLLM's: YaRN names the original length, the older two stretch max_position_embeddings, and
        # Llama 3's max_position_embeddings is the stretched length already.
        if self.kind in ("linear", "dynamic"):
            return int(self.max_position_embeddings * self.parameters["factor"])
        if self.kind == "yarn" and self.parameters.get("factor"):
            original = self.parameters["original_max_position_embeddings"]
            return max(self.max_position_embeddings, int(original * self.parameters["factor"]))
        return self.max_position_embeddings

    def cos_sin_table(self, num_positions: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The table [num_positions, head_dim]: cos in the first half of a row, sin in the second."""
        inv_freq, scale = self._inv_freq()
        positions = torch.arange(num_positions, dtype=torch.float32)
        return _cos_sin(positions[:, None] * inv_freq, scale).to(device=device, dtype=dtype)

    def cos_sin_rows(self, positions: torch.Tensor, lengths: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows [tokens, head_dim] for dynamic NTK, whose base grows with the length of the text.

        `positions` and `lengths` are int64 [tokens]; a length is that of the text when the token was first seen.
        """
        dim, limit = self.head_dim, self.max_position_embeddings
        factor = self.parameters["factor"]
        effective = lengths.clamp(min=limit).to(torch.float32)
        base = self.theta * (factor * effective / limit - (factor - 1)) ** (dim / (dim - 2))
        exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim
        inv_freq = 1.0 / base[:, None] ** exponents
        return _cos_sin(positions[:, None].to(torch.float32) * inv_freq, 1.0).to(dtype)

    def _inv_freq(self) -> tuple[torch.Tensor, float]:
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        inv_freq = 1.0 / self.theta**exponents
        if self.freq_factors is not None:
            return inv_freq / torch.tensor(self.freq_factors, dtype=torch.float32), 1.0
        if self.kind == "linear":
            return inv_freq / self.parameters["factor"], 1.0
        if self.kind == "llama3":
            return self._llama3(inv_freq), 1.0
        if self.kind == "yarn":
            return self._yarn(exponents)
        return inv_freq, 1.0

    def _llama3(self, inv_freq: torch.Tensor) -> torch.Tensor:
        p = self.parameters
        low, high, factor = p["low_freq_factor"], p["high_freq_factor"], p["factor"]
        turns = p["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
        # Slow rotations are interpolated, fast ones kept, those between blended.
        keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        return inv_freq * (keep + (1 - keep) / factor)

    def _yarn(self, exponents: torch.Tensor) -> tuple[torch.Tensor, float]:
        p = self.parameters
        original = p["original_max_position_embeddings"]
        factor = p.get("factor") or self.max_position_embeddings / original
        pos_freqs = self.theta**exponents

        def dim_of(rotations: float) -> float:
            return self.head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = dim_of(p.get("beta_fast") or 32), dim_of(p.get("beta_slow") or 1)
        if p.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.head_dim - 1)
        span = (high - low) or 0.001
        ramp = ((torch.arange(self.head_dim // 2, dtype=torch.float32) - low) / span).clamp(0.0, 1.0)
        inv_freq = ramp / (factor * pos_freqs) + (1 - ramp) / pos_freqs
        return inv_freq, self._yarn_attention_factor(factor)

    def _yarn_attention_factor(self, factor: float) -> float:
        p = self.parameters
        if p.get("attention_factor") is not None:
            return float(p["attention_factor"])

        def mscale(weight: float) -> float:
            return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

        if p.get("mscale") and p.get("mscale_all_dim"):
            return mscale(p["mscale"]) / mscale(p["mscale_all_dim"])
        return mscale(1.0)


def _cos_sin(angles: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1)
