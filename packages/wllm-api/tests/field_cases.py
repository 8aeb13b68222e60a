"""Cases of the fields that several kinds of request have: what the engine is asked for, how an answer is sent."""

from collections.abc import Callable
from typing import Any

from field_probe import Case

from wllm_api.schemas.base import Body

FORM = {"type": "object", "properties": {"a": {"const": 1}}}

# Each without the rest of its request. A plain completion begins with " I have read", a chat with "I have read".
_SAMPLED: list[Case] = [
    ("n", {"n": 3}, lambda s: len(s.body["choices"]) == 3),
    ("temperature", {"temperature": 0.25}, lambda s: s.params.temperature == 0.25),
    ("top_p", {"top_p": 0.5}, lambda s: s.params.top_p == 0.5),
    ("top_k", {"top_k": 7}, lambda s: s.params.top_k == 7),
    ("min_p", {"min_p": 0.125}, lambda s: s.params.min_p == 0.125),
    ("repetition_penalty", {"repetition_penalty": 1.5}, lambda s: s.params.repetition_penalty == 1.5),
    ("presence_penalty", {"presence_penalty": -1}, lambda s: s.params.presence_penalty == -1),
    ("frequency_penalty", {"frequency_penalty": 2}, lambda s: s.params.frequency_penalty == 2),
    ("seed", {"seed": -5}, lambda s: s.params.seed == -5),
    ("stop", {"stop": [" read"]}, lambda s: "read" not in s.text and s.text.endswith("I have")),
    ("logit_bias", {"logit_bias": {"65": 100}, "max_tokens": 2, "return_token_ids": True},
     lambda s: s.choice["token_ids"] == [65, 65]),
    ("stream", {"stream": True}, lambda s: s.streams),
    ("stream_options", {"stream": True, "stream_options": {"include_usage": True}}, lambda s: s.lines[-1].get("usage")),
    ("stream_options.include_usage", {"stream": True, "stream_options": {"include_usage": True}},
     lambda s: s.lines[-1].get("usage")),
    ("stream_options.continuous_usage_stats", {"stream": True, "stream_options": {"continuous_usage_stats": True}},
     lambda s: all(chunk.get("usage") for chunk in s.lines)),
    ("response_format", {"response_format": {"type": "json_object"}}, lambda s: s.params.grammar.bounds_numbers),
    ("structured_outputs", {"structured_outputs": {"regex": "yes|no"}}, lambda s: "yes|no" in s.params.grammar.text),
    ("guided_json", {"guided_json": FORM}, lambda s: s.params.grammar.bounds_numbers),
    ("guided_regex", {"guided_regex": "yes|no"}, lambda s: "yes|no" in s.params.grammar.text),
    ("guided_choice", {"guided_choice": ["yes", "no"]}, lambda s: "yes" in s.params.grammar.text),
    ("guided_grammar", {"guided_grammar": 'start: "yes"'}, lambda s: "yes" in s.params.grammar.text),
    ("min_tokens", {"min_tokens": 40, "max_tokens": 45}, lambda s: s.params.min_tokens == 40),
    ("ignore_eos", {"ignore_eos": True, "max_tokens": 80}, lambda s: s.body["usage"]["completion_tokens"] == 80),
    ("stop_token_ids", {"stop_token_ids": [65], "logit_bias": {"65": 100}, "max_tokens": 5},
     lambda s: s.body["usage"]["completion_tokens"] == 1),
    ("include_stop_str_in_output", {"stop": [" read"], "include_stop_str_in_output": True},
     lambda s: s.text.endswith("I have read")),
    ("skip_special_tokens", {"skip_special_tokens": False, "logit_bias": {"1": 100}, "max_tokens": 2},
     lambda s: s.text == "<|im_start|>" * 2),
    ("bad_words", {"bad_words": ["the"]}, lambda s: s.params.bad_words_token_ids),
    ("allowed_token_ids", {"allowed_token_ids": [65], "max_tokens": 2, "return_token_ids": True},
     lambda s: s.choice["token_ids"] == [65, 65]),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 2}, lambda s: len(s.ids) == 2),
    ("priority", {"priority": -3}, lambda s: s.params.priority == -3),
    ("cache_salt", {"cache_salt": "mine"}, lambda s: s.params.cache_salt == "mine"),
    ("request_id", {"request_id": "mine-1"}, lambda s: s.body["id"].partition("-")[2] == "mine-1"),
    ("timings_per_token", {"timings_per_token": True}, lambda s: s.body["timings"]["predicted_n"] > 0),
]  # fmt: skip


def sampled(build: Callable[..., dict[str, Any]], schema: type[Body]) -> list[Case]:
    """Those of the fields that the schema has, in requests that `build` makes of the fields."""
    known = schema.model_fields
    return [(field, build(**fields), check) for field, fields, check in _SAMPLED if field.partition(".")[0] in known]
