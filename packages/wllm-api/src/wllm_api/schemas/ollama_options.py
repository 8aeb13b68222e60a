"""The `options` of Ollama's requests, and what they mean to the sampler.

Options of loading (threads, layers on a GPU, batch size) have no effect: the engine was set up when the server started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, StrictInt, model_validator

from wllm_api.http_errors import InvalidRequest, Unsupported
from wllm_api.schemas.base import Number, Part
from wllm_api.schemas.sampling import INT64, SamplingFields, StopList


def _whole(value: object) -> object:
    # Ollama's own clients may write 40 as 40.0: JSON does not tell them apart.
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[StrictInt, BeforeValidator(_whole)]


class OllamaSampling(SamplingFields):
    """The sampling fields with Ollama's defaults, which hold where the model recommends nothing."""

    temperature: Annotated[Number, Field(ge=0, le=2)] = 0.8
    top_k: Annotated[StrictInt, Field(ge=-1)] = 40
    top_p: Annotated[Number, Field(ge=0, le=1)] = 0.9


class Options(Part):
    """Sampling and limits; `num_ctx` is the least context that the client wants, not a limit."""

    no_effect: ClassVar[frozenset[str]] = frozenset({
        "embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat_eta", "mirostat_tau", "num_batch",
        "num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "use_mlock", "use_mmap", "vocab_only",
    })  # fmt: skip
    unsupported: ClassVar[Mapping[str, tuple[float, ...]]] = {"mirostat": (0,), "tfs_z": (1,), "typical_p": (1,)}

    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    """0 for the likeliest token each time."""
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    """How many of the likeliest tokens are drawn from; 0 or -1 for all."""
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    """The share of probability that tokens are drawn from."""
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    """The least probability of a token, as a share of that of the likeliest."""
    repeat_penalty: Annotated[Number, Field(gt=0)] | None = None
    """Above 1: tokens of prompt and answer become less likely."""
    repeat_last_n: Annotated[Whole, Field(ge=-1)] | None = None
    """-1: penalties look at the whole text, which is all there is; 0: no penalties."""
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    """Taken from tokens that the answer has already."""
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    """The same, for each time that it has them."""
    seed: Annotated[Whole, Field(ge=-INT64, lt=INT64)] | None = None
    """Equal requests with equal seeds have equal answers; -1 for none."""
    stop: StopList = Field(default_factory=list)
    """Texts that end the answer."""
    num_predict: Annotated[Whole, Field(ge=-2)] | None = None
    """The most tokens of the answer; 0, -1 and -2 for all that fit."""
    num_ctx: Annotated[Whole, Field(ge=0)] = 0
    """The least context that the client counts on."""

    @classmethod
    def refuse_unsupported(cls, options: Mapping[str, object]) -> None:
        """Raise `Unsupported` for a way of sampling that this server does not have."""
        for name, harmless in cls.unsupported.items():
            value = options.get(name)
            if value is not None and (isinstance(value, bool) or value not in harmless):
                raise Unsupported(
                    f"The option '{name}' is not supported by this server. Leave it out.", param=f"options.{name}"
                )

    @model_validator(mode="after")
    def _penalties_see_the_whole_text(self) -> Self:
        penalties = ((self.repeat_penalty, 1), (self.presence_penalty, 0), (self.frequency_penalty, 0))
        used = any(value is not None and value != neutral for value, neutral in penalties)
        if used and self.repeat_last_n is not None and self.repeat_last_n > 0:
            raise ValueError(
                f"'repeat_last_n' is {self.repeat_last_n}, but penalties of this server look at the whole text. "
                "Use -1 for that, or 0 for no penalty"
            )
        return self

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of an answer; None (Ollama's 0, -1 and -2) for all that fit."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None

    def sampling(self) -> OllamaSampling:
        """The same as the fields that all requests are sampled by."""
        fields = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed if self.seed != -1 else None,
            "stop": self.stop,
        }
        if self.repeat_last_n == 0:
            fields |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        return OllamaSampling.model_validate(fields)

    def check_context(self, max_model_len: int) -> None:
        """Raise `InvalidRequest` when the client wants more context than there is: it would count on it."""
        if self.num_ctx > max_model_len:
            raise InvalidRequest(
                f"The option 'num_ctx' is {self.num_ctx}, and this model's context is {max_model_len} here. Ask for "
                "that or less, or start the server with a larger --max-model-len if the model has it.",
                param="options.num_ctx",
            )
