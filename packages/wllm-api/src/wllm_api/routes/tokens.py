"""POST /tokenize, POST /detokenize and GET /tokenizer_info."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from wllm_api.bodies import body_of
from wllm_api.http_errors import NotFound
from wllm_api.messages import chat_prompt
from wllm_api.routes.common import model_of
from wllm_api.schemas.tokens import DetokenizeRequest, TokenizeRequest
from wllm_api.threads import LONG_TEXT, in_thread

router = APIRouter()
PIECE = 10_000


@router.post("/tokenize")
async def tokenize(request: Request, body: Annotated[TokenizeRequest, Depends(body_of(TokenizeRequest))]) -> Response:
    """The token ids of a text or a conversation."""
    model = await model_of(request, body.model, tasks=None)
    if body.messages is not None:
        param, default = "messages", False
        text = await chat_prompt(
            body.messages,
            model,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            extra=body.chat_template_kwargs,
            tools=[tool.for_template() for tool in body.tools] or None,
        )
    else:
        param, default, text = "prompt", True, body.prompt or ""
    special = default if body.add_special_tokens is None else body.add_special_tokens
    token_ids = await model.encode(text, add_special_tokens=special, param=param) if text else []
    token_text = model.tokenizer.token_text if body.return_token_strs else None
    return Response(
        await in_thread(
            len(token_ids) > LONG_TEXT, lambda: b"".join(_pieces(token_ids, model.info.max_model_len, token_text))
        ),
        media_type="application/json",
    )


def _pieces(token_ids: list[int], max_model_len: int, token_text: Callable[[int], str] | None) -> Iterator[bytes]:
    # There may be millions of them: each piece of the JSON is made in a few milliseconds.
    yield b'{"count": %d, "max_model_len": %d, "tokens": [' % (len(token_ids), max_model_len)
    starts = range(0, len(token_ids), PIECE)
    yield b", ".join(json.dumps(token_ids[start : start + PIECE])[1:-1].encode() for start in starts)
    if token_text is not None:
        yield b'], "token_strs": ['
        yield b", ".join(json.dumps(token_text(token_id), ensure_ascii=False).encode() for token_id in token_ids)
    yield b"]}"


@router.post("/detokenize")
async def detokenize(
    request: Request, body: Annotated[DetokenizeRequest, Depends(body_of(DetokenizeRequest))]
) -> dict[str, object]:
    """The text of token ids."""
    model = await model_of(request, body.model, tasks=None)
    model.require_tokenizer("tokens")
    model.check_ids(body.tokens, "tokens")
    long = len(body.tokens) > LONG_TEXT
    return {"prompt": await in_thread(long, lambda: model.tokenizer.decode(body.tokens, skip_special_tokens=False))}


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> dict[str, object]:
    """What evaluation programs ask for before they leave tokenising to the server, as vLLM names it."""
    model = await model_of(request, None)
    if not model.has_tokenizer:
        raise NotFound("This model was loaded without a tokenizer. Start the server without --skip-tokenizer-init.")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.info.max_model_len,
        "vocab_size": model.tokenizer.vocab_size,
        "chat_template": model.info.chat_template,
        **model.info.special_tokens,
    }
