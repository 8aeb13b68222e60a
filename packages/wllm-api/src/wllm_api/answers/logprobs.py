"""Log-probabilities as JSON, in the shape of chat, of plain completions, and of vLLM's prompt extra."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from wllm_api.text import Detokenizer, Tokenizer
from wllm_sched.plan import TokenLogprobs

LOWEST = -9999.0


class LogprobsFormat:
    """Writes log-probabilities of one request; `as_ids` names tokens "token_id:123"."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def chat(self, rows: Iterable[TokenLogprobs]) -> list[dict[str, object]]:
        """The `content` list of a chat choice."""
        return [
            {
                **self._entry(row.token_id, row.logprob),
                "top_logprobs": [self._entry(token_id, logprob) for token_id, logprob in row.top],
            }
            for row in rows
        ]

    def completion(
        self, token_ids: Sequence[int], rows: Sequence[TokenLogprobs | None], offsets: Sequence[int], num_top: int
    ) -> dict[str, object]:
        """The `logprobs` object of a completion choice; a row of None is a first prompt token."""
        return {
            "tokens": [self.name(token_id) for token_id in token_ids],
            "token_logprobs": [None if row is None else finite(row.logprob) for row in rows],
            "top_logprobs": [None if row is None else self._top(row, num_top) for row in rows],
            "text_offset": list(offsets),
        }

    def prompt(self, rows: Iterable[TokenLogprobs | None]) -> list[dict[str, object] | None]:
        """vLLM's `prompt_logprobs`: one object a prompt token, by token id."""
        return [None if row is None else self._by_id(row) for row in rows]

    def name(self, token_id: int) -> str:
        """The token as text; a part of a character as its bytes, as OpenAI writes it."""
        if self._as_ids:
            return f"token_id:{token_id}"
        raw = self._tokenizer.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _entry(self, token_id: int, logprob: float) -> dict[str, object]:
        raw = list(self._tokenizer.token_bytes(token_id))
        return {"token": self.name(token_id), "logprob": finite(logprob), "bytes": raw}

    def _top(self, row: TokenLogprobs, num_top: int) -> dict[str, float]:
        # The chosen token is always there; two ids with one text share an entry, the likelier one's.
        top: dict[str, float] = {}
        for token_id, logprob in (*row.top[:num_top], (row.token_id, row.logprob)):
            top.setdefault(self.name(token_id), finite(logprob))
        return top

    def _by_id(self, row: TokenLogprobs) -> dict[str, object]:
        ranked = {token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(row.top, start=1)}
        ranked[row.token_id] = (row.logprob, row.rank)
        return {
            str(token_id): {"logprob": finite(logprob), "rank": rank, "decoded_token": self.name(token_id)}
            for token_id, (logprob, rank) in ranked.items()
        }


def finite(logprob: float) -> float:
    """`logprob` as JSON can write it: minus infinity and NaN become OpenAI's -9999.0."""
    return logprob if math.isfinite(logprob) else LOWEST


def prompt_offsets(tokenizer: Tokenizer, token_ids: Sequence[int], text: str) -> list[int]:
    """Where each prompt token begins in `text`; a token that was added in front or between takes no room."""
    pieces = Detokenizer(tokenizer, skip_special_tokens=False)
    offsets, position = [], 0
    for token_id in token_ids:
        piece = pieces.push(token_id)
        offsets.append(position)
        if piece and text.startswith(piece, position):
            position += len(piece)
    return offsets
