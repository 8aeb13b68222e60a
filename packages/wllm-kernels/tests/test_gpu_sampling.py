"""The sampler and log-probabilities on a GPU against the reference on the CPU."""

from __future__ import annotations

import pytest
import torch

from wllm_kernels.selfcheck.agreement_tokens import check_logprobs, check_sample

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device_code")]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "vocab"), [(4, 70), (130, 1000), (33, 49_152), (9, 151_936)])
@pytest.mark.parametrize("filters", [False, True])
@pytest.mark.parametrize("edits", [False, True])
def test_sample(dtype: torch.dtype, rows: int, vocab: int, filters: bool, edits: bool) -> None:
    check_sample("cuda", dtype, rows, vocab, filters=filters, edits=edits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "vocab"), [(1, 151_936), (40, 49_152), (7, 33)])
@pytest.mark.parametrize("top_n", [0, 1, 20])
def test_logprobs(dtype: torch.dtype, rows: int, vocab: int, top_n: int) -> None:
    check_logprobs("cuda", dtype, rows, vocab, top_n)
