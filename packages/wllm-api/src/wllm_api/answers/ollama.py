"""Answers of Ollama's /api/chat and /api/generate: whole, or as lines."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime

from wllm_api.answers.base import Gained
from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.generation import Generation
from wllm_api.ndjson import line


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
        self, generation: Generation, *, model_name: str, chat: bool, logprobs: LogprobsFormat | None, clock: Clock
    ) -> None:
        self._generation = generation
        self._model_name = model_name
        self._chat = chat
        self._logprobs = logprobs
        self._clock = clock

    async def whole(self) -> dict[str, object]:
        """The answer as one object; raises `HttpError`."""
        gained = Gained()
        async with aclosing(self._generation.deltas()) as deltas:
            async for _, delta in deltas:
                self._note_token()
                gained.add(delta)
        return self._last(gained)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as lines: texts as they come, then the end without a text; raises `HttpError`."""
        end = Gained()
        async with aclosing(self._generation.deltas()) as deltas:
            async for _, delta in deltas:
                self._note_token()
                gained = Gained()
                gained.add(delta)
                if gained.text or (gained.logprobs and self._logprobs is not None):
                    yield line({**self._part(gained), "done": False})
                end.finish_reason = gained.finish_reason
        yield line(self._last(end))

    def _note_token(self) -> None:
        self._clock.first_token = self._clock.first_token or time.perf_counter_ns()

    def _part(self, gained: Gained) -> dict[str, object]:
        part = answer_part(self._model_name, chat=self._chat, text=gained.text)
        if self._logprobs is not None and gained.logprobs:
            part["logprobs"] = self._logprobs.chat(gained.logprobs)
        return part

    def _last(self, gained: Gained) -> dict[str, object]:
        total, load, prompt, answer = self._clock.durations(time.perf_counter_ns())
        return {
            **self._part(gained),
            "done": True,
            "done_reason": gained.finish_reason,
            "total_duration": total,
            "load_duration": load,
            "prompt_eval_count": self._generation.num_prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": self._generation.num_completion_tokens,
            "eval_duration": answer,
        }


def answer_part(model_name: str, *, chat: bool, text: str = "") -> dict[str, object]:
    """What every object of an answer holds: whose it is, when, and the text."""
    head: dict[str, object] = {"model": model_name, "created_at": timestamp()}
    return {**head, "message": {"role": "assistant", "content": text}} if chat else {**head, "response": text}
