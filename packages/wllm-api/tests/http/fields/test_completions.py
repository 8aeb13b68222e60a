"""Every field of a plain completion request changes something that a client or the engine can see."""

from collections.abc import Callable
from typing import Any

import pytest

from wllm_api.schemas.completions import CompletionRequest

PATH = "/v1/completions"
FORM = {"type": "object", "properties": {"a": {"const": 1}}}


def plain(**fields: Any) -> dict[str, Any]:
    return {"temperature": 0, "prompt": "Hello", "max_tokens": 30, **fields}


# What each case's check sees, see the folder's conftest.
Seen = Any
CASES: list[tuple[str, dict[str, Any], Callable[[Seen], object]]] = [
    ("model", plain(model="org/other-name"), lambda s: s.body["model"] == "org/other-name"),
    ("prompt", plain(), lambda s: s.prompt.endswith("Hello")),
    ("suffix", plain(suffix=" there"),
     lambda s: s.prompt.endswith("<fim_prefix>Hello<fim_suffix> there<fim_middle>")),
    ("max_tokens", plain(max_tokens=3), lambda s: s.body["usage"]["completion_tokens"] == 3),
    ("logprobs", plain(logprobs=3), lambda s: len(s.choice["logprobs"]["top_logprobs"][0]) == 3),
    ("echo", plain(echo=True), lambda s: s.text.startswith("Hello I have")),
    ("add_special_tokens", plain(add_special_tokens=False), lambda s: s.prompt == "Hello"),
    ("best_of", plain(best_of=3), lambda s: s.params.n == 3 and len(s.body["choices"]) == 1),
    ("n", plain(n=3), lambda s: len(s.body["choices"]) == 3),
    ("temperature", plain(temperature=0.25), lambda s: s.params.temperature == 0.25),
    ("top_p", plain(top_p=0.5), lambda s: s.params.top_p == 0.5),
    ("top_k", plain(top_k=7), lambda s: s.params.top_k == 7),
    ("min_p", plain(min_p=0.125), lambda s: s.params.min_p == 0.125),
    ("repetition_penalty", plain(repetition_penalty=1.5), lambda s: s.params.repetition_penalty == 1.5),
    ("presence_penalty", plain(presence_penalty=-1), lambda s: s.params.presence_penalty == -1),
    ("frequency_penalty", plain(frequency_penalty=2), lambda s: s.params.frequency_penalty == 2),
    ("seed", plain(seed=-5), lambda s: s.params.seed == -5),
    ("stop", plain(stop=" read"), lambda s: s.text == " I have"),
    ("logit_bias", plain(logit_bias={"65": 100}, max_tokens=2, return_token_ids=True),
     lambda s: s.choice["token_ids"] == [65, 65]),
    ("stream", plain(stream=True), lambda s: s.streams),
    ("stream_options", plain(stream=True, stream_options={"include_usage": True}),
     lambda s: s.lines[-1].get("usage")),
    ("stream_options.include_usage", plain(stream=True, stream_options={"include_usage": True}),
     lambda s: s.lines[-1].get("usage")),
    ("stream_options.continuous_usage_stats", plain(stream=True, stream_options={"continuous_usage_stats": True}),
     lambda s: all(chunk.get("usage") for chunk in s.lines)),
    ("response_format", plain(response_format={"type": "json_object"}), lambda s: s.params.grammar.bounds_numbers),
    ("structured_outputs", plain(structured_outputs={"regex": "yes|no"}), lambda s: "yes|no" in s.params.grammar.text),
    ("guided_json", plain(guided_json=FORM), lambda s: s.params.grammar.bounds_numbers),
    ("guided_regex", plain(guided_regex="yes|no"), lambda s: "yes|no" in s.params.grammar.text),
    ("guided_choice", plain(guided_choice=["yes", "no"]), lambda s: "yes" in s.params.grammar.text),
    ("guided_grammar", plain(guided_grammar='start: "yes"'), lambda s: "yes" in s.params.grammar.text),
    ("min_tokens", plain(min_tokens=20), lambda s: s.params.min_tokens == 20),
    ("ignore_eos", plain(ignore_eos=True, max_tokens=80), lambda s: s.body["usage"]["completion_tokens"] == 80),
    ("stop_token_ids", plain(stop_token_ids=[65], logit_bias={"65": 100}),
     lambda s: s.body["usage"]["completion_tokens"] == 1),
    ("include_stop_str_in_output", plain(stop=[" read"], include_stop_str_in_output=True),
     lambda s: s.text == " I have read"),
    ("skip_special_tokens", plain(skip_special_tokens=False, logit_bias={"1": 100}, max_tokens=2),
     lambda s: s.text == "<|im_start|>" * 2),
    ("bad_words", plain(bad_words=["the"]), lambda s: s.params.bad_words_token_ids),
    ("allowed_token_ids", plain(allowed_token_ids=[65], max_tokens=2, return_token_ids=True),
     lambda s: s.choice["token_ids"] == [65, 65]),
    ("prompt_logprobs", plain(prompt_logprobs=1), lambda s: len(s.choice["prompt_logprobs"]) == len(s.ids)),
    ("truncate_prompt_tokens", plain(truncate_prompt_tokens=2), lambda s: len(s.ids) == 2),
    ("priority", plain(priority=-3), lambda s: s.params.priority == -3),
    ("cache_salt", plain(cache_salt="mine"), lambda s: s.params.cache_salt == "mine"),
    ("request_id", plain(request_id="mine-1"), lambda s: s.body["id"] == "cmpl-mine-1"),
    ("timings_per_token", plain(timings_per_token=True), lambda s: s.body["timings"]["predicted_n"] > 0),
    ("return_token_ids", plain(return_token_ids=True), lambda s: s.choice["prompt_token_ids"] == s.ids),
    ("return_tokens_as_token_ids", plain(return_tokens_as_token_ids=True, logprobs=0),
     lambda s: s.choice["logprobs"]["tokens"][0].startswith("token_id:")),
]  # fmt: skip
# No chunk is padded.
WITHOUT_EFFECT = {"stream_options.include_obfuscation"}


@pytest.mark.parametrize("case", CASES, ids=[field for field, _, _ in CASES])
def test_field(probe: Any, case: Any) -> None:
    probe.check(PATH, case)


def test_every_field_has_a_case(complete: Callable[..., None]) -> None:
    complete(CASES, CompletionRequest, WITHOUT_EFFECT)
