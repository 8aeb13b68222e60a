"""From a request's fields to the engine's `SamplingParams`: the model's defaults, and ids checked by its size."""

from __future__ import annotations

from collections.abc import Collection

from wllm_api.http_errors import InvalidRequest
from wllm_api.model import ServedModel
from wllm_api.schemas.sampling import SamplingFields
from wllm_api.text import resolve_bad_words
from wllm_sched.errors import InvalidParameter
from wllm_sched.grammar import Grammar
from wllm_sched.sampling import SamplingParams

RECOMMENDED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_params(
    fields: SamplingFields,
    model: ServedModel,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    cache_salt: str,
    grammar: Grammar | None = None,
    also_stop_at: Collection[int] = (),
) -> SamplingParams:
    """The engine's parameters for one prompt of the request; raises `InvalidRequest`.

    `also_stop_at` are end tokens beside those of the model and the request.
    """
    _check_ids(fields, model)
    for name in ("stop", "bad_words"):
        if getattr(fields, name):
            model.require_tokenizer(name)
    values = {name: getattr(fields, name) for name in RECOMMENDED}
    for name, value in model.info.default_sampling.items():
        if name in RECOMMENDED and name not in fields.model_fields_set:
            values[name] = int(value) if name == "top_k" else float(value)
    if values["top_k"] >= model.info.vocab_size:
        values["top_k"] = 0
    try:
        params = SamplingParams(
            n=fields.num_samples,
            presence_penalty=fields.presence_penalty,
            frequency_penalty=fields.frequency_penalty,
            seed=fields.seed,
            max_tokens=max_tokens,
            min_tokens=fields.min_tokens,
            stop=fields.stop,
            stop_token_ids=[*fields.stop_token_ids, *(() if fields.ignore_eos else also_stop_at)],
            ignore_eos=fields.ignore_eos,
            logit_bias=fields.logit_bias,
            bad_words=fields.bad_words,
            allowed_token_ids=fields.allowed_token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            include_stop_str_in_output=fields.include_stop_str_in_output,
            skip_special_tokens=fields.skip_special_tokens,
            priority=fields.priority,
            cache_salt=cache_salt,
            grammar=grammar,
            **values,
        )
        return resolve_bad_words(params, model.tokenizer) if fields.bad_words else params
    except InvalidParameter as error:
        raise InvalidRequest(str(error), param=error.parameter) from None


def _check_ids(fields: SamplingFields, model: ServedModel) -> None:
    model.check_ids(list(fields.logit_bias), "logit_bias")
    model.check_ids(fields.stop_token_ids, "stop_token_ids")
    model.check_ids(fields.allowed_token_ids or (), "allowed_token_ids")
