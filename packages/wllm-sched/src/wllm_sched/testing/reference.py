"""The serial reference: what one sample of a request must get, computed alone, without blocks, batches or a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wllm_sched.errors import GrammarFailed
from wllm_sched.messages import FinishReason
from wllm_sched.plan import TokenLogprobs
from wllm_sched.request import sample_seed
from wllm_sched.sampling import SamplingParams
from wllm_sched.testing.grammar import FakeMatcher
from wllm_sched.testing.model import FakeModel


@dataclass(frozen=True, slots=True)
class Expected:
    """The whole answer of one sample; `prompt_logprobs` only if sample 0 was asked for them."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None
    stop_token_id: int | None = None


def expected_sample(
    model: FakeModel, prompt: Sequence[int], params: SamplingParams, index: int, max_num_tokens: int
) -> Expected:
    """The answer of sample `index`, where prompt and answer together hold at most `max_num_tokens` tokens."""
    state = model.root(len(prompt), params)
    scores: list[TokenLogprobs | None] = []
    for position, token_id in enumerate(prompt):
        scored = position > 0 and params.prompt_logprobs is not None
        scores.append(model.logprob(state, token_id, params.prompt_logprobs or 0) if scored else None)
        state = model.extend(state, token_id)
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    reason: FinishReason | None = "length" if params.max_tokens == 0 else None
    stops = {*(params.stop_token_ids or ())}
    if not params.ignore_eos and model.eos_token_id is not None:
        stops.add(model.eos_token_id)
    matcher = None
    if params.grammar is not None and reason is None:
        if params.grammar.text == "bad":
            return Expected((), (), "error", None)
        matcher = FakeMatcher(params.grammar, vocab_size=model.vocab_size, eos_token_id=model.eos_token_id)
    while reason is None:
        if model.fails(state):
            reason = "error"
            break
        token = model.draw(
            state, sample_seed(params.seed, index), params.temperature, None if matcher is None else matcher.allowed
        )
        if params.logprobs is not None:
            logprobs.append(model.logprob(state, token, params.logprobs))
        tokens.append(token)
        state = model.extend(state, token)
        if token in stops and len(tokens) >= params.min_tokens:
            reason = "stop"
        elif matcher is not None and _is_broken(matcher, token):
            reason = "error"
            del tokens[-1], logprobs[len(tokens) :]
        elif matcher is not None and matcher.is_finished:
            reason = "stop"
        elif len(tokens) == params.max_tokens or len(prompt) + len(tokens) == max_num_tokens:
            reason = "length"
    wants_scores = index == 0 and params.prompt_logprobs is not None and (tokens or reason == "length")
    stop_token_id = tokens[-1] if reason == "stop" and tokens[-1] in {*stops, model.eos_token_id} else None
    return Expected(tuple(tokens), tuple(logprobs), reason, tuple(scores) if wants_scores else None, stop_token_id)


def _is_broken(matcher: FakeMatcher, token: int) -> bool:
    try:
        matcher.accept(token)
    except GrammarFailed:
        return True
    return False
