"""Log-probabilities on their way to the host."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wllm_kernels import Logprobs
from wllm_runtime.transfers import download
from wllm_sched.plan import TokenLogprobs


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Copies on the host, to be read behind the step's event: `token_ids` int64 [positions] and what was found."""

    token_ids: Tensor
    found: Logprobs

    @classmethod
    def download(cls, token_ids: Tensor, found: Logprobs) -> TokenScores:
        """Start the copies."""
        return cls(download(token_ids), Logprobs(*(download(tensor) for tensor in found)))

    def entries(self) -> list[TokenLogprobs]:
        """One entry a position."""
        columns = (tensor.tolist() for tensor in (self.token_ids, *self.found))
        return [
            TokenLogprobs(token_id, value, rank, tuple(zip(ids, top, strict=True)))
            for token_id, value, rank, ids, top in zip(*columns, strict=True)
        ]
