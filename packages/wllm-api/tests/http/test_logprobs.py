"""Log-probabilities as JSON: bytes that join, names that can be written, numbers that JSON has."""

import json

from wllm_api.answers.logprobs import LOWEST, LogprobsFormat, finite, prompt_offsets
from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.text import Tokenizer
from wllm_sched.plan import TokenLogprobs

TOKENIZER = Tokenizer.from_json(build_tokenizer().to_str())
TEXT = "é 🫠 the <|im_end|>"


def row(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -1.0, 1, ((token_id, -1.0),))


def test_halves_of_a_character_join() -> None:
    rows = LogprobsFormat(TOKENIZER, as_ids=False).chat(map(row, TOKENIZER.encode("🫠")))
    assert len(rows) > 1
    assert bytes(byte for entry in rows for byte in entry["bytes"]).decode() == "🫠"  # type: ignore[attr-defined]
    assert rows[0]["token"] == "bytes:\\xf0"
    assert "\ufffd" not in json.dumps(rows)


def test_chosen_token_is_among_the_top() -> None:
    outside = TokenLogprobs(5, -9.0, 40, ((6, -0.5), (7, -0.7)))
    entry = LogprobsFormat(TOKENIZER, as_ids=True).completion([5], [outside], [0], 2)
    assert entry["top_logprobs"] == [{"token_id:6": -0.5, "token_id:7": -0.7, "token_id:5": -9.0}]


def test_rank_of_prompt_logprobs() -> None:
    outside = TokenLogprobs(5, -9.0, 40, ((6, -0.5),))
    (first, second) = LogprobsFormat(TOKENIZER, as_ids=True).prompt([None, outside])
    assert first is None
    assert second == {
        "6": {"logprob": -0.5, "rank": 1, "decoded_token": "token_id:6"},
        "5": {"logprob": -9.0, "rank": 40, "decoded_token": "token_id:5"},
    }


def test_numbers_that_json_lacks() -> None:
    assert [finite(value) for value in (float("-inf"), float("nan"), float("inf"), -0.5)] == [LOWEST] * 3 + [-0.5]


def test_prompt_offsets() -> None:
    ids = TOKENIZER.encode(TEXT)
    offsets = prompt_offsets(TOKENIZER, ids, TEXT)
    assert offsets == sorted(offsets)
    for token_id, offset in zip(ids, offsets, strict=True):
        piece = TOKENIZER.token_text(token_id)
        assert "\ufffd" in piece or TEXT.startswith(piece, offset)


def test_added_begin_token_takes_no_room() -> None:
    begin = TOKENIZER.encode("<|im_start|>")
    assert prompt_offsets(TOKENIZER, [*begin, *TOKENIZER.encode("hi")], "hi")[:2] == [0, 0]
