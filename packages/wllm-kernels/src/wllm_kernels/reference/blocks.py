"""Copies of whole KV blocks in plain torch; every source is read before any target is written."""

from __future__ import annotations

from torch import Tensor


def copy_blocks(kv: Tensor, pairs: Tensor) -> None:
    """Copy block `pairs[i, 0]` of `kv` to block `pairs[i, 1]`."""
    source, target = pairs.unbind(1)
    kv[target] = kv.index_select(0, source)


def swap_blocks(kv: Tensor, host: Tensor, pairs: Tensor, to_host: bool) -> None:
    """Copy block `pairs[i, 0]` of `kv` to block `pairs[i, 1]` of `host`, or back."""
    block, host_block = pairs[:, 0], pairs[:, 1].to(host.device)
    if to_host:
        host[host_block] = kv.index_select(0, block).to(host.device)
    else:
        kv[block] = host.index_select(0, host_block).to(kv.device)
