"""Answers of Ollama's /api/chat and /api/generate: whole, or as lines."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from wllm_api.answers.base import Gained
from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.answers.message import MessageText
from wllm_api.answers.segments import Segment, Segments, Step
from wllm_api.generation import Generation
from wllm_api.ndjson import line
from wllm_api.text import TextDelta


def timestamp(seconds: float | None = None) -> str:
    """Seconds since 1970 (None: now) as Ollama writes a time."""
    when = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Clock:
    """The times of one request in ns of `perf_counter_ns`: its arrival, the model at hand, the first token."""

    arrived: int
    had_model: int
    first_token: int = 0

    def durations(self, now: int) -> tuple[int, int, int, int]:
        """Total, load, prompt and answer, in ns; the answer takes at least 1, since clients divide by it."""
        first = self.first_token or now
        return now - self.arrived, self.had_model - self.arrived, first - self.had_model, max(now - first, 1)


class OllamaAnswer:
    """One request's answer; `chat` has its text in a message, else it is a `response`. `logprobs` None: not wanted."""

    def __init__(
        self,
        generation: Generation,
        message: MessageText,
        *,
        model_name: str,
        chat: bool,
        logprobs: LogprobsFormat | None,
        clock: Clock,
    ) -> None:
        self._generation = generation
        self._segments = Segments(message)
        self._model_name = model_name
        self._chat = chat
        self._logprobs = logprobs
        self._clock = clock

    async def whole(self) -> dict[str, object]:
        """The answer as one object; raises `HttpError`."""
        gained = Gained()
        part = _Part()
        async with aclosing(self._generation.deltas()) as deltas:
            async for _, delta in deltas:
                self._note_token()
                gained.add(delta)
                part.add(self._steps(delta))
        return self._last(part, gained)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as lines: what comes as it comes, calls when they are complete, then the end without a text.

        Raises `HttpError`.
        """
        end = Gained()
        async with aclosing(self._generation.deltas()) as deltas:
            async for _, delta in deltas:
                self._note_token()
                gained = Gained()
                gained.add(delta)
                part = _Part()
                part.add(self._steps(delta))
                if part.is_something or (gained.logprobs and self._logprobs is not None):
                    yield line({**self._object(part, gained), "done": False})
                end.finish_reason = gained.finish_reason
        yield line(self._last(_Part(), end))

    def _note_token(self) -> None:
        self._clock.first_token = self._clock.first_token or time.perf_counter_ns()

    def _steps(self, delta: TextDelta) -> Iterator[Step]:
        gained = Gained()
        gained.add(delta)
        return self._segments.add(gained)

    def _object(self, part: _Part, gained: Gained) -> dict[str, object]:
        answer = answer_part(self._model_name, chat=self._chat, text=part.text, more=part.more())
        if self._logprobs is not None and gained.logprobs:
            answer["logprobs"] = self._logprobs.chat(gained.logprobs)
        return answer

    def _last(self, part: _Part, gained: Gained) -> dict[str, object]:
        total, load, prompt, answer = self._clock.durations(time.perf_counter_ns())
        return {
            **self._object(part, gained),
            "done": True,
            "done_reason": gained.finish_reason,
            "total_duration": total,
            "load_duration": load,
            "prompt_eval_count": self._generation.num_prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": self._generation.num_completion_tokens,
            "eval_duration": answer,
        }


@dataclass(slots=True)
class _Part:
    """What one object of an answer shows."""

    text: str = ""
    thinking: str = ""
    calls: list[Segment] = field(default_factory=list)

    @property
    def is_something(self) -> bool:
        return bool(self.text or self.thinking or self.calls)

    def add(self, steps: Iterator[Step]) -> None:
        for step in steps:
            if step.segment.kind == "content":
                self.text += step.text
            elif step.segment.kind == "reasoning":
                self.thinking += step.text
            elif step.ends:
                self.calls.append(step.segment)

    def more(self) -> dict[str, object]:
        """The fields beside the text."""
        more: dict[str, object] = {"thinking": self.thinking} if self.thinking else {}
        if self.calls:
            more["tool_calls"] = [
                {"id": call.call_id, "function": {"name": call.name, "arguments": call.arguments()}}
                for call in self.calls
            ]
        return more


def answer_part(
    model_name: str, *, chat: bool, text: str = "", more: Mapping[str, object] = MappingProxyType({})
) -> dict[str, object]:
    """What every object of an answer holds: whose it is, when, the text, and `more` beside the text."""
    head: dict[str, object] = {"model": model_name, "created_at": timestamp()}
    if chat:
        return {**head, "message": {"role": "assistant", "content": text, **more}}
    return {**head, "response": text, **more}
