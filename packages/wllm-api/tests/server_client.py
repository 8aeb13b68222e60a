"""The client of the tests over HTTP, which knows the parts of its server too: they live in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anthropic
import httpx
import ollama
import openai
from fastapi import FastAPI

from wllm_api.engine import EngineProcess
from wllm_api.error_bodies import is_anthropic, is_ollama

# Characters of several tokens, and a break; what `alphabet` always says.
ALPHABET = "Here is the English alphabet: ABC 🫠龜👩‍👩‍👧 é, and\nso on."
# What Anthropic's API calls the statuses. OpenAI's APIs tell them apart by codes, Ollama's not at all.
_ANTHROPICS = {
    400: "invalid_request_error", 404: "not_found_error", 405: "invalid_request_error", 413: "request_too_large",
    503: "api_error", 529: "overloaded_error",
}  # fmt: skip


def message_of(answer: httpx.Response) -> str:
    """The text of a refusal, which has the form of its route's API."""
    body = answer.json()
    path = answer.request.url.path
    if is_ollama(path):
        assert body.keys() == {"error"}
        return str(body["error"])
    error = body["error"]
    if is_anthropic(path):
        assert body.keys() == {"type", "error", "request_id"} and error.keys() == {"type", "message"}
        assert (body["type"], error["type"]) == ("error", _ANTHROPICS[answer.status_code])
    else:
        assert body.keys() == {"error"} and error.keys() == {"message", "type", "param", "code"}
    return str(error["message"])


class ServerClient(httpx.Client):
    """httpx's, and what the tests often ask; each of the packages' clients is to be closed."""

    engine: EngineProcess
    app: FastAPI

    def ask(self, path: str, **body: Any) -> Any:
        """The body of a good answer."""
        answer = self.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, control tokens too."""
        text: str = self.ask("/detokenize", tokens=list(token_ids))["prompt"]
        return text

    def prompt_of(self, **conversation: Any) -> str:
        """What the chat template makes of messages and tools, as /tokenize has it."""
        return self.text_of(self.ask("/tokenize", **conversation)["tokens"])

    def openai_sdk(self) -> openai.OpenAI:
        """OpenAI's package on this server, without a second try."""
        return openai.OpenAI(base_url=f"{self.base_url}/v1", api_key="none", max_retries=0)

    def anthropic_sdk(self, **options: Any) -> anthropic.Anthropic:
        """Anthropic's, likewise; `options` win."""
        options = {"api_key": "none", "max_retries": 0, **options}
        return anthropic.Anthropic(base_url=str(self.base_url), **options)

    def ollama_sdk(self) -> ollama.Client:
        """Ollama's."""
        return ollama.Client(host=str(self.base_url), timeout=30)
