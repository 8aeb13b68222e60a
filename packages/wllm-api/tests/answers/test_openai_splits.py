"""However the engine's events are cut and mixed, a stream of chat or plain completions is the whole answer."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from wllm_api.answers.chat import ChatAnswer
from wllm_api.answers.completions import CompletionAnswer, EchoedPrompt
from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.answers.message import MessageText
from wllm_api.generation import Generation, Job
from wllm_api.params import sampling_params
from wllm_api.schemas.chat import ChatRequest
from wllm_api.schemas.completions import CompletionRequest
from wllm_api.tools import answer_format

ROUNDS = [100, pytest.param(2_000, marks=pytest.mark.full)]
TOOLS: dict[str, dict[str, object]] = {"look": {}, "now": {}}
CALL = '{"name": "look", "arguments": {"at": ["it", {"é": "\\"}</tool_call>"}], "n": 1.5}}'
OPEN_CALL = '{"name": "now", "arguments": {"at": '
# Of each family: how it marks a call.
FAMILIES = {
    "hermes": ("<tool_call>{}</tool_call>", "think"),
    "mistral": ("[TOOL_CALLS][{}]", "mistral"),
    "phi4": ("<|tool_call|>[{}]<|/tool_call|>", "none"),
    "llama3": ("<|python_tag|>{}", "none"),
    "harmony": ("<|channel|>commentary to=functions.look<|message|>{}<|call|>", "harmony"),
    "none": ("{}", "think"),
}


def joined(chunks: Iterable[dict[str, Any]]) -> tuple[dict[int, dict[str, Any]], Any]:
    """The choices of a stream put together, and its usage; a choice has one finish reason, in its last chunk."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        if not chunk["choices"]:
            return choices, chunk["usage"]
        for new in chunk["choices"]:
            one = choices.setdefault(new["index"], {"finish_reason": None})
            assert one["finish_reason"] is None, "nothing comes after the end of a choice"
            for name, value in new.items():
                one[name] = value if name == "index" else together(one.get(name), value)
    return choices, None


def together(old: Any, new: Any) -> Any:
    """What clients make of two pieces of one field."""
    if old is None or new is None:
        return new if old is None else old
    if isinstance(new, dict):
        return {**old, **{name: one if name == "role" else together(old.get(name), one) for name, one in new.items()}}
    if isinstance(new, list) and new and isinstance(new[0], dict) and "index" in new[0]:
        calls = {call["index"]: call for call in old}
        for call in new:
            calls[call["index"]] = together({**calls.get(call["index"], {}), "index": None}, call)
        return list(calls.values())
    return old + new


def wanted_usage(bench: Any) -> dict[str, Any]:
    style = bench.rng.choice([{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}])
    return {"stream": True, "stream_options": style}


def params_for(bench: Any, body: Any, ids: list[int], logprobs: int | None, scored: int | None) -> Job:
    scores_only = not body.min_tokens and isinstance(body, CompletionRequest)
    limit = bench.rng.choice([0, 3, 10, 99] if scores_only else [3, 10, 99])
    params = sampling_params(
        body, bench.model, max_tokens=limit, logprobs=logprobs, prompt_logprobs=scored, cache_salt=""
    )
    return Job(ids, params)


def some_stops(bench: Any, answers: list[list[int]], *, most: float) -> dict[str, Any]:
    if bench.rng.random() > most:
        return {}
    stops = bench.stops_in(bench.model.tokenizer.decode(bench.rng.choice(answers)))
    return {"stop": stops, "include_stop_str_in_output": bench.rng.random() < 0.5} if stops else {}


def completion(bench: Any, answers: list[list[int]], n: int) -> tuple[CompletionRequest, Any]:
    rng = bench.rng
    prompts = [[7] * rng.randint(1, 3), [8, 9]][: len(answers) // n]
    fields = {
        "n": n,
        "logprobs": rng.choice([None, 0, 2]),
        "echo": rng.random() < 0.5,
        "return_token_ids": rng.random() < 0.5,
        "min_tokens": rng.choice([0, 0, 3]),
        "skip_special_tokens": rng.random() < 0.5,
        **some_stops(bench, answers, most=0.6),
    }
    body = CompletionRequest.model_validate({"prompt": prompts, **fields, **wanted_usage(bench)})
    jobs = [params_for(bench, body, ids, body.logprobs, body.logprobs if body.echo else None) for ids in prompts]

    def answer() -> CompletionAnswer:
        return CompletionAnswer(
            body,
            Generation(bench.serving, bench.model, jobs),
            answer_id="1",
            model_name="m",
            prompts=prompts,
            logprobs=LogprobsFormat(bench.model.tokenizer, as_ids=False),
            echoes=[EchoedPrompt.of(ids, None, bench.model.tokenizer) for ids in prompts] if body.echo else [],
        )

    return body, answer


@pytest.mark.parametrize("rounds", ROUNDS)
def test_completions(bench: Any, chunks: Any, rounds: int) -> None:
    reasons = set()
    for _ in range(rounds):
        n = bench.rng.randint(1, 3)
        answers = [bench.text_ids() for _ in range(n * bench.rng.randint(1, 2))]
        body, answer = completion(bench, answers, n)
        bench.engine.replay(answers, cut=False)
        whole = asyncio.run(answer().whole())
        bench.engine.replay(answers, cut=True)
        choices, usage = joined(chunks(answer()))
        assert [choices[number] for number in range(len(answers))] == whole["choices"]
        assert usage == whole["usage"]
        assert usage["prompt_tokens"] == sum(map(len, body.prompts))
        if body.return_token_ids:
            assert usage["completion_tokens"] == sum(len(choice["token_ids"] or ()) for choice in whole["choices"])
        for choice in whole["choices"]:
            reasons.add(choice["finish_reason"])
            check_offsets(choice, exact=not body.stop)
    assert reasons == {"stop", "length"}


def check_offsets(choice: dict[str, Any], *, exact: bool) -> None:
    """Each token that is whole characters lies where its offset says; a stop string may have cut the text."""
    rows = choice["logprobs"]
    if rows is None:
        return
    assert {len(rows[name]) for name in rows} == {len(rows["tokens"])}
    assert rows["text_offset"] == sorted(rows["text_offset"])
    for token, offset in zip(rows["tokens"], rows["text_offset"], strict=True):
        shown = choice["text"][offset : offset + len(token)]
        if not token.startswith(("bytes:", "<|")) and "\ufffd" not in choice["text"]:
            assert token == shown or (not exact and token.startswith(shown))


def chat_text(bench: Any, tools: str) -> str:
    """What a model of the family may write: thoughts, texts, calls, in any order, and the last one cut off."""
    form, _ = FAMILIES[tools]
    pieces = [
        "<think>Hm, é🫠. ", "</think>", "[THINK]So?[/THINK]", "Some text.\n ", " ", "<tool_call>", form.format(CALL),
        form.format(OPEN_CALL), form.format("nothing"), "<|channel|>analysis<|message|>Why?<|end|>",
        "<|start|>assistant<|channel|>final<|message|>", "🫠",
    ]  # fmt: skip
    text = "".join(bench.rng.choices(pieces, k=bench.rng.randint(1, 6)))
    return text[: bench.rng.randint(1, len(text))] if bench.rng.random() < 0.3 else text


def chat(bench: Any, answers: list[list[int]], tools: str) -> Any:
    rng = bench.rng
    fields = {
        "n": len(answers),
        **rng.choice([{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}]),
        "return_token_ids": rng.random() < 0.5,
        "include_reasoning": rng.random() < 0.8,
        **rng.choice([{"functions": [{"name": "look"}]}, {}, {}]),
        **some_stops(bench, answers, most=0.3),
    }
    messages = [{"role": "user", "content": "Hi"}]
    body = ChatRequest.model_validate({"messages": messages, **fields, **wanted_usage(bench)})
    job = params_for(bench, body, [7, 8], (body.top_logprobs or 0) if body.logprobs else None, None)
    parser = answer_format(None, tools=tools, reasoning=FAMILIES[tools][1]).parser("", tools=TOOLS, special=frozenset())
    calls = 1 if body.functions else rng.choice([1, None])
    echo = rng.choice(["", "As I said"])

    def answer() -> ChatAnswer:
        return ChatAnswer(
            body,
            Generation(bench.serving, bench.model, [job]),
            answer_id="1",
            model_name="m",
            prompt_token_ids=job.token_ids,
            logprobs=LogprobsFormat(bench.model.tokenizer, as_ids=False),
            echo=echo,
            new_message=lambda: MessageText(
                parser(), show_reasoning=body.include_reasoning, max_calls=calls, short_ids=False, named=False
            ),
        )

    return answer


def message_of(choice: dict[str, Any]) -> dict[str, Any]:
    """A streamed choice as the whole one would be, without the ids of calls."""
    message = {"refusal": None, **choice.pop("delta")}
    if "tool_calls" in message or "function_call" in message:
        message["content"] = message["content"] or None
    return {**choice, "message": message}


def comparable(choice: dict[str, Any]) -> dict[str, Any]:
    for call in choice["message"].get("tool_calls", []):
        assert call.pop("id")
        assert call.pop("type") == "function"
        call.pop("index", None)
    return {name: value for name, value in choice.items() if name != "prompt_token_ids"}


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("tools", FAMILIES)
def test_chat(bench: Any, chunks: Any, tools: str, rounds: int) -> None:
    seen: set[str] = set()
    for _ in range(rounds):
        texts = [chat_text(bench, tools) for _ in range(bench.rng.randint(1, 2))]
        answers = [[*bench.model.tokenizer.encode(text), 2] for text in texts]
        answer = chat(bench, answers, tools)
        bench.engine.replay(answers, cut=False)
        whole = asyncio.run(answer().whole())
        bench.engine.replay(answers, cut=True)
        choices, usage = joined(chunks(answer()))
        streamed = [comparable(message_of(choices[number])) for number in range(len(answers))]
        expected = [comparable(choice) for choice in whole["choices"]]
        assert streamed == expected
        assert usage == whole["usage"]
        seen |= {name for choice in expected for name, value in choice["message"].items() if value}
        seen |= {choice["finish_reason"] for choice in expected}
    found = {"content", "stop", "length"} | ({"tool_calls", "function_call"} if tools != "none" else set())
    assert seen >= found | ({"reasoning"} if FAMILIES[tools][1] != "none" else set())
