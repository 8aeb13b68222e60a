"""Answers of /v1/responses, whole and as events; the whole one is what the stream's last event holds."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Literal

from wllm_api.answers.base import Gained
from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.answers.message import MessageText
from wllm_api.answers.segments import Segment, Segments, Step
from wllm_api.generation import Generation
from wllm_api.http_errors import HttpError
from wllm_api.schemas.response_items import CallItem, InputItem, MessageItem, ReasoningItem
from wllm_api.schemas.response_tools import WebSearch
from wllm_api.schemas.responses import ResponsesRequest
from wllm_api.settings import Limits
from wllm_api.sse import EventStream, typed_event
from wllm_api.text import TextDelta
from wllm_sched.messages import FinishReason
from wllm_sched.plan import TokenLogprobs
from wllm_sched.sampling import SamplingParams

Status = Literal["in_progress", "completed", "incomplete", "failed"]
_PREFIXES = {"content": "msg", "reasoning": "rs", "call": "fc"}
# What a piece of each kind is called in events.
_TEXTS = {"content": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}


class ResponseAnswer:
    """One response, with an item for each stretch of the answer; `keep` is given it at its end."""

    def __init__(
        self,
        body: ResponsesRequest,
        generation: Generation,
        params: SamplingParams,
        message: MessageText,
        *,
        unique: str,
        model_name: str,
        logprobs: LogprobsFormat,
        keep: Callable[[dict[str, object], list[InputItem]], None] | None = None,
    ) -> None:
        self._generation = generation
        self._logprobs = logprobs
        self._unique = unique
        self._message = message
        self._segments = Segments(message)
        self._keep = keep
        self._namespaces = body.namespaces
        self._finish_reason: FinishReason | None = None
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
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "store": keep is not None,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}, **body.text.model_dump(exclude_none=True)},
            "tool_choice": body.tool_choice if isinstance(body.tool_choice, str) else body.tool_choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools if not isinstance(tool, WebSearch)],
            "top_logprobs": body.top_logprobs,
            "top_p": params.top_p,
            "truncation": body.truncation,
        }

    async def whole(self) -> dict[str, object]:
        """The answer as one object; raises `HttpError`."""
        async with aclosing(self._generation.deltas()) as deltas:
            async for _, delta in deltas:
                for _ in self._steps(delta):
                    pass
        return self._finished()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; raises `HttpError`."""
        async with aclosing(self._generation.deltas()) as deltas:
            async for _, delta in deltas:
                if not self._begun:
                    self._begun = True
                    for name in ("created", "in_progress"):
                        yield self._event(name, response=self._response("in_progress"))
                for step in self._steps(delta):
                    for event in self._events(step):
                        yield event
        response = self._finished()
        yield self._event(str(response["status"]), response=response)

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

    def _steps(self, delta: TextDelta) -> Iterator[Step]:
        gained = Gained()
        gained.add(delta)
        self._finish_reason = gained.finish_reason
        return self._segments.add(gained)

    def _finished(self) -> dict[str, object]:
        response = self._response(self._final_status())
        if self._keep is not None:
            self._keep(response, [self._input_item(segment) for segment in self._segments.all])
        return response

    def _events(self, step: Step) -> Iterator[bytes]:
        number, segment = step.number, step.segment
        name = _TEXTS[segment.kind]
        place: dict[str, object] = {"item_id": self._item_id(number, segment), "output_index": number}
        in_part = {} if segment.kind == "call" else {"content_index": 0}
        if step.begins:
            item = self._item(number, segment, "in_progress")
            if in_part:
                item["content"] = []
            yield self._event("output_item.added", output_index=number, item=item)
            if in_part:
                yield self._event("content_part.added", **place, **in_part, part=self._part(segment))
        elif step.ends:
            text = {"arguments" if segment.kind == "call" else "text": segment.text}
            yield self._event(f"{name}.done", **place, **in_part, **text, **self._rows(segment, segment.rows))
            if in_part:
                yield self._event("content_part.done", **place, **in_part, part=self._part(segment))
            item = self._item(number, segment, self._item_status(segment))
            yield self._event("output_item.done", output_index=number, item=item)
        else:
            rows = self._rows(segment, step.rows)
            yield self._event(f"{name}.delta", **place, **in_part, delta=step.text, **rows)

    def _event(self, name: str, **data: object) -> bytes:
        return typed_event({"type": f"response.{name}", "sequence_number": self._next_number(), **data})

    def _next_number(self) -> int:
        number = self._sequence_number
        self._sequence_number += 1
        return number

    def _final_status(self) -> Status:
        return "incomplete" if self._finish_reason == "length" else "completed"

    def _item_status(self, segment: Segment) -> Status:
        return "completed" if segment.closed else self._final_status()

    def _response(self, status: Status) -> dict[str, object]:
        running = status == "in_progress"
        output = [] if running else [
            self._item(number, segment, "incomplete" if status == "failed" else self._item_status(segment))
            for number, segment in enumerate(self._segments.all)
        ]  # fmt: skip
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": output,
            "usage": None if running else self._usage(),
        }

    def _item_id(self, number: int, segment: Segment) -> str:
        return f"{_PREFIXES[segment.kind]}_{self._unique}_{number}"

    def _item(self, number: int, segment: Segment, status: Status) -> dict[str, object]:
        head: dict[str, object] = {"id": self._item_id(number, segment), "status": status}
        match segment.kind:
            case "content":
                return {**head, "type": "message", "role": "assistant", "content": [self._part(segment)]}
            case "reasoning":
                return {
                    **head, "type": "reasoning", "summary": [], "content": [self._part(segment)],
                    "encrypted_content": None,
                }  # fmt: skip
            case "call":
                namespace = self._namespaces.get(segment.name)
                return {
                    **head, "type": "function_call", "call_id": segment.call_id, "name": segment.name,
                    "arguments": segment.text, **({} if namespace is None else {"namespace": namespace}),
                }  # fmt: skip

    def _input_item(self, segment: Segment) -> InputItem:
        match segment.kind:
            case "content":
                return MessageItem(role="assistant", content=segment.text)
            case "reasoning":
                return ReasoningItem(type="reasoning", content=segment.text)
            case "call":
                return CallItem(
                    type="function_call", call_id=segment.call_id, name=segment.name, arguments=segment.text,
                    namespace=self._namespaces.get(segment.name),
                )  # fmt: skip

    def _part(self, segment: Segment) -> dict[str, object]:
        part: dict[str, object] = {"type": _TEXTS[segment.kind], "text": segment.text}
        if segment.kind == "content":
            part["annotations"] = []
        return {**part, **self._rows(segment, segment.rows)}

    def _rows(self, segment: Segment, rows: Sequence[TokenLogprobs]) -> dict[str, object]:
        return {"logprobs": self._logprobs.chat(rows)} if segment.kind == "content" else {}

    def _usage(self) -> dict[str, object]:
        given, made = self._generation.num_prompt_tokens, self._generation.num_completion_tokens
        return {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": self._generation.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": self._message.num_reasoning_tokens},
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
