"""The times in Ollama's answers."""

from wllm_api.answers.ollama import Clock, timestamp


def test_clock() -> None:
    assert Clock(100, 103, 110).durations(150) == (50, 3, 7, 40)
    # Without a token, and with a clock too coarse to see the answer pass.
    assert Clock(100, 103).durations(150) == (50, 3, 47, 1)
    assert Clock(100, 103, 150).durations(150) == (50, 3, 47, 1)


def test_timestamps_are_utc_with_a_z() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000000Z"
    assert timestamp().endswith("Z")
