"""Answers of /v1/responses, whole and as events; the whole one is what the stream's last event holds."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from wllm_api.answers.base import Gained
from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.generation import Generation
from wllm_api.http_errors import HttpError
from wllm_api.schemas.responses import ResponsesRequest
from wllm_api.settings import Limits
from wllm_api.sse import EventStream, typed_event
from wllm_sched.sampling import SamplingParams

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseAnswer:
    """One response with one message in it."""

    def __init__(
        self,
        body: ResponsesRequest,
        generation: Generation,
        params: SamplingParams,
        *,
        unique: str,
        model_name: str,
        logprobs: LogprobsFormat,
    ) -> None:
        self._body = body
        self._generation = generation
        self._logprobs = logprobs
        self._item_id = f"msg_{unique}"
        self._all = Gained()
        self._sequence_number = 0
        self._begun = False
        self._head: dict[str, object] = {
            "id": f"resp_{unique}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model_name,
            "background": False,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "store": False,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": body.top_logprobs,
            "top_p": params.top_p,
            "truncation": "disabled",
        }

    async def whole(self) -> dict[str, object]:
        """The answer as one object; raises `HttpError`."""
        async with aclosing(self._generation.deltas()) as deltas:
            async for _, delta in deltas:
                self._all.add(delta)
        return self._response(self._final_status())

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; raises `HttpError`."""
        part_place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        async with aclosing(self._generation.deltas()) as deltas:
            async for _, delta in deltas:
                if not self._begun:
                    self._begun = True
                    for name in ("created", "in_progress"):
                        yield self._event(name, response=self._response("in_progress"))
                    empty = {**self._item("in_progress"), "content": []}
                    yield self._event("output_item.added", output_index=0, item=empty)
                    yield self._event("content_part.added", **part_place, part=self._part())
                self._all.add(delta)
                gained = Gained()
                gained.add(delta)
                rows = self._logprobs.chat(gained.logprobs)
                if gained.text or rows:
                    yield self._event("output_text.delta", **part_place, delta=gained.text, logprobs=rows)
        status = self._final_status()
        part = self._part()
        yield self._event("output_text.done", **part_place, text=part["text"], logprobs=part["logprobs"])
        yield self._event("content_part.done", **part_place, part=part)
        yield self._event("output_item.done", output_index=0, item=self._item(status))
        yield self._event(status, response=self._response(status))

    def error_event(self, error: HttpError) -> bytes:
        """An error in the middle of the stream: the response failed, or never was."""
        if self._begun:
            failure = {"code": "server_error", "message": error.message}
            return self._event("failed", response={**self._response("failed"), "error": failure})
        number = self._next_number()
        return typed_event({
            "type": "error", "code": error.code, "message": error.message, "param": error.param,
            "sequence_number": number,
        })  # fmt: skip

    def _event(self, name: str, **data: object) -> bytes:
        return typed_event({"type": f"response.{name}", "sequence_number": self._next_number(), **data})

    def _next_number(self) -> int:
        number = self._sequence_number
        self._sequence_number += 1
        return number

    def _final_status(self) -> Status:
        return "incomplete" if self._all.finish_reason == "length" else "completed"

    def _response(self, status: Status) -> dict[str, object]:
        running = status == "in_progress"
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": [] if running else [self._item("incomplete" if status == "failed" else status)],
            "usage": None if running else self._usage(),
        }

    def _item(self, status: Status) -> dict[str, object]:
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [self._part()],
        }

    def _part(self) -> dict[str, object]:
        rows = self._logprobs.chat(self._all.logprobs)
        return {"type": "output_text", "text": self._all.text, "annotations": [], "logprobs": rows}

    def _usage(self) -> dict[str, object]:
        given, made = self._generation.num_prompt_tokens, self._generation.num_completion_tokens
        return {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": self._generation.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + made,
        }


class ResponseStream(EventStream):
    """A response sent as it comes."""

    def __init__(self, answer: ResponseAnswer, limits: Limits) -> None:
        super().__init__(answer.stream(), limits)
        self._answer = answer

    def failure(self, error: HttpError) -> bytes:
        """The event that tells of an error after the start."""
        return self._answer.error_event(error)
