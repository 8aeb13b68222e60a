"""Answers of /v1/messages, whole and as Anthropic's events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import ClassVar

from starlette.types import Scope

from wllm_api.answers.base import Gained
from wllm_api.answers.message import MessageText
from wllm_api.answers.segments import Segment, Segments, Step
from wllm_api.error_bodies import anthropic_body
from wllm_api.generation import Generation
from wllm_api.http_errors import HttpError
from wllm_api.settings import Limits
from wllm_api.sse import EventStream, typed_event
from wllm_api.text import TextDelta


class MessageAnswer:
    """One message; `fills_context` says that its length is limited by the model's context, not by the request."""

    def __init__(
        self,
        generation: Generation,
        scope: Scope,
        message: MessageText,
        *,
        answer_id: str,
        model_name: str,
        fills_context: bool,
    ) -> None:
        self._generation = generation
        self._scope = scope
        self._message = message
        self._segments = Segments(message, call_prefix="toolu")
        self._head: dict[str, object] = {
            "id": answer_id,
            "type": "message",
            "role": "assistant",
            "model": model_name,
        }
        self._fills_context = fills_context

    async def whole(self) -> dict[str, object]:
        """The answer as one object; raises `HttpError`."""
        last = TextDelta()
        async with aclosing(self._generation.deltas()) as deltas:
            async for _, last in deltas:
                for _ in self._steps(last):
                    pass
        blocks = [_whole_block(segment) for segment in self._segments.all]
        return {**self._head, "content": blocks, **self._end(last), "usage": self._usage()}

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; raises `HttpError`."""
        begun = False
        last = TextDelta()
        async with aclosing(self._generation.deltas()) as deltas:
            async for _, last in deltas:
                if not begun:
                    begun = True
                    message = {**self._head, "content": [], **self._end(TextDelta()), "usage": self._usage()}
                    yield typed_event({"type": "message_start", "message": message})
                for step in self._steps(last):
                    yield typed_event(_event(step))
        yield typed_event({"type": "message_delta", "delta": self._end(last), "usage": self._usage()})
        yield typed_event({"type": "message_stop"})

    def error_event(self, error: HttpError) -> bytes:
        """An error in the middle of the stream."""
        return typed_event(anthropic_body(error, self._scope))

    def _steps(self, delta: TextDelta) -> Iterator[Step]:
        gained = Gained()
        gained.add(delta)
        return self._segments.add(gained)

    def _end(self, last: TextDelta) -> dict[str, object]:
        reason, sequence = None, None
        if last.finish_reason == "length":
            reason = "model_context_window_exceeded" if self._fills_context else "max_tokens"
        elif isinstance(last.stop_reason, str):
            reason, sequence = "stop_sequence", last.stop_reason
        elif last.finish_reason is not None:
            reason = "tool_use" if self._message.called else "end_turn"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _usage(self) -> dict[str, object]:
        # Here the input leaves out what came from the cache.
        cached = self._generation.num_cached_tokens
        return {
            "input_tokens": self._generation.num_prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._generation.num_completion_tokens,
            "output_tokens_details": {"thinking_tokens": self._message.num_reasoning_tokens},
        }


class MessageStream(EventStream):
    """A message sent as it comes."""

    ping: ClassVar[bytes | None] = typed_event({"type": "ping"})

    def __init__(self, answer: MessageAnswer, limits: Limits) -> None:
        super().__init__(answer.stream(), limits)
        self._answer = answer

    def failure(self, error: HttpError) -> bytes:
        """The event that tells of an error after the start."""
        return self._answer.error_event(error)


def _whole_block(segment: Segment) -> dict[str, object]:
    match segment.kind:
        case "content":
            return {"type": "text", "text": segment.text}
        case "reasoning":
            # Nothing is signed: whoever sends a thought back may send any.
            return {"type": "thinking", "thinking": segment.text, "signature": ""}
        case "call":
            return {
                "type": "tool_use", "id": segment.call_id, "name": segment.name, "input": segment.arguments()
            }  # fmt: skip


def _event(step: Step) -> dict[str, object]:
    kind = step.segment.kind
    if step.begins:
        block = _whole_block(Segment(kind, step.segment.name, step.segment.call_id))
        return {"type": "content_block_start", "index": step.number, "content_block": block}
    if step.ends:
        return {"type": "content_block_stop", "index": step.number}
    delta: dict[str, object]
    match kind:
        case "content":
            delta = {"type": "text_delta", "text": step.text}
        case "reasoning":
            delta = {"type": "thinking_delta", "thinking": step.text}
        case "call":
            delta = {"type": "input_json_delta", "partial_json": step.text}
    return {"type": "content_block_delta", "index": step.number, "delta": delta}
