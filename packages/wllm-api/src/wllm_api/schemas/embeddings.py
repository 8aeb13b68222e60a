"""POST /v1/embeddings, and Ollama's /api/embed and /api/embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictInt, StrictStr

from wllm_api.schemas.base import Body, Flag
from wllm_api.schemas.inputs import Prompt, prompt_list
from wllm_api.schemas.ollama import OllamaBody

MAX_TEXTS = 2048
Dimensions = Annotated[StrictInt, Field(ge=1)]
Truncation = Annotated[StrictInt, Field(ge=-1)]


def _few(value: object) -> object:
    if isinstance(value, list) and len(value) > MAX_TEXTS:
        raise ValueError(f"has {len(value)} entries; the limit is {MAX_TEXTS}. Send them in several requests")
    return value


def _input_list(value: object) -> object:
    return _few(prompt_list(value))


def _text_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


TextList = Annotated[list[StrictStr], BeforeValidator(_few)]


class PooledFields(Body):
    """What all requests share that are answered with vectors or scores."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"user"})
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "messages": ([],),
        "mm_processor_kwargs": ({},),
        "priority": (0,),
        "softmax": (),
        "activation": (),
        "use_activation": (),
    }

    model: StrictStr | None = None
    """The served model's name; absent: the only one."""
    truncate_prompt_tokens: Truncation | None = None
    """Keep so many tokens of each text, from its beginning; -1 for as many as the model takes. Absent: a text that is
    too long is refused."""
    add_special_tokens: Flag = True
    """Put the tokens around a text that the model was trained with."""


class EmbeddingRequest(PooledFields):
    """Texts to make vectors of."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **PooledFields.unsupported,
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
    }

    input: Annotated[list[Any], BeforeValidator(_input_list)]
    """A text, a list of up to 2048 texts, a list of token ids, or a list of such lists."""
    encoding_format: Literal["float", "base64"] = "float"
    """Numbers, or base64 of float32 in little-endian bytes."""
    dimensions: Dimensions | None = None
    """Shorter vectors, of a model that was trained for them."""
    normalize: Flag | None = None
    """Make vectors of length 1, or leave them as they are; absent: what the model does by itself."""

    @property
    def inputs(self) -> list[Prompt]:
        """The inputs: all texts, or all lists of token ids."""
        return self.input


class EmbedRequest(OllamaBody):
    """Ollama's request for vectors of length 1."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"options"})

    input: Annotated[TextList, BeforeValidator(_text_list)] = Field(default_factory=list)
    """A text or a list of texts."""
    truncate: Flag = True
    """Cut a text that is too long at its end; false refuses it."""
    dimensions: Dimensions | None = None
    """Shorter vectors, of a model that was trained for them."""


class OllamaEmbeddingsRequest(OllamaBody):
    """Ollama's older request for one vector."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"options"})

    prompt: StrictStr = ""
    """The text."""
