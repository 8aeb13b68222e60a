"""From a request's texts to the tokens that a pooling model takes, checked by its context."""

from __future__ import annotations

from collections.abc import Sequence

from wllm_api.errors import InvalidText
from wllm_api.http_errors import ContextLengthExceeded, InvalidRequest
from wllm_api.model import ServedModel
from wllm_api.schemas.embeddings import PooledFields
from wllm_api.schemas.inputs import Prompt
from wllm_api.threads import LONG_TEXT, in_thread
from wllm_sched.pooling import PooledText


async def pooled_inputs(
    inputs: Sequence[Prompt], model: ServedModel, fields: PooledFields, *, param: str, longest_text: int | None = None
) -> list[PooledText]:
    """The tokens of each input, a text or token ids; a text keeps at most `longest_text` of its own.

    Raises `InvalidRequest`.
    """
    longest = _cut_at(fields, model)
    texts = [one for one in inputs if isinstance(one, str)]
    if texts:
        pooled = await _assembled(texts, None, model, fields, longest, longest_text, param)
    else:
        ids = [one for one in inputs if not isinstance(one, str)]
        for one in ids:
            model.check_ids(one, param)
        pooled = [PooledText(one[:longest]) for one in ids]
    if longest is not None and any(len(text.token_ids) > longest for text in pooled):
        raise InvalidRequest(
            f"'truncate_prompt_tokens' is {longest}, which leaves no room for text between this model's special "
            "tokens. Use more.",
            param="truncate_prompt_tokens",
        )
    return _checked(pooled, model, param)


async def pooled_pairs(
    first: Sequence[str],
    second: Sequence[str],
    model: ServedModel,
    fields: PooledFields,
    *,
    longest_text: int | None,
    names: tuple[str, str],
) -> list[PooledText]:
    """The tokens of each pair, as a cross-encoder reads them; of a second text at most `longest_text`.

    `names` are the fields of the first and the second texts. Raises `InvalidRequest`.
    """
    longest = _cut_at(fields, model)
    pairs = await _assembled(first, second, model, fields, longest, longest_text, names[1])
    for number, pair in enumerate(pairs):
        if longest is not None and len(pair.token_ids) > longest:
            raise ContextLengthExceeded(
                f"The {names[0]} and the special tokens around it take {len(pair.token_ids)} tokens of pair {number}, "
                f"and {longest} are allowed, so nothing of {names[1]} fits beside it. Please reduce the length of the "
                f"{names[0]}, which is never cut.",
                param=names[0],
            )
    return _checked(pairs, model, names[1])


def checked_dimensions(wanted: int | None, model: ServedModel) -> int | None:
    """How long vectors are to be, None for whole ones; raises `InvalidRequest` where they cannot be cut so."""
    size, possible = model.info.vector_size, model.info.vector_dimensions
    if wanted is None or wanted == size:
        return None
    if not possible:
        raise InvalidRequest(
            f"'dimensions' is {wanted}, but this model was not trained for shorter vectors than its {size} numbers: "
            "cut ones would mean little. Leave it out.",
            param="dimensions",
        )
    if wanted not in possible:
        known = f"1 to {size}" if isinstance(possible, range) else ", ".join(map(str, possible))
        raise InvalidRequest(
            f"'dimensions' is {wanted}; this model's vectors can have {known} numbers.", param="dimensions"
        )
    return wanted


async def _assembled(
    first: Sequence[str],
    second: Sequence[str] | None,
    model: ServedModel,
    fields: PooledFields,
    longest: int | None,
    longest_text: int | None,
    param: str,
) -> list[PooledText]:
    model.require_tokenizer(param)
    try:
        return await in_thread(
            sum(map(len, (*first, *(second or ())))) > LONG_TEXT,
            lambda: model.tokenizer.assemble(
                [model.beginning(text) for text in first],
                None if second is None else [model.beginning(text) for text in second],
                add_special_tokens=fields.add_special_tokens,
                longest=longest,
                longest_text=longest_text,
            ),
        )
    except InvalidText as error:
        raise InvalidRequest(str(error), param=param) from None


def _cut_at(fields: PooledFields, model: ServedModel) -> int | None:
    wanted, most = fields.truncate_prompt_tokens, model.info.max_model_len
    if wanted == 0 or (wanted is not None and wanted > most):
        raise InvalidRequest(
            f"'truncate_prompt_tokens' is {wanted}; this model takes 1 to {most} tokens. Use one of these, or -1 for "
            "the most.",
            param="truncate_prompt_tokens",
        )
    return most if wanted == -1 else wanted


def _checked(pooled: list[PooledText], model: ServedModel, param: str) -> list[PooledText]:
    most = model.info.max_model_len
    for number, text in enumerate(pooled):
        where = f" (number {number})" if len(pooled) > 1 else ""
        if not text.token_ids:
            raise InvalidRequest(f"'{param}' is empty{where}: it has no tokens. Send some text.", param=param)
        if len(text.token_ids) > most:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {most} tokens. However, your {param}{where} resulted in "
                f"{len(text.token_ids)} tokens or more. Please reduce the length of the {param}, or set "
                "'truncate_prompt_tokens' to -1 to read its beginning only.",
                param=param,
            )
    return pooled
