"""The sampler's noise: a pure function of (seed, position, token id), so that no row depends on its neighbours.

For device code that must match, all arithmetic modulo 2**64 or 2**32, shifts logical:

    key   = mix64(mix64(seed + GAMMA) + (position + 1) * GAMMA)           once per row
    h     = fmix32(fmix32(token_id * GAMMA32 + low32(key)) ^ high32(key))
    v     = min((float32(h & 0x7fffffff) + 0.5) * 2**-31, 1 - 2**-24)
    noise = -log(-log1p(-v))                                              float32, standard Gumbel

mix64 is the SplitMix64 finaliser (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), fmix32 the
finaliser of MurmurHash3 (Appleby, 2011). Small v keep their full precision, so the upper tail of the noise is fine.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_GAMMA32 = 0x9E3779B9 - (1 << 32)


def row_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """int32 [rows, 2], low and high half of each row's key, from int64 `seeds` and `positions`."""
    key = _mix64(_mix64(seeds + _GAMMA) + (positions + 1) * _GAMMA)
    return key.view(-1, 1).view(torch.int32)


def gumbel(low: Tensor, high: Tensor, token_ids: Tensor) -> Tensor:
    """float32 noise for int32 key halves and token ids that broadcast against each other."""
    hashed = _fmix32_(_fmix32_(token_ids * _GAMMA32 + low).bitwise_xor_(high))
    uniform = hashed.bitwise_and_(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=1.0 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _mix64(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30, 64)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    x = (x ^ _shift(x, 27, 64)) * (0x94D049BB133111EB - (1 << 64))
    return x ^ _shift(x, 31, 64)


def _fmix32_(x: Tensor) -> Tensor:
    x.bitwise_xor_(_shift(x, 16, 32)).mul_(0x85EBCA6B - (1 << 32))
    x.bitwise_xor_(_shift(x, 13, 32)).mul_(0xC2B2AE35 - (1 << 32))
    return x.bitwise_xor_(_shift(x, 16, 32))


def _shift(x: Tensor, distance: int, bits: int) -> Tensor:
    # torch shifts signed integers arithmetically; the mask makes the shift logical.
    return (x >> distance).bitwise_and_((1 << (bits - distance)) - 1)
