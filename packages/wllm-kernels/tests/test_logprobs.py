"""Log-probabilities against float64 softmax and sorting."""

from __future__ import annotations

import importlib

import pytest
import torch

from wllm_kernels import InvalidArgument, logprobs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_n", [0, 1, 5, 33])
def test_agreement(device: str, dtype: torch.dtype, top_n: int) -> None:
    logits = torch.randn(9, 33, device=device).to(dtype)
    ids = torch.randint(0, 33, (9,), device=device)
    result = logprobs(logits, ids, top_n)
    expected = torch.log_softmax(logits.double(), -1)
    torch.testing.assert_close(result.logprob.double(), expected[range(9), ids], atol=1e-5, rtol=1e-5)
    for row in range(9):
        values = logits[row].tolist()
        assert int(result.rank[row]) == 1 + sum(value > values[int(ids[row])] for value in values)
    torch.testing.assert_close(result.top_logprobs.double(), expected.gather(1, result.top_ids), atol=1e-5, rtol=1e-5)
    assert torch.equal(result.top_logprobs, result.top_logprobs.sort(-1, descending=True).values)
    if top_n:
        assert torch.equal(result.top_logprobs[:, 0], result.top_logprobs.amax(-1))
        torch.testing.assert_close(result.top_logprobs[:, 0].double(), expected.amax(-1), atol=1e-5, rtol=1e-5)


def test_ties_share_a_rank() -> None:
    result = logprobs(torch.tensor([[1.0, 3.0, 3.0, 0.0]]).repeat(4, 1), torch.arange(4))
    assert result.rank.tolist() == [3, 1, 1, 4]


def test_many_rows_go_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, ids = torch.randn(11, 20), torch.randint(0, 20, (11,))
    whole = logprobs(logits, ids, 3)
    implementation = importlib.import_module("wllm_kernels.reference.logprobs")
    monkeypatch.setattr(implementation, "_CHUNK_ELEMENTS", 60)
    for chunked, expected in zip(logprobs(logits, ids, 3), whole):
        assert torch.equal(chunked, expected)


def test_logits_stay_as_they_are(device: str) -> None:
    logits = torch.randn(3, 8, device=device)
    before = logits.clone()
    logprobs(logits, torch.zeros(3, dtype=torch.int64, device=device), 2)
    assert torch.equal(logits, before)


def test_more_than_the_vocabulary() -> None:
    with pytest.raises(InvalidArgument, match="top_n is 9 for a vocabulary of 8"):
        logprobs(torch.zeros(1, 8), torch.zeros(1, dtype=torch.int64), 9)


def test_no_vocabulary() -> None:
    with pytest.raises(InvalidArgument, match="pass a vocabulary of at least one token"):
        logprobs(torch.zeros(1, 0), torch.zeros(1, dtype=torch.int64))
