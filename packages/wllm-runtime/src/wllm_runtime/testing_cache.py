"""A KV cache for transformers' models that rounds as our 8-bit caches do: the reference that tests hold those to.

Nothing in the engine imports this module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers

Rounding = Callable[[torch.Tensor], torch.Tensor]


class RoundedCache(transformers.DynamicCache):  # type: ignore[misc]
    """transformers' cache, which hands out keys and values as an 8-bit cache would have kept them."""

    def __init__(self, rounding: Rounding) -> None:
        super().__init__()
        self._rounding = rounding

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *rest: Any, **options: Any) -> Any:
        """As transformers' caches do."""
        return super().update(self._rounding(key_states), self._rounding(value_states), *rest, **options)


def to_int8(values: torch.Tensor) -> torch.Tensor:
    """Rounded to 255 steps of a float16 scale for each token and head."""
    scale = (values.abs().amax(-1, keepdim=True) / 127).half().float()
    return (values / scale).round() * scale


def to_fp8(values: torch.Tensor) -> torch.Tensor:
    """Rounded to float8_e4m3fn."""
    return values.to(torch.float8_e4m3fn).to(values.dtype)


def cache_argument(model: transformers.PreTrainedModel) -> str:
    """The name that this release of transformers has for a model's cache, argument and result alike."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
