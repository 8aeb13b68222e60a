"""POST /v1/responses, and the routes that look at what was answered, as long as it is kept."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.answers.responses import ResponseAnswer, ResponseStream
from wllm_api.bodies import body_of
from wllm_api.disconnect import until_disconnect
from wllm_api.hosting import LoadedModel
from wllm_api.http_errors import InvalidRequest, NotFound
from wllm_api.response_store import StoredResponse
from wllm_api.routes.chat_turn import Conversation, Wishes, chat_turn, prompt_token_ids
from wllm_api.routes.common import model_of, serving_of
from wllm_api.schemas.response_items import InputItem
from wllm_api.schemas.responses import InputTokensRequest, ResponsesRequest
from wllm_api.structured import flat_format

router = APIRouter()


@router.post("/responses")
async def create_response(
    request: Request, body: Annotated[ResponsesRequest, Depends(body_of(ResponsesRequest))]
) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    serving = serving_of(request)
    model = await model_of(request, body.model)
    answer = await _prepare(request, body, model)
    if body.stream:
        return ResponseStream(answer, serving.limits)
    return JSONResponse(await until_disconnect(request, answer.whole()))


@router.post("/responses/input_tokens")
async def count_input_tokens(
    request: Request, body: Annotated[InputTokensRequest, Depends(body_of(InputTokensRequest))]
) -> dict[str, object]:
    """How many tokens the prompt of such a request has."""
    model = await model_of(request, body.model)
    token_ids = await prompt_token_ids(_conversation(request, body), model)
    return {"object": "response.input_tokens", "input_tokens": len(token_ids)}


@router.get("/responses/{response_id}")
async def retrieve_response(request: Request, response_id: str, stream: bool = False) -> dict[str, object]:
    """A response that is kept, whole."""
    if stream:
        raise InvalidRequest("'stream' is not supported here: a kept response comes whole.", param="stream")
    return _stored(request, response_id).response


@router.delete("/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> dict[str, object]:
    """Forget a response."""
    _stored(request, response_id)
    serving_of(request).responses.delete(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.get("/responses/{response_id}/input_items")
async def list_input_items(
    request: Request,
    response_id: str,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> dict[str, object]:
    """What a response was given, with all that came before it; the newest first unless `order` is "asc"."""
    items = _stored(request, response_id).items
    listed = [{"id": item.id or f"item_{number}", **item.listed()} for number, item in enumerate(items)]
    if order == "desc":
        listed.reverse()
    if after is not None:
        ids = [item["id"] for item in listed]
        if after not in ids:
            raise InvalidRequest(f"'after' is '{after[:80]}', which is not among the items.", param="after")
        listed = listed[ids.index(after) + 1 :]
    page = listed[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(listed) > len(page),
    }


@router.post("/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Refuse: only responses in the background could be cancelled, and there are none."""
    _stored(request, response_id)
    raise InvalidRequest("This response has ended. To cancel one that runs, close its connection.", param="response_id")


def _owner(request: Request) -> str:
    owner: str = request.scope["state"].get("cache_salt", "")
    return owner


def _stored(request: Request, response_id: str) -> StoredResponse:
    stored = serving_of(request).responses.get(response_id, _owner(request))
    if stored is None:
        raise NotFound(
            f"There is no response '{response_id[:80]}' here: this server keeps the last ones in memory, and none with "
            "'store': false. Send the whole conversation as 'input'.",
            param="response_id",
        )
    return stored


def _earlier(request: Request, body: InputTokensRequest) -> tuple[InputItem, ...]:
    if body.previous_response_id is None:
        return ()
    stored = serving_of(request).responses.get(body.previous_response_id, _owner(request))
    if stored is None:
        raise InvalidRequest(
            f"'previous_response_id': there is no response '{body.previous_response_id[:80]}' here. This server keeps "
            "the last ones in memory, and none with 'store': false. Send the whole conversation as 'input'.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return stored.context


def _conversation(request: Request, body: InputTokensRequest) -> Conversation:
    return Conversation(
        messages=body.conversation(_earlier(request, body)),
        tools=body.tool_use,
        variables=body.template_variables(),
        param="input",
        may_drop=isinstance(body, ResponsesRequest) and body.truncation == "auto",
    )


async def _prepare(request: Request, body: ResponsesRequest, model: LoadedModel) -> ResponseAnswer:
    serving = serving_of(request)
    earlier = _earlier(request, body)

    def keep(response: dict[str, object], output: list[InputItem]) -> None:
        serving.responses.put(StoredResponse(_owner(request), response, (*earlier, *body.input), tuple(output)))

    turn = await chat_turn(
        request,
        _conversation(request, body),
        Wishes(
            fields=body.sampling(),
            room=lambda length: model.room(length, body.max_output_tokens, "input"),
            forms=flat_format(body.text.format, "text.format"),
            logprobs=body.num_logprobs,
        ),
        model,
    )
    return ResponseAnswer(
        body,
        turn.generation,
        turn.params,
        turn.new_message(),
        unique=uuid.uuid4().hex,
        model_name=body.model or serving.names[0],
        logprobs=LogprobsFormat(model.tokenizer, as_ids=not model.has_tokenizer),
        keep=keep if body.store else None,
    )
