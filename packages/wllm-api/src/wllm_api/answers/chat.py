"""Answers of /v1/chat/completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from wllm_api.answers.base import Answer, Gained
from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.answers.message import MessageText
from wllm_api.generation import Generation
from wllm_api.schemas.chat import ChatRequest


class ChatAnswer(Answer):
    """`echo` is the text of the continued message, put in front of the answer."""

    object_name: ClassVar[str] = "chat.completion"
    chunk_name: ClassVar[str] = "chat.completion.chunk"

    def __init__(
        self,
        body: ChatRequest,
        generation: Generation,
        *,
        answer_id: str,
        model_name: str,
        prompt_token_ids: list[int],
        logprobs: LogprobsFormat,
        echo: str,
        new_message: Callable[[], MessageText],
    ) -> None:
        super().__init__(body, generation, answer_id=answer_id, model_name=model_name)
        self._body = body
        self._prompt_token_ids = prompt_token_ids
        self._logprobs = logprobs
        self._echo = echo
        self._messages: defaultdict[int, MessageText] = defaultdict(new_message)

    def read(self, number: int, gained: Gained) -> None:
        """Part content, thoughts and calls."""
        self._messages[number].read(gained)

    def whole_choice(self, number: int, gained: Gained) -> dict[str, object]:
        """A choice with its message."""
        text = self._messages[number]
        found = self._found(text)
        content = self._echo + found.pop("content", "")
        message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
        if "tool_calls" in found or "function_call" in found:
            message["content"] = content or None
        if calls := found.pop("tool_calls", None):
            found["tool_calls"] = [{name: value for name, value in call.items() if name != "index"} for call in calls]
        return {"index": number, "message": {**message, **found}, **self._rest(gained, text)}

    def chunk_choices(self, number: int, gained: Gained, *, first: bool) -> Iterator[dict[str, object]]:
        """The role first, then text as it comes."""
        if first:
            role: dict[str, object] = {"role": "assistant", "content": ""}
            opening = {"index": number, "delta": role, "logprobs": None, "finish_reason": None}
            if self._body.return_token_ids:
                opening["prompt_token_ids"] = self._prompt_token_ids
            yield opening
        text = self._messages[number]
        delta = self._found(text)
        if first and self._echo:
            delta["content"] = self._echo + delta.get("content", "")
        rest = self._rest(gained, text)
        if delta or any(value is not None for value in rest.values()):
            yield {"index": number, "delta": delta, **rest}

    def usage(self) -> dict[str, object]:
        """Also how many tokens were thoughts."""
        thought = sum(message.num_reasoning_tokens for message in self._messages.values())
        return {**super().usage(), "completion_tokens_details": {"reasoning_tokens": thought}}

    def extras(self) -> dict[str, object]:
        """What vLLM's own request fields ask for."""
        extras: dict[str, object] = {}
        if self._body.return_token_ids:
            extras["prompt_token_ids"] = self._prompt_token_ids
        if self._body.prompt_logprobs is not None:
            extras["prompt_logprobs"] = self._logprobs.prompt(self.generation.prompt_logprobs[0] or ())
        return extras

    def _found(self, text: MessageText) -> dict[str, Any]:
        found = text.take()
        if self._body.functions and "tool_calls" in found:
            # Asked for in the older spelling, the one call is given in it.
            found["function_call"] = found.pop("tool_calls")[0]["function"]
        return found

    def _rest(self, gained: Gained, text: MessageText) -> dict[str, object]:
        rows = self._logprobs.chat(gained.logprobs) if self._body.logprobs else []
        finish = text.finish_reason
        rest: dict[str, object] = {
            "logprobs": {"content": rows, "refusal": None} if rows else None,
            "finish_reason": "function_call" if self._body.functions and finish == "tool_calls" else finish,
        }
        if self._body.return_token_ids:
            rest["token_ids"] = gained.token_ids or None
        return rest
