"""KV block allocator and prefix cache of wLLM: block ids, never tensors. Standard library only."""

from wllm_cache.errors import CacheError, InvalidSize, OutOfBlocks
from wllm_cache.hashing import block_hashes, root_hash
from wllm_cache.host import BlockSwap, HostPool
from wllm_cache.pool import BlockPool
from wllm_cache.table import BlockTable

__all__ = [
    "BlockPool",
    "BlockSwap",
    "BlockTable",
    "CacheError",
    "HostPool",
    "InvalidSize",
    "OutOfBlocks",
    "block_hashes",
    "root_hash",
]
