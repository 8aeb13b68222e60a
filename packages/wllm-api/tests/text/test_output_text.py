"""One sample's answer from its events: whole and streamed are the same (I18)."""

import itertools
import random
from dataclasses import replace

import pytest

from wllm_api.text import OutputText, TextDelta, Tokenizer
from wllm_sched.messages import TokenEvent
from wllm_sched.plan import TokenLogprobs
from wllm_sched.sampling import SamplingParams

END = 2


def _logprobs(ids: list[int]) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(token_id, -0.5, 1, ((token_id, -0.5),)) for token_id in ids)


def _events(ids: list[int], cuts: list[int], **last: object) -> list[TokenEvent]:
    edges = [0, *cuts, len(ids)]
    events = [
        TokenEvent(1, 0, tuple(ids[start:end]), logprobs=_logprobs(ids[start:end]))
        for start, end in itertools.pairwise(edges)
    ]
    return [*events[:-1], replace(events[-1], **last)]  # type: ignore[arg-type]


def _join(tokenizer: Tokenizer, params: SamplingParams, events: list[TokenEvent]) -> tuple[TextDelta, int]:
    output = OutputText(tokenizer, [1], params)
    deltas = [output.push(event) for event in events]
    final = [delta for delta in deltas if delta.finish_reason is not None]
    assert len(final) == 1
    joined = replace(
        final[0],
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        text_offsets=tuple(offset for delta in deltas for offset in delta.text_offsets),
    )
    return joined, output.num_tokens


def test_any_cut_into_events_gives_the_whole_answer(tokenizer: Tokenizer, rng: random.Random) -> None:
    stopped = 0
    for _ in range(400):
        ids = [rng.randrange(3, tokenizer.vocab_size) for _ in range(rng.randint(1, 40))]
        text = tokenizer.decode([1, *ids])
        where = rng.randrange(len(text) + 1)
        stops = [stop for stop in (text[where : where + rng.randint(1, 5)], "zq") if stop]
        params = SamplingParams(
            stop=stops, include_stop_str_in_output=rng.random() < 0.3, min_tokens=rng.choice([0, 0, 5]), max_tokens=99
        )
        whole = _join(tokenizer, params, _events(ids, [], finish_reason="length"))
        cuts = sorted(rng.choices(range(len(ids) + 1), k=rng.randint(1, 10)))
        assert _join(tokenizer, params, _events(ids, cuts, finish_reason="length")) == whole
        stopped += whole[0].stop_hit
        answer, count = whole
        assert len(answer.token_ids) == len(answer.logprobs) == len(answer.text_offsets) == count
        assert answer.token_ids == tuple(ids[:count])
        if params.min_tokens == 0 and not params.include_stop_str_in_output:
            assert not any(stop in answer.text for stop in stops)
    assert stopped > 50


def test_without_stops_the_text_is_the_decode(tokenizer: Tokenizer, texts: tuple[str, ...]) -> None:
    for text in texts:
        ids = tokenizer.encode(text)
        if ids:
            answer, count = _join(tokenizer, SamplingParams(), _events(ids, [1], finish_reason="length"))
            assert answer.text == tokenizer.decode([1, *ids])[len(tokenizer.decode([1])) :]
            assert count == len(ids)


def test_a_stop_string_ends_text_tokens_and_usage(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("abcENDxyz")
    answer, count = _join(byte_level, SamplingParams(stop="END"), _events(ids, [2, 5], finish_reason="length"))
    assert (answer.text, answer.finish_reason, answer.stop_reason, answer.stop_hit) == ("abc", "stop", "END", True)
    assert count == len(byte_level.encode("abcEND"))


def test_nothing_comes_after_the_end(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, [], SamplingParams(stop="b"))
    assert output.push(TokenEvent(1, 0, tuple(byte_level.encode("abc")))).stop_hit
    assert output.finished
    assert output.push(TokenEvent(1, 0, tuple(byte_level.encode("de")))) == TextDelta()
    assert output.push(TokenEvent(1, 0, finish_reason="abort")) == TextDelta()
    assert output.num_tokens == 2


def test_the_stop_string_is_included_when_asked_for(byte_level: Tokenizer) -> None:
    params = SamplingParams(stop="END", include_stop_str_in_output=True)
    answer, _ = _join(byte_level, params, _events(byte_level.encode("abcENDx"), [4], finish_reason="length"))
    assert answer.text == "abcEND"


def test_held_back_text_is_released_at_the_end(byte_level: Tokenizer) -> None:
    output = OutputText(byte_level, [], SamplingParams(stop="END!"))
    assert output.push(TokenEvent(1, 0, tuple(byte_level.encode("aEND")))).text == "a"
    assert output.push(TokenEvent(1, 0, finish_reason="length")).text == "END"


@pytest.mark.parametrize("skip", [True, False])
def test_the_end_token_counts_but_is_not_shown(byte_level: Tokenizer, skip: bool) -> None:
    ids = [*byte_level.encode("hi"), END]
    params = SamplingParams(skip_special_tokens=skip)
    answer, count = _join(byte_level, params, _events(ids, [1], finish_reason="stop", stop_token_id=END))
    assert (answer.text, answer.num_hidden, answer.stop_reason, answer.stop_hit) == ("hi", 1, None, False)
    assert count == 3
    assert answer.text_offsets == (0, 1, 2)


def test_a_stop_token_of_the_request_is_named(byte_level: Tokenizer) -> None:
    stop = byte_level.encode("!")[0]
    params = SamplingParams(stop_token_ids=[stop])
    answer, _ = _join(
        byte_level, params, _events(byte_level.encode("hi!"), [], finish_reason="stop", stop_token_id=stop)
    )
    assert (answer.text, answer.stop_reason) == ("hi", stop)


def test_an_included_stop_token_is_shown(byte_level: Tokenizer) -> None:
    stop = byte_level.encode("!")[0]
    params = SamplingParams(stop_token_ids=[stop], include_stop_str_in_output=True)
    answer, _ = _join(
        byte_level, params, _events(byte_level.encode("hi!"), [], finish_reason="stop", stop_token_id=stop)
    )
    assert (answer.text, answer.num_hidden) == ("hi!", 0)


def test_stop_strings_wait_for_min_tokens(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("axbxc")
    params = SamplingParams(stop="x", min_tokens=2)
    answer, count = _join(byte_level, params, _events(ids, [1, 2], finish_reason="length"))
    assert (answer.text, count) == ("axb", 4)


def test_half_a_character_at_the_end_is_left_out(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a🫠")[:-1]
    for cuts in ([], [1], [1, 2], [2]):
        answer, count = _join(byte_level, SamplingParams(), _events(ids, cuts, finish_reason="length"))
        assert (answer.text, count) == ("a", len(ids))


def test_offsets_count_characters_to_where_a_token_began(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("é the!")
    answer, _ = _join(byte_level, SamplingParams(), _events(ids, [1], finish_reason="length"))
    assert answer.text_offsets == (0, 0, 1, 5)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_other_ends_are_passed_on(byte_level: Tokenizer, reason: str) -> None:
    answer, _ = _join(
        byte_level, SamplingParams(stop="bc"), _events(byte_level.encode("ab"), [1], finish_reason=reason)
    )
    assert (answer.text, answer.finish_reason) == ("ab", reason)


def test_an_unknown_id_adds_no_text(byte_level: Tokenizer) -> None:
    # R41
    ids = [*byte_level.encode("a"), 511, *byte_level.encode("b")]
    answer, count = _join(byte_level, SamplingParams(), _events(ids, [1], finish_reason="length"))
    assert (answer.text, count, answer.text_offsets) == ("ab", 3, (0, 1, 1))
