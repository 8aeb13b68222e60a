"""`Answers`: collects the events of many samples and compares them with what each must get."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wllm_sched.messages import FinishReason, TokenEvent
from wllm_sched.plan import TokenLogprobs
from wllm_sched.testing.reference import Expected


@dataclass(slots=True)
class Answer:
    """What came for one sample so far, and what must."""

    expected: Expected
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_events: int = 0


@dataclass(slots=True)
class Answers:
    """Answers by (request id, index)."""

    answers: dict[tuple[int, int], Answer] = field(default_factory=dict)

    @property
    def num_errors(self) -> int:
        """Samples that ended with "error"."""
        return sum(answer.finish_reason == "error" for answer in self.answers.values())

    def expect(self, request_id: int, index: int, expected: Expected) -> None:
        """A sample that was submitted."""
        self.answers[request_id, index] = Answer(expected)

    def take(self, events: Iterable[TokenEvent]) -> None:
        """Add events; asserts I13 as far as it can be seen now."""
        for event in events:
            answer = self.answers[event.request_id, event.index]
            assert answer.finish_reason is None, f"I13: an event after the final one: {event}"
            assert event.prompt_logprobs is None or answer.num_events == 0, f"Late prompt logprobs: {event}"
            answer.num_events += 1
            answer.token_ids += event.token_ids
            answer.logprobs += event.logprobs or ()
            answer.finish_reason = event.finish_reason
            if event.prompt_logprobs is not None:
                answer.prompt_logprobs = event.prompt_logprobs
            assert (event.error is not None) == (event.finish_reason == "error"), f"An error without a word: {event}"
            assert event.stop_token_id is None or event.token_ids[-1] == event.stop_token_id, f"Stop token: {event}"
            assert event.stop_token_id is None or event.finish_reason == "stop", f"Stop token: {event}"
            answer.stop_token_id = event.stop_token_id

    def check(self) -> None:
        """Assert that every answer is whole, or that an abort or error cut it where it was still right."""
        for key, answer in self.answers.items():
            expected, reason = answer.expected, answer.finish_reason
            assert reason is not None, f"I13: no final event for {key}"
            tokens, logprobs = tuple(answer.token_ids), tuple(answer.logprobs)
            if reason in ("abort", "error"):
                assert tokens == expected.token_ids[: len(tokens)], f"{key}: {tokens}, {expected}"
                assert logprobs == expected.logprobs[: len(logprobs)], f"{key}: {logprobs}, {expected}"
            else:
                assert (tokens, logprobs, reason) == (expected.token_ids, expected.logprobs, expected.finish_reason), (
                    f"{key}: {tokens}, {reason}, {expected}"
                )
                assert answer.stop_token_id == expected.stop_token_id, f"{key}: {answer.stop_token_id}, {expected}"
            if tokens or reason == "length":
                assert answer.prompt_logprobs == expected.prompt_logprobs, f"{key}: {answer.prompt_logprobs}"
        # An error ends all samples of its request; one of them must have reached the draw that fails.
        failed = {request_id for (request_id, _), answer in self.answers.items() if answer.finish_reason == "error"}
        guilty = {
            request_id
            for (request_id, _), answer in self.answers.items()
            if answer.expected.finish_reason == "error" and len(answer.token_ids) == len(answer.expected.token_ids)
        }
        assert failed <= guilty, f"Errors without a cause: {failed - guilty}"

    def unfinished(self) -> list[tuple[int, int]]:
        """Samples that have a token and no final event."""
        return [key for key, answer in self.answers.items() if answer.token_ids and answer.finish_reason is None]
