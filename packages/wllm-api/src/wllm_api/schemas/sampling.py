"""The fields that chat and plain completions share: sampling, stopping, streaming, and vLLM's well-known extras."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, StrictInt, StrictStr, model_validator

from wllm_api.schemas.base import Body, Count, Flag, Number, Part, TokenId

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 4096
# Entries cost time in every step of every request that runs beside.
MAX_BIASED_TOKENS = 1024
MAX_BAD_WORD_LENGTH = 256
MAX_BAD_WORDS = 1_000  # each is compared with the answer's end at every token
MAX_STOP_IDS = 1024
MAX_ALLOWED_IDS = 2**19  # no vocabulary is larger
INT64 = 2**63

_ID_TEXT = re.compile("-?(0|[1-9][0-9]{0,17})")


def _stop_list(value: object) -> object:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOP_STRINGS:
        raise ValueError(f"has {len(stops)} strings; at most {MAX_STOP_STRINGS} are allowed")
    if any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        raise ValueError(f"has a string of more than {MAX_STOP_LENGTH} characters")
    if "" in stops:
        raise ValueError("holds an empty string, which would end every answer at once")
    return stops


BadWord = Annotated[StrictStr, Field(max_length=MAX_BAD_WORD_LENGTH)]
StopList = Annotated[list[str], BeforeValidator(_stop_list)]


def _bias_map(value: object) -> object:
    if not isinstance(value, dict):
        raise ValueError("must be an object that maps token ids to numbers")
    if len(value) > MAX_BIASED_TOKENS:
        raise ValueError(f"has {len(value)} entries; at most {MAX_BIASED_TOKENS} are allowed")
    bias: dict[int, float] = {}
    for key, number in value.items():
        # Other spellings of a number ("05", "1_0") could mean a token twice.
        if not _ID_TEXT.fullmatch(key):
            raise ValueError(f"has the key '{key:.40}', which is not a token id")
        token_id = int(key)
        if isinstance(number, bool) or not isinstance(number, int | float) or not -100 <= number <= 100:
            raise ValueError(f"gives token {token_id} the value {number}, which is not a number from -100 to 100")
        bias[token_id] = float(number)
    return bias


class StreamOptions(Part):
    """What a stream carries beside text."""

    include_usage: Flag = False
    """One more chunk at the end, without choices, that holds the token counts."""
    continuous_usage_stats: Flag = False
    """The token counts so far in every chunk."""
    include_obfuscation: Flag = False
    """Without effect: no chunk is padded."""


class SamplingFields(Body):
    """Shared fields; defaults are OpenAI's, unless the model recommends its own (see `params`)."""

    no_effect: ClassVar[frozenset[str]] = frozenset({
        "guided_decoding_backend", "include_reasoning", "metadata", "moderation", "parallel_tool_calls", "prediction",
        "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier",
        "spaces_between_special_tokens", "store", "user", "verbosity",
    })  # fmt: skip
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "documents": ([],),
        "ec_transfer_params": (),
        "guided_whitespace_pattern": (),
        "kv_transfer_params": (),
        "length_penalty": (1, 1.0),
        "logprob_token_ids": ([],),
        "logits_processors": ([],),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
        "prompt_embeds": (),
        "repetition_detection": (),
        "thinking_token_budget": (),
        "truncation_side": ("left",),
        "use_beam_search": (False,),
        "vllm_xargs": ({},),
        "watermarking": (),
    }

    model: StrictStr | None = None
    """One of the served names; absent: the only model there is."""
    n: Annotated[StrictInt, Field(ge=1, le=128)] = 1
    """How many answers to each prompt."""
    temperature: Annotated[Number, Field(ge=0, le=2)] = 1.0
    """Higher is more random; 0 always takes the likeliest token. The model may recommend another default."""
    top_p: Annotated[Number, Field(ge=0, le=1)] = 1.0
    """Only the likeliest tokens that together have this probability; 0 is greedy."""
    top_k: Annotated[StrictInt, Field(ge=-1)] = 0
    """Only so many of the likeliest tokens; 0 and -1 are off."""
    min_p: Annotated[Number, Field(ge=0, le=1)] = 0.0
    """Only tokens with at least this fraction of the likeliest token's probability."""
    repetition_penalty: Annotated[Number, Field(gt=0)] = 1.0
    """Above 1 makes tokens of the prompt and the answer less likely to come again."""
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] = 0.0
    """Taken off the logit of each token that the answer has already."""
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] = 0.0
    """Taken off a token's logit for each time that the answer has it."""
    seed: Annotated[StrictInt, Field(ge=-INT64, lt=INT64)] | None = None
    """The same seed, prompt and parameters draw the same answer."""
    stop: StopList = Field(default_factory=list)
    """Up to 16 texts that end the answer where one of them comes up."""
    logit_bias: Annotated[dict[int, float], BeforeValidator(_bias_map)] = Field(default_factory=dict)
    """Added to the logits: numbers from -100 to 100 by token id."""
    stream: Flag = False
    """Send the answer piece by piece, as server-sent events."""
    stream_options: StreamOptions = StreamOptions()
    """Only with `stream`."""

    response_format: dict[str, Any] | None = None
    """The form of the answer: `text`, `json_object`, or `json_schema` with a schema, which is enforced."""
    structured_outputs: dict[str, Any] | None = None
    """The form of the answer, one of `json`, `json_object`, `regex`, `choice`, `grammar`."""
    guided_json: dict[str, Any] | StrictStr | None = None
    """The older spelling of `structured_outputs.json`."""
    guided_regex: StrictStr | None = None
    """The older spelling of `structured_outputs.regex`."""
    guided_choice: list[StrictStr] | None = None
    """The older spelling of `structured_outputs.choice`."""
    guided_grammar: StrictStr | None = None
    """The older spelling of `structured_outputs.grammar`."""

    min_tokens: Count = 0
    """No end token and no stop string ends the answer before it has so many tokens; a form that is complete does."""
    ignore_eos: Flag = False
    """Go on past the model's own end tokens."""
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS)] = Field(default_factory=list)
    """Tokens that end the answer, beside the model's own."""
    include_stop_str_in_output: Flag = False
    """Leave the stop string or the end token in the answer."""
    skip_special_tokens: Flag = True
    """Leave special tokens out of the text."""
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] = Field(default_factory=list)
    """Texts that the answer must not have."""
    allowed_token_ids: Annotated[list[TokenId], Field(max_length=MAX_ALLOWED_IDS)] | None = None
    """The only tokens that the answer may have."""
    prompt_logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Log-probabilities of the prompt's tokens, with so many of the likeliest beside each; not in a stream."""
    truncate_prompt_tokens: Annotated[StrictInt, Field(ge=-1)] | None = None
    """Keep only the last so many tokens of the prompt; -1 keeps what the context holds."""
    priority: StrictInt = 0
    """Requests with a lower number leave the queue first."""
    cache_salt: StrictStr = ""
    """Only requests with the same salt share cached prefixes."""
    request_id: Annotated[StrictStr, Field(max_length=128, pattern=r"^[\x21-\x7e]+$")] | None = None
    """Becomes part of the answer's id."""
    timings_per_token: Flag = False
    """Add `timings` as llama.cpp has them: to a whole answer, and to every chunk of a stream."""
    return_token_ids: Flag = False
    """Give the token ids of the prompt and the answer too."""
    return_tokens_as_token_ids: Flag = False
    """Write tokens of log-probabilities as "token_id:123"."""

    @property
    def num_samples(self) -> int:
        """How many answers to each prompt are generated."""
        return self.n

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if "stream_options" in self.model_fields_set and not self.stream:
            raise ValueError("'stream_options' is only allowed with 'stream': true")
        return self
