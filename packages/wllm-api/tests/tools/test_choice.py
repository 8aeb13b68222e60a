"""Which parser a chat template leads to, and which special tokens reach it."""

import pytest

from wllm_api.engine import EngineProcess
from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.hosting import HostedModel
from wllm_api.http_errors import UnknownParser
from wllm_api.settings import Parsers
from wllm_api.text import Detokenizer, Tokenizer
from wllm_api.tools import REASONING_PARSERS, TOOL_PARSERS, AnswerFormat, answer_format

TEMPLATES = {
    "hermes": "<tool_call>\n{{ call | tojson }}\n</tool_call>",
    "qwen3_coder": "<tool_call>\n<function={{ name }}>\n<parameter={{ key }}>\n</tool_call>",
    "glm": "<tool_call>{{ name }}\n<arg_key>{{ key }}</arg_key></tool_call>",
    "llama3": '<|start_header_id|>{% if tools %}{"name": function name, "parameters": dictionary}',
    "mistral": "[AVAILABLE_TOOLS][TOOL_CALLS]",
    "granite": "<|start_of_role|>tools<|tool_call|>",
    "phi4": "<|tool|>{{ tools }}<|/tool|>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
    "gemma4": "<|tool_call>call:{{ name }}<tool_call|>",
    "functiongemma": "<start_function_call>call:{{ name }}",
    "harmony": "<|start|>assistant<|channel|>final<|message|>",
}


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items())
def test_template_leads_to_parser(name: str, template: str) -> None:
    assert answer_format(template).tools == name


def test_every_parser_is_found() -> None:
    assert set(TEMPLATES) == set(TOOL_PARSERS) - {"auto", "none"}


@pytest.mark.parametrize("template", [None, "", "<|im_start|>{{ tools }}"])
def test_nothing_is_guessed(template: str | None) -> None:
    assert answer_format(template) == AnswerFormat(None, None)


def test_a_model_whose_template_shows_no_tools_is_told_in_words() -> None:
    assert answer_format("{{ messages }}") == AnswerFormat("hermes", None)
    assert answer_format("{{ messages }}", tools="none") == AnswerFormat(None, None)


def test_reasoning_is_found() -> None:
    assert answer_format("{{ content.split('</think>') }}").reasoning == "think"
    assert answer_format("[THINK][/THINK]").reasoning == "mistral"
    assert answer_format(TEMPLATES["harmony"]).reasoning == "harmony"
    assert set(REASONING_PARSERS) == {"auto", "none", "harmony", "think", "gemma4", "mistral", "seed"}


def test_names_override_the_template() -> None:
    assert answer_format(TEMPLATES["glm"], tools="hermes", reasoning="think") == AnswerFormat("hermes", "think")
    assert answer_format(TEMPLATES["harmony"], tools="none", reasoning="none") == AnswerFormat(None, None)


def test_only_mistral_needs_short_ids() -> None:
    assert [name for name in TEMPLATES if answer_format(TEMPLATES[name]).short_ids] == ["mistral"]


def test_marks_that_are_special_tokens_are_kept() -> None:
    tokenizer = Tokenizer.from_json(build_tokenizer().to_str())
    kept = tokenizer.special_ids(["<|im_start|>", "<tool_call>", "Hello"])
    assert kept == {"<|im_start|>": 1}
    ids = tokenizer.encode("<|im_start|>it<|im_end|>", add_special_tokens=False)
    shown = Detokenizer(tokenizer, kept=frozenset(kept.values()))
    assert "".join(shown.push(token_id) for token_id in ids) == "<|im_start|>it"


@pytest.mark.parametrize("parsers", [Parsers(tools="homes"), Parsers(reasoning="auto,none")])
def test_unknown_parser_ends_the_start(parsers: Parsers) -> None:
    with pytest.raises(UnknownParser, match="Use one of: auto, none, harmony"):
        HostedModel(EngineProcess("never:started", {}), ["m"], parsers=parsers)
