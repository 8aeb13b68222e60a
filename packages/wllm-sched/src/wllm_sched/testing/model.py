"""`FakeModel`: a language model that is a hash function.

The KV of a token is the hash of everything before it; the next token follows from that hash, and from the seed when
the temperature is not 0. So one wrong KV cell anywhere changes the answer. Pure and the same in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from wllm_sched.plan import TokenLogprobs
from wllm_sched.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class FakeModel:
    """Tokens 0 .. vocab_size - 1. About one in `eos_every` tokens is `eos_token_id`, one in `error_every` draws fails.

    KV of a prompt longer than `length_matters_above` depends on the prompt's length, as with dynamic RoPE scaling.
    """

    vocab_size: int
    eos_token_id: int | None = None
    eos_every: int = 0
    error_every: int = 0
    length_matters_above: int | None = None

    def root(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """The state before the first token; like an adapter's weights, a cache salt changes all that follows."""
        threshold = self.length_matters_above
        length = num_prompt_tokens if threshold is not None and num_prompt_tokens > threshold else 0
        return hash((length, crc32(params.cache_salt.encode("utf-8", "surrogatepass"))))

    def extend(self, state: int, token_id: int) -> int:
        """The KV of `token_id` after `state`."""
        return hash((state, token_id))

    def draw(self, state: int, seed: int, temperature: float, allowed: Sequence[int] | None = None) -> int:
        """The token after `state`, one of `allowed` if given."""
        number = hash((state, seed if temperature > 0.0 else -1))
        if self.eos_token_id is not None and self.eos_every and number % self.eos_every == 0:
            if allowed is None or self.eos_token_id in allowed:
                return self.eos_token_id
        if allowed is not None:
            return allowed[(number >> 7) % len(allowed)]
        return (number >> 7) % self.vocab_size

    def fails(self, state: int) -> bool:
        """Whether the logits after `state` are broken."""
        return bool(self.error_every) and hash((state, 1)) % self.error_every == 0

    def logprob(self, state: int, token_id: int, num_top: int) -> TokenLogprobs:
        """A made-up log-probability of `token_id` after `state`."""
        top = tuple((rank, -float(hash((state, rank)) % 1000)) for rank in range(num_top))
        return TokenLogprobs(token_id, -float(hash((state, token_id, 2)) % 1000), 1, top)
