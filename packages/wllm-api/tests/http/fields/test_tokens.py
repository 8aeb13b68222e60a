"""Every field of /tokenize, /detokenize and /api/show changes the answer."""

import pytest
from field_probe import Case, Probe, has_all

from wllm_api.schemas.ollama import ShowRequest
from wllm_api.schemas.tokens import DetokenizeRequest, TokenizeRequest

USER = {"role": "user", "content": "Say hi."}
HALF = {"role": "assistant", "content": "We"}
LOOK = {"type": "function", "function": {"name": "look", "description": "Look at it"}}

TOKENIZE: list[Case] = [
    ("model", {"prompt": "a", "model": "no-such-model"}, lambda s: s.status == 404),
    ("prompt", {"prompt": "a"}, lambda s: s.body["count"] == 2),
    ("messages", {"messages": [USER]}, lambda s: s.body["count"] > 10),
    ("tools", {"messages": [USER], "tools": [LOOK]}, lambda s: s.body["count"] > 100),
    ("add_special_tokens", {"prompt": "a", "add_special_tokens": False}, lambda s: s.body["count"] == 1),
    ("add_generation_prompt", {"messages": [USER], "add_generation_prompt": False, "return_token_strs": True},
     lambda s: not "".join(s.body["token_strs"]).endswith("assistant\n")),
    ("continue_final_message", {"messages": [USER, HALF], "continue_final_message": True, "return_token_strs": True},
     lambda s: "".join(s.body["token_strs"]).endswith("\nWe")),
    ("chat_template_kwargs", {"messages": [USER], "chat_template_kwargs": {"mood": "glad"}, "return_token_strs": True},
     lambda s: " glad\n" in "".join(s.body["token_strs"])),
    ("return_token_strs", {"prompt": "a", "return_token_strs": True}, lambda s: s.body["token_strs"][-1] == "a"),
]  # fmt: skip
DETOKENIZE: list[Case] = [
    ("model", {"tokens": [70], "model": "no-such-model"}, lambda s: s.status == 404),
    ("tokens", {"tokens": [70]}, lambda s: s.body["prompt"]),
]
SHOW: list[Case] = [(name, {name: "scripted"}, lambda s: s.body["details"]) for name in ("model", "name")]
CASES = [
    *(("/tokenize", case) for case in TOKENIZE), *(("/detokenize", case) for case in DETOKENIZE),
    *(("/api/show", case) for case in SHOW),
]  # fmt: skip


@pytest.mark.parametrize(("path", "case"), CASES, ids=[f"{path} {case[0]}" for path, case in CASES])
def test_field(probe: Probe, path: str, case: Case) -> None:
    probe.check(path, case)


def test_every_field_has_a_case() -> None:
    # What is inside of messages and tools has its cases with chat.
    has_all(TOKENIZE, TokenizeRequest, (), inside=False)
    has_all(DETOKENIZE, DetokenizeRequest, ())
    has_all(SHOW, ShowRequest, ())
