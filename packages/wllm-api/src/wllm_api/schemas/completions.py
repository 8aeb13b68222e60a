"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, StrictInt, StrictStr, model_validator

from wllm_api.schemas.base import Flag
from wllm_api.schemas.inputs import Prompt, prompt_list
from wllm_api.schemas.sampling import MAX_LOGPROBS, SamplingFields


class CompletionRequest(SamplingFields):
    """A plain completion request."""

    prompt: Annotated[list[Any], BeforeValidator(prompt_list)]
    """A text, a list of texts, a list of token ids, or a list of such lists: each is continued on its own."""
    suffix: StrictStr = ""
    """The text after the gap that the answer is to fill, for models with tokens for that."""
    max_tokens: Annotated[StrictInt, Field(ge=-1)] = 16
    """The most tokens of an answer; 0 only scores the prompt, -1 takes what the context holds."""
    logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Log-probabilities of each token, with so many of the likeliest beside it."""
    echo: Flag = False
    """Put the prompt in front of the answer, with its log-probabilities if `logprobs` is set."""
    add_special_tokens: Flag = True
    """Put the model's begin token in front of texts, where its tokenizer does that."""
    best_of: Annotated[StrictInt, Field(ge=1, le=128)] | None = None
    """Generate so many answers and return the `n` of the highest mean log-probability of a token; not in a stream."""

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts: all texts, or all lists of token ids."""
        return self.prompt

    @property
    def num_samples(self) -> int:
        """How many answers to each prompt are generated: the best `n` of them are given."""
        return self.n if self.best_of is None else self.best_of

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.num_samples < self.n:
            raise ValueError(f"'best_of' is {self.best_of}, which is less than 'n', {self.n}: raise it or leave it out")
        if self.num_samples > self.n and self.stream:
            raise ValueError("'best_of' above 'n' is not available with 'stream': the best is known at the end only")
        for name in ("echo", "truncate_prompt_tokens"):
            if self.suffix and name in self.model_fields_set and getattr(self, name) is not False:
                raise ValueError(f"'{name}' is not available with 'suffix', which comes between prompt and answer")
        return self
