"""POST /v1/completions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from wllm_api.answers.completions import CompletionAnswer, EchoedPrompt
from wllm_api.bodies import body_of
from wllm_api.disconnect import until_disconnect
from wllm_api.generation import Generation, Job
from wllm_api.hosting import LoadedModel
from wllm_api.http_errors import InvalidRequest
from wllm_api.model import ServedModel
from wllm_api.params import sampling_params
from wllm_api.routes.common import (
    answer_id,
    cache_salt,
    logprobs_format,
    model_of,
    refuse_streamed_prompt_logprobs,
    serving_of,
    truncated,
)
from wllm_api.schemas.completions import CompletionRequest
from wllm_api.schemas.inputs import Prompt
from wllm_api.sse import EventStream
from wllm_api.structured import grammar_for
from wllm_api.threads import in_thread
from wllm_sched.grammar import Grammar

router = APIRouter()


@router.post("/completions")
async def create_completion(
    request: Request, body: Annotated[CompletionRequest, Depends(body_of(CompletionRequest))]
) -> Response:
    """Continue one or several prompts, whole or as a stream of server-sent events."""
    serving = serving_of(request)
    model = await model_of(request, body.model)
    answer = await _prepare(request, body, model)
    if body.stream:
        return EventStream(answer.stream(), serving.limits)
    return JSONResponse(await until_disconnect(request, answer.whole()))


async def _prepare(request: Request, body: CompletionRequest, model: LoadedModel) -> CompletionAnswer:
    serving = serving_of(request)
    refuse_streamed_prompt_logprobs(body)
    num_samples = len(body.prompts) * body.num_samples
    if num_samples > serving.limits.max_samples:
        raise InvalidRequest(
            f"{len(body.prompts)} prompts with n = {body.num_samples} make {num_samples} answers; the limit is "
            f"{serving.limits.max_samples}. Send them in several requests.",
            param="prompt",
        )
    prompts = [await _ids(prompt, body, model) for prompt in body.prompts]
    wanted = None if body.max_tokens == -1 else body.max_tokens
    rooms = [model.room(len(token_ids), wanted, "prompt") for token_ids in prompts]
    grammar = await grammar_for(body, model)
    jobs = await in_thread(False, lambda: _jobs(request, body, model, list(zip(prompts, rooms, strict=True)), grammar))
    echoes = []
    if body.echo:
        whole = body.truncate_prompt_tokens is None
        for prompt, token_ids in zip(body.prompts, prompts, strict=True):
            text = prompt if isinstance(prompt, str) and whole else None
            echoes.append(EchoedPrompt.of(token_ids, text, model.tokenizer))
    return CompletionAnswer(
        body,
        Generation(serving, model, jobs),
        answer_id=answer_id("cmpl", body),
        model_name=body.model or serving.names[0],
        prompts=prompts,
        logprobs=logprobs_format(body, model),
        echoes=echoes,
    )


async def _ids(prompt: Prompt, body: CompletionRequest, model: ServedModel) -> list[int]:
    if not isinstance(prompt, str):
        model.check_ids(prompt, "prompt")
    if body.suffix:
        return await model.fill_in(prompt, body.suffix, add_special_tokens=body.add_special_tokens)
    if isinstance(prompt, str):
        # What is cut must be known to its end.
        to_fit = body.truncate_prompt_tokens is None
        prompt = await model.encode(prompt, add_special_tokens=body.add_special_tokens, param="prompt", to_fit=to_fit)
    return truncated(prompt, body, model)


def _jobs(
    request: Request,
    body: CompletionRequest,
    model: ServedModel,
    prompts: Sequence[tuple[list[int], int]],
    grammar: Grammar | None,
) -> list[Job]:
    """A job for each prompt, given with the room for its answer."""
    scored = [count for count in (body.prompt_logprobs, body.logprobs if body.echo else None) if count is not None]
    params = sampling_params(
        body,
        model,
        max_tokens=prompts[0][1],
        logprobs=0 if body.logprobs is None and body.num_samples > body.n else body.logprobs,
        prompt_logprobs=max(scored, default=None),
        cache_salt=cache_salt(request, body),
        grammar=grammar,
        also_stop_at=model.infill.ends if body.suffix and model.infill else (),
    )
    return [
        Job(token_ids, params if room == params.max_tokens else dataclasses.replace(params, max_tokens=room))
        for token_ids, room in prompts
    ]
