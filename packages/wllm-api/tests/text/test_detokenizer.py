"""The incremental detokenizer against decoding everything at once."""

import random

import pytest

from wllm_api.text import Detokenizer, Tokenizer


def _streamed(tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return [detokenizer.push(token_id) for token_id in output]


@pytest.mark.parametrize("skip", [True, False])
def test_prompt_and_pieces_are_the_decode_of_all_ids(tokenizer: Tokenizer, texts: tuple[str, ...], skip: bool) -> None:
    for text in texts:
        ids = tokenizer.encode(text)
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        for cut in range(len(ids) + 1):
            prompt = tokenizer.decode(ids[:cut], skip_special_tokens=skip)
            # A character that the prompt only began belongs to the output.
            began = prompt.removesuffix("\ufffd") if prompt.endswith("\ufffd") else prompt
            assert whole.startswith(began)
            assert "".join(_streamed(tokenizer, ids[:cut], ids[cut:], skip)) == whole[len(began) :]


@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_stream_as_they_decode(tokenizer: Tokenizer, rng: random.Random, skip: bool) -> None:
    for _ in range(2000):
        ids = [rng.randrange(tokenizer.vocab_size + 3) for _ in range(rng.randint(1, 12))]
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        joined = "".join(_streamed(tokenizer, [], ids, skip))
        assert whole.startswith(joined)
        assert whole[len(joined) :].strip("\ufffd") == ""  # an unfinished character is never given out


def test_emoji_is_never_given_out_in_parts(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    for tokenizer in (byte_level, sentencepiece):
        for text in ("🫠", "👩‍👩‍👧", "a龜b"):
            pieces = _streamed(tokenizer, [1], tokenizer.encode(text))
            assert not any("\ufffd" in piece for piece in pieces)
            assert "".join(pieces).strip() == text


def test_the_space_between_prompt_and_answer_stays(sentencepiece: Tokenizer) -> None:
    # R04, R25: SentencePiece takes the first space of a text off, but an answer is not the beginning of the text.
    prompt, answer = sentencepiece.encode("hello"), sentencepiece.encode("the hello")
    assert "".join(_streamed(sentencepiece, prompt, answer)) == " the hello"
    assert "".join(_streamed(sentencepiece, [], answer)) == "the hello"
    assert "".join(_streamed(sentencepiece, [1], answer)) == "the hello"  # <s> has no text


def test_a_broken_end_of_the_prompt_is_not_part_of_the_answer(byte_level: Tokenizer) -> None:
    for text in ("龜", "🫠", "\ufffd", "ü"):
        ids = byte_level.encode(text)
        for cut in range(1, len(ids)):
            assert "".join(_streamed(byte_level, ids[:cut], byte_level.encode("hello"))) == "hello"
            assert "".join(_streamed(byte_level, ids[:cut], ids[cut:])) == text
            # A character broken within the answer is seen.
            assert "".join(_streamed(byte_level, byte_level.encode("a"), [*ids[:cut], *byte_level.encode("b")])) != "b"


def test_special_tokens_inside_are_skipped(byte_level: Tokenizer) -> None:
    halves = byte_level.encode("龜")
    assert "".join(_streamed(byte_level, [], [halves[0], 2, *halves[1:]])) == "龜"


def test_a_token_is_looked_up_once_and_little_is_kept(byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    # Undecodable bytes for ever are the worst case of detokenizers that decode a growing window.
    lookups = 0
    piece = byte_level.piece

    def counted(token_id: int, *, first: bool, skip_special_tokens: bool) -> bytes | None:
        nonlocal lookups
        lookups += 1
        return piece(token_id, first=first, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(byte_level, "piece", counted)
    detokenizer = Detokenizer(byte_level)
    for count, token_id in enumerate(byte_level.encode("é🫠")[1:4] * 1000, start=1):
        detokenizer.push(token_id)
        assert lookups == count
        assert len(detokenizer._utf8.getstate()[0]) <= 3


def test_long_prompts_are_not_decoded(byte_level: Tokenizer) -> None:
    class Counting(list[int]):
        reads = 0

        def __reversed__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
            for token_id in super().__reversed__():
                Counting.reads += 1
                yield token_id

    Detokenizer(byte_level, Counting(byte_level.encode("the token " * 1000)))
    assert 1 <= Counting.reads <= 3
