"""Small things that several routes need."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from fastapi import Request

from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.disconnect import until_disconnect
from wllm_api.hosting import LoadedModel
from wllm_api.http_errors import InvalidRequest
from wllm_api.model import ServedModel
from wllm_api.schemas.sampling import SamplingFields
from wllm_api.serving import Serving
from wllm_sched.messages import Task


def serving_of(request: Request) -> Serving:
    """The server's shared state."""
    serving: Serving = request.app.state.serving
    return serving


async def model_of(request: Request, name: str | None, *, tasks: Sequence[Task] | None = ("generate",)) -> LoadedModel:
    """`Serving.model`; a request whose client has gone waits for no model."""
    serving = serving_of(request)
    if serving.hosted(name).is_ready:
        return await serving.model(name, tasks=tasks)
    return await until_disconnect(request, serving.model(name, tasks=tasks))


def answer_id(prefix: str, fields: SamplingFields) -> str:
    """The id of an answer: the client's `request_id`, or a new one."""
    return f"{prefix}-{fields.request_id or uuid.uuid4().hex}"


def cache_salt(request: Request, fields: SamplingFields) -> str:
    """What keeps this request's prefix-cache blocks apart from others'."""
    own = request.scope["state"].get("cache_salt", "")
    return f"{own}:{fields.cache_salt}" if own else fields.cache_salt


def truncated(token_ids: list[int], fields: SamplingFields, model: ServedModel) -> list[int]:
    """The last `truncate_prompt_tokens` ids; -1 stands for the model's context."""
    limit = fields.truncate_prompt_tokens
    if limit is None:
        return token_ids
    if limit == 0:
        raise InvalidRequest(
            "'truncate_prompt_tokens' is 0, which leaves no prompt. Use 1 or more, or -1 for the context.",
            param="truncate_prompt_tokens",
        )
    return token_ids[-(model.info.max_model_len - 1 if limit == -1 else limit) :]


def logprobs_format(fields: SamplingFields, model: ServedModel) -> LogprobsFormat:
    """How the request's log-probabilities name tokens; without a tokenizer only ids can tell them apart."""
    return LogprobsFormat(model.tokenizer, as_ids=fields.return_tokens_as_token_ids or not model.has_tokenizer)


def refuse_streamed_prompt_logprobs(fields: SamplingFields) -> None:
    """Raise `InvalidRequest`: `prompt_logprobs` have no place in a stream."""
    if fields.stream and fields.prompt_logprobs is not None:
        raise InvalidRequest(
            "'prompt_logprobs' is not available with 'stream': true. Ask without streaming.", param="prompt_logprobs"
        )
