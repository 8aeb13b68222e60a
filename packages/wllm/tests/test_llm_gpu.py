"""`LLM` on a GPU gives its memory back, in a process that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from wllm import LLM, SamplingParams
from wllm_runtime.memory import MIB
from wllm_runtime.testing import save_tiny_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU"),
]


def test_shutdown_frees_the_gpu(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, head_dim=64, hidden_size=256)
    greedy = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    held, left = [], []
    for _ in range(2):
        # 2 layers x (K, V) x 2 heads x 64 x 2 bytes x 16 tokens: a cache of 512 MiB.
        with LLM(str(tmp_path), dtype="float16", num_kv_blocks=1 << 15, skip_tokenizer_init=True) as llm:
            (output,) = llm.generate([[5, 6, 7]], greedy, use_tqdm=False)
            assert len(output.outputs[0].token_ids) == 4
            held.append(torch.cuda.memory_reserved())
        # `llm` is still referred to here.
        left.append(torch.cuda.memory_reserved())
    assert min(held) >= 512 * MIB
    # The libraries keep workspaces.
    assert max(left) <= 128 * MIB, f"reserved while open {held}, after shutdown {left}"
    assert left[1] <= left[0] + 8 * MIB, f"every engine leaves more: {left}"
    with pytest.raises(RuntimeError, match="shut down"):
        llm.generate([[5]], greedy)
