"""Every field of a plain completion request changes something that a client or the engine can see."""

from typing import Any

from field_cases import sampled
from field_probe import Case, Probe, each_of, has_all

from wllm_api.schemas.completions import CompletionRequest

PATH = "/v1/completions"


def plain(**fields: Any) -> dict[str, Any]:
    return {"temperature": 0, "prompt": "Hello", "max_tokens": 30, **fields}


CASES: list[Case] = [
    ("model", plain(model="org/other-name"), lambda s: s.body["model"] == "org/other-name"),
    ("prompt", plain(), lambda s: s.prompt.endswith("Hello")),
    ("suffix", plain(suffix=" there"),
     lambda s: s.prompt.endswith("<fim_prefix>Hello<fim_suffix> there<fim_middle>")),
    ("max_tokens", plain(max_tokens=3), lambda s: s.body["usage"]["completion_tokens"] == 3),
    ("logprobs", plain(logprobs=3), lambda s: len(s.choice["logprobs"]["top_logprobs"][0]) == 3),
    ("echo", plain(echo=True), lambda s: s.text.startswith("Hello I have")),
    ("add_special_tokens", plain(add_special_tokens=False), lambda s: s.prompt == "Hello"),
    ("best_of", plain(best_of=3), lambda s: s.params.n == 3 and len(s.body["choices"]) == 1),
    ("prompt_logprobs", plain(prompt_logprobs=1), lambda s: len(s.choice["prompt_logprobs"]) == len(s.ids)),
    ("return_token_ids", plain(return_token_ids=True), lambda s: s.choice["prompt_token_ids"] == s.ids),
    ("return_tokens_as_token_ids", plain(return_tokens_as_token_ids=True, logprobs=0),
     lambda s: s.choice["logprobs"]["tokens"][0].startswith("token_id:")),
    *sampled(plain, CompletionRequest),
]  # fmt: skip
# No chunk is padded.
WITHOUT_EFFECT = {"stream_options.include_obfuscation"}


@each_of(CASES)
def test_field(probe: Probe, case: Case) -> None:
    probe.check(PATH, case)


def test_every_field_has_a_case() -> None:
    has_all(CASES, CompletionRequest, WITHOUT_EFFECT)
