"""Characters, stop strings and end tokens: a stream shows what the whole answer does, and never a part too many."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from cases.odd_model import END_WORD, VOCAB, build_tokenizer
from cases.requests import CHAT, COMPLETIONS, ask, reasons, stream, streamed_text, text_of, without_cache

HARD = "🫠龜👩‍👩‍👧 é"
SAY = [{"role": "user", "content": "Say it."}]
ALPHABET = {"prompt": "Here is the English alphabet: ABC", "temperature": 0, "max_tokens": 24}


@pytest.mark.parametrize("max_tokens", [120, 12])
def test_r01_characters_of_several_tokens_stay_whole(http: httpx.Client, max_tokens: int) -> None:
    """turboderp-org/exllamav3#171; the smaller limit cuts inside of a character; every limit: `test_streams.py`."""
    schema = {
        "type": "object", "properties": {"t": {"type": "string", "enum": [HARD]}}, "required": ["t"],
        "additionalProperties": False,
    }  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "e", "strict": True, "schema": schema}}
    body = {"messages": SAY, "temperature": 0, "max_tokens": max_tokens, "response_format": form}
    chunks = stream(http, CHAT, **body)
    text = streamed_text(chunks)
    assert "\ufffd" not in json.dumps(chunks, ensure_ascii=False)
    assert text_of(ask(http, CHAT, **body)) == text
    if max_tokens == 120:
        assert json.loads(text) == {"t": HARD} and reasons(chunks) == {0: "stop"}


def test_r02_no_part_of_a_stop_string_is_shown(http: httpx.Client) -> None:
    """vllm-project/vllm#3574. Other text does not wait: `test_stop_strings.py`, `test_streams.py`."""
    text = text_of(ask(http, COMPLETIONS, **ALPHABET))
    stop = text[5:14]
    assert len(text) > 20 and stop not in text[:13]
    for stops, before in (([stop], text[:5]), (stop, text[:5]), ([stop, stop[:4]], text[:5])):
        chunks = stream(http, COMPLETIONS, **ALPHABET, stop=stops)
        whole = ask(http, COMPLETIONS, **ALPHABET, stop=stops)
        assert streamed_text(chunks) == text_of(whole) == before
        assert reasons(chunks) == {0: whole["choices"][0]["finish_reason"]} == {0: "stop"}


def test_r03_the_models_end_token_ends_whatever_stop_says(http: httpx.Client) -> None:
    """ollama/ollama#3629"""
    body = {"messages": [{"role": "user", "content": "Say hi."}], "temperature": 0, "max_tokens": 100}
    answers = [ask(http, CHAT, **body, **fields)["choices"] for fields in ({}, {"stop": []}, {"stop": None})]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0]["finish_reason"] == "stop" and "<|" not in answers[0][0]["message"]["content"]


@pytest.mark.parametrize("forced", ["the he", " the 🫠 龜é  the end", "hell" * 3])
def test_r04_sentencepiece_streams_have_their_spaces(odd: httpx.Client, forced: str) -> None:
    """InfiniTensor/InfiniLM#398. That a step does not cost more the longer the answer is: `test_detokenizer.py`."""
    body = {
        "prompt": "Hello", "temperature": 0, "max_tokens": 60, "structured_outputs": {"choice": [forced]},
        "return_token_ids": True,
    }  # fmt: skip
    whole, chunks = ask(odd, COMPLETIONS, **body), stream(odd, COMPLETIONS, **body)
    prompt, ids = build_tokenizer().encode("Hello").ids, whole["choices"][0]["token_ids"]
    decode = build_tokenizer().decode
    assert streamed_text(chunks) == text_of(whole) == forced == decode([*prompt, *ids])[len(decode(prompt)) :]


@pytest.mark.parametrize("max_tokens", [20, 60])
def test_r04_what_the_model_likes_is_the_decode_of_all_its_ids(odd: httpx.Client, max_tokens: int) -> None:
    """InfiniTensor/InfiniLM#398: words only, since a run of broken bytes is shown in more than one way."""
    bytes_off = {str(VOCAB[f"<0x{byte:02X}>"]): -100 for byte in range(256)} | {str(END_WORD): -100}
    body = {
        "prompt": "Hello", "temperature": 1, "seed": 3, "max_tokens": max_tokens, "logit_bias": bytes_off,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    whole, text = ask(odd, COMPLETIONS, **body), streamed_text(stream(odd, COMPLETIONS, **body))
    ids = whole["choices"][0]["token_ids"]
    decode, prompt = build_tokenizer().decode, build_tokenizer().encode("Hello").ids
    assert len(ids) == max_tokens
    assert text == text_of(whole) == decode([*prompt, *ids])[len(decode(prompt)) :]


COLOURS = [{"role": "user", "content": "Name three colours. 🫠"}]


@pytest.mark.parametrize("fields", [{}, {"stop": ["\n"]}, {"n": 2}, {"max_tokens": 3}])
def test_r07_a_streams_usage_is_that_of_the_whole_answer(odd: httpx.Client, fields: dict[str, Any]) -> None:
    """vllm-project/vllm#8625"""
    body = {"messages": COLOURS, "temperature": 0, "max_tokens": 20, **fields}
    usage = without_cache(ask(odd, CHAT, **body)["usage"])
    *others, last = stream(odd, CHAT, **body, stream_options={"include_usage": True})
    assert last["choices"] == [] and without_cache(last["usage"]) == usage
    assert all(chunk["usage"] is None for chunk in others)
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk["usage"] for chunk in stream(odd, CHAT, **body, stream_options=options)]
    assert without_cache(counts[-1]) == usage
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert [count[name] for count in counts] == sorted(count[name] for count in counts)
