"""Token counts."""

from __future__ import annotations

from wllm_api.generation import Generation


def usage(generation: Generation) -> dict[str, object]:
    """OpenAI's usage object, as of now."""
    prompt, completion = generation.num_prompt_tokens, generation.num_completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": generation.num_cached_tokens},
    }
