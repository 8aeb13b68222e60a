"""`KVCache`: the paged keys and values of all layers, one tensor, and the scales of an int8 cache beside it.

Allocated once by the engine; written and read by kernels only. Which block belongs to whom is `wllm_cache`'s affair.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wllm_runtime.models.decoder_config import DecoderConfig


@dataclass(frozen=True, slots=True)
class KVCache:
    """`data` [layers, blocks, 2, kv_heads, block_size, head_dim]: the model's dtype, int8 or float8_e4m3fn.

    `scales` is float16 [layers, blocks, 2, kv_heads, block_size] for int8, else None.
    """

    data: torch.Tensor
    scales: torch.Tensor | None = None

    @classmethod
    def allocate(
        cls, config: DecoderConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """A cache of `num_blocks` blocks of `block_size` tokens, uninitialised; torch raises when it does not fit."""
        shape = (config.num_layers, num_blocks, 2, config.num_kv_heads, block_size)
        # Not zeroed: attention reads no cell that was not written, and untouched memory of a CPU is not even taken.
        data = torch.empty(*shape, config.head_dim, dtype=dtype, device=device)
        scales = torch.empty(shape, dtype=torch.float16, device=device) if dtype == torch.int8 else None
        return cls(data, scales)

    @staticmethod
    def bytes_per_token(config: DecoderConfig, dtype: torch.dtype) -> int:
        """Bytes that one token takes in all layers, with its scales."""
        scale_bytes = torch.float16.itemsize if dtype == torch.int8 else 0
        return 2 * config.num_layers * config.num_kv_heads * (config.head_dim * dtype.itemsize + scale_bytes)

    @property
    def layers(self) -> tuple[torch.Tensor, ...]:
        """The cache of each layer, [blocks, 2, kv_heads, block_size, head_dim]."""
        return tuple(self.data)

    @property
    def layer_scales(self) -> tuple[torch.Tensor, ...] | tuple[None, ...]:
        """The scales of each layer, [blocks, 2, kv_heads, block_size], or a None for each."""
        return (None,) * len(self.data) if self.scales is None else tuple(self.scales)

    @property
    def num_blocks(self) -> int:
        """Blocks in each layer."""
        return self.data.shape[1]

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.data.shape[4]

    @property
    def nbytes(self) -> int:
        """Bytes of the cache with its scales."""
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)
