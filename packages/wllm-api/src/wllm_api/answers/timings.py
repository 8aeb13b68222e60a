"""How long an answer took, in the shape of llama.cpp's `timings`, which several clients show."""

from __future__ import annotations

from wllm_api.generation import Generation


def timings(generation: Generation) -> dict[str, object]:
    """Figures as of now: ms, tokens, and tokens a second; those of the prompt are null before the first token.

    Of several answers the prompt's times are those of the first, and all count as one that ends with the last.
    `queue_ms` and `first_token_ms` are our own.
    """
    times = generation.times
    # Tokens that come together have no time between them, so the clock runs from the end of the prompt.
    begun = [one.start + one.queue_s + (one.prefill_s or 0) for one in times if one.queue_s is not None]
    predicted = generation.num_completion_tokens
    prompt = generation.num_prompt_tokens - generation.num_cached_tokens
    prompt_s = times[0].prefill_s
    predicted_s = max(one.last for one in times) - min(begun) if begun else None
    return {
        "cache_n": generation.num_cached_tokens,
        **_rates("prompt", prompt, prompt_s),
        **_rates("predicted", predicted, predicted_s),
        "queue_ms": _ms(times[0].queue_s),
        "first_token_ms": _ms(times[0].first_token_s),
    }


def _rates(name: str, count: int, seconds: float | None) -> dict[str, object]:
    return {
        f"{name}_n": count,
        f"{name}_ms": _ms(seconds),
        f"{name}_per_token_ms": _ms(seconds / count) if seconds is not None and count else None,
        f"{name}_per_second": round(count / seconds, 3) if seconds else None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
