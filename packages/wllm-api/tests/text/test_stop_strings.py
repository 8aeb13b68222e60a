"""Stop strings, found in text that comes in any pieces."""

import random

import pytest

from wllm_api.text.stop_strings import StopStrings


def _cut(text: str, rng: random.Random) -> list[str]:
    pieces = []
    while text:
        size = rng.randint(0, 4)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def _expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def _run(pieces: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    matcher = StopStrings(stops, include=include)
    shown = ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


@pytest.mark.parametrize("include", [False, True])
def test_any_cut_gives_the_text_before_the_first_complete_stop(rng: random.Random, include: bool) -> None:
    hits = 0
    for _ in range(5000):
        text = "".join(rng.choice("ab") for _ in range(rng.randint(0, 30)))
        stops = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(0, 4))]
        expected = _expected(text, stops, include)
        hits += expected[1] is not None
        assert _run(_cut(text, rng), stops, include) == expected
    assert hits > 500


def test_only_what_may_become_a_stop_string_waits(rng: random.Random) -> None:
    for _ in range(2000):
        stops = ["".join(rng.choice("ab") for _ in range(rng.randint(2, 8))) for _ in range(2)]
        matcher = StopStrings(stops, include=False)
        text = shown = ""
        for char in (rng.choice("abc") for _ in range(20)):
            text += char
            piece, stop = matcher.push(char)
            if stop is not None:
                break
            shown += piece
            waiting = text[len(shown) :]
            assert not waiting or any(stop.startswith(waiting) for stop in stops)


def test_a_long_stop_string_delays_nothing() -> None:
    matcher = StopStrings(["x" * 10_000], include=False)
    assert matcher.push("hello") == ("hello", None)


def test_text_that_was_no_stop_string_is_released() -> None:
    matcher = StopStrings(["</answer>"], include=False)
    assert matcher.push("a</ans") == ("a", None)
    assert matcher.push("x") == ("</ansx", None)
    assert matcher.push("</") == ("", None)
    assert matcher.flush() == "</"
    assert matcher.flush() == ""


def test_of_two_that_end_together_the_longer_wins() -> None:
    assert _run(["xxEND"], ["END", "xEND"], False) == ("x", "xEND")


def test_the_prefix_of_another_ends_first() -> None:
    assert _run(["x", "ab", "c"], ["abc", "ab"], False) == ("x", "ab")
