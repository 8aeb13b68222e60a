"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, StrictInt

from wllm_api.http_errors import Unsupported
from wllm_api.schemas.base import Flag
from wllm_api.schemas.sampling import MAX_LOGPROBS, SamplingFields

Prompt = str | list[int]


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _prompt_list(value: object) -> object:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a string, a list of strings, a list of token ids, or a list of lists of token ids")
    prompts = [value] if _is_ids(value) else value
    if not all(isinstance(one, str) for one in prompts) and not all(_is_ids(one) for one in prompts):
        raise ValueError("mixes kinds: all prompts must be strings, or all must be lists of whole token ids")
    for number, one in enumerate(prompts):
        if isinstance(one, list) and not one:
            raise ValueError(f"number {number} is an empty list of token ids; give at least one")
    return prompts


class CompletionRequest(SamplingFields):
    """A plain completion request."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **SamplingFields.unsupported,
        "suffix": ("",),
    }

    prompt: Annotated[list[Any], BeforeValidator(_prompt_list)]
    max_tokens: Annotated[StrictInt, Field(ge=-1)] = 16
    logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: Flag = False
    add_special_tokens: Flag = True
    best_of: StrictInt | None = None

    @classmethod
    def refuse_unsupported(cls, data: Mapping[str, object]) -> None:
        """Also a `best_of` that differs from `n`."""
        super().refuse_unsupported(data)
        best_of = data.get("best_of")
        n = data.get("n")
        if best_of is not None and best_of != (1 if n is None else n):
            raise Unsupported(
                f"'best_of' is {best_of}, and picking the best of several answers is not supported. Leave it out.",
                param="best_of",
            )

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts: all texts, or all lists of token ids."""
        return self.prompt
