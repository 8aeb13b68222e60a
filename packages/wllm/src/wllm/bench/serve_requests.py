"""The requests of a serving benchmark: bodies of streamed completions or chats, from a seed.

Plain completions send token ids, so every server reads exactly the same prompt. Chats go through the server's template
and tokenizer: they send words, of which most tokenizers make about one token each; the report counts what the server
says it read.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from wllm.bench.lengths import PromptMaker, Shape

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend"
).split()


def bodies(
    endpoint: Endpoint,
    model: str,
    shapes: Sequence[Shape],
    *,
    vocab_size: int,
    ignore_eos: bool,
    extra: Mapping[str, Any],
    seed: int,
) -> list[dict[str, Any]]:
    """One body a shape; `vocab_size` bounds the token ids of completions, `extra` fields win over ours."""
    prompts = PromptMaker(vocab_size, seed)
    numbers = random.Random(f"words {seed}")
    made = []
    for shape in shapes:
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": shape.output,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if ignore_eos:
            body["ignore_eos"] = True
        if endpoint == "completions":
            body["prompt"] = prompts.one(shape.prompt)
        else:
            words = " ".join(numbers.choice(_WORDS) for _ in range(shape.prompt))
            body["messages"] = [{"role": "user", "content": words}]
        made.append({**body, **extra})
    return made
