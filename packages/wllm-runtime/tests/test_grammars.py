"""Grammars of llguidance as the engine follows them, over a small tokenizer and through the sampler."""

from __future__ import annotations

import gc
import json
import time
import weakref
from pathlib import Path

import numpy
import pytest
import tokenizers
import torch
from llguidance import LLMatcher, LLTokenizer

from wllm_runtime import EngineConfig
from wllm_runtime import grammars as module
from wllm_runtime.buffers import SlotTables
from wllm_runtime.engine import ModelEngine, create_engine
from wllm_runtime.grammars import Grammars, TokenMatcher
from wllm_runtime.number_limit import MAX_CHARACTERS, NumberLimit
from wllm_runtime.sampler import Sampler
from wllm_runtime.testing import generate, save_tiny_llama
from wllm_sched import Abort, Grammar, GrammarFailed, Matcher, Opening, RequestRefused, SamplingParams, Submit
from wllm_sched.plan import NewSlot, TokenMask

EOS = 95


def tokenizer_json() -> str:
    """One token for each printable ASCII character, in order, and the end token."""
    vocab = {chr(0x20 + token_id): token_id for token_id in range(95)}
    vocab[chr(0x120)] = vocab.pop(" ")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.add_special_tokens(["<end>"])
    assert inner.token_to_id("<end>") == EOS
    return str(inner.to_str())


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(tokenizer_json(), 100, [EOS])


def allowed(matcher: Matcher) -> set[int]:
    bits = int.from_bytes(matcher.mask, "little")
    return {token_id for token_id in range(128) if bits >> token_id & 1}


def feed(matcher: Matcher, text: str) -> None:
    for char in text:
        assert ord(char) - 0x20 in allowed(matcher), f"{char!r} in {text!r}"
        matcher.accept(ord(char) - 0x20)


def of_schema(schema: object) -> Grammar:
    return Grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)), bounds_numbers=True)


def ids(text: str) -> set[int]:
    return {ord(char) - 0x20 for char in text}


def served(folder: Path) -> ModelEngine:
    """A random model with that tokenizer."""
    save_tiny_llama(folder, vocab_size=100, eos_token_id=EOS)
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    return create_engine(EngineConfig(model=str(folder), device="cpu"))


def test_masks_follow_the_answer(grammars: Grammars) -> None:
    matcher = grammars.compile(Grammar("start: /a[bc]?/")).result()
    assert len(matcher.mask) == 16 and allowed(matcher) == ids("a")
    matcher.accept(ord("a") - 0x20)
    assert allowed(matcher) == ids("bc") | {EOS} and not matcher.is_finished
    other = matcher.copy()
    matcher.accept(EOS)
    assert matcher.is_finished
    other.accept(ord("b") - 0x20)
    assert other.is_finished


def test_answers_to_one_grammar_do_not_share_a_place(grammars: Grammars) -> None:
    grammar = Grammar("start: /ab+c/")
    first, second = (grammars.compile(grammar).result() for _ in range(2))
    feed(first, "ab")
    assert allowed(second) == ids("a")


def test_what_was_not_allowed_fails(grammars: Grammars) -> None:
    matcher = grammars.compile(Grammar("start: /ab/")).result()
    with pytest.raises(GrammarFailed, match="token 57"):
        matcher.accept(57)


def test_bad_grammars_fail(grammars: Grammars) -> None:
    for text in ("start: nope", "{"):
        with pytest.raises(GrammarFailed, match="cannot be compiled"):
            grammars.compile(Grammar(text)).result()


def ambiguous(number: int) -> str:
    """Rules that all begin with each other: what one more letter may mean grows with the cube of their number."""
    rules = [f"b{n}: a | b{(7 * n + 1) % number} a | LETTER" for n in range(number)]
    calls = " | ".join(f"a b{n}" for n in range(number))
    return "\n".join(['start: "x" a', f"a: {calls} | LETTER", *rules, "LETTER: /[a-z]/"])


@pytest.mark.parametrize("number", [40, 120, 160])
def test_a_grammar_of_any_shape_holds_up_nobody(grammars: Grammars, number: int) -> None:
    matcher = grammars.compile(Grammar(ambiguous(number), is_free=True)).result()
    start = time.thread_time()
    with pytest.raises(GrammarFailed, match="too hard to follow"):
        for char in "x" + "a" * 30:
            matcher.accept(ord(char) - 0x20)
    assert time.thread_time() - start < 1  # without limits seconds for 40, a minute for 160


def test_an_answer_whose_tokens_take_long_ends(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 0.2, 1.0, 1.02, 2.0, 2.06, 3.0, 3.08])
    monkeypatch.setattr(module.time, "thread_time", lambda: next(now))
    matcher = grammars.compile(Grammar("start: /a+/")).result()
    feed(matcher, "aaa")  # 200, 20 and 60 ms: 220 too many
    twin = matcher.copy()
    with pytest.raises(GrammarFailed, match=r"last token took 80 ms, .* 250 ms more than 20 a token"):
        feed(twin, "a")


def test_a_tokenizer_that_cannot_be_used_fails_the_request() -> None:
    with pytest.raises(GrammarFailed, match="this model's tokenizer"):
        Grammars("{}", 100, [EOS]).compile(Grammar("start: /a/")).result()


def test_a_served_engine_has_loaded_its_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = served(tmp_path)
    engine.load_grammars()
    monkeypatch.delattr(module, "LLTokenizer")
    (*_, last) = generate(engine, [1, 2], grammar=Grammar('start: "ab"'), max_tokens=9)
    assert last.finish_reason == "stop"
    engine.close()


ENDS = {
    "stop": Grammar('start: "ab"'),
    "error": Grammar("start: nope"),
    "length": of_schema({"type": "string", "minLength": 50}),
    "abort": Grammar("start: /a+/", opening=Opening(begins="(?P<mark>)", in_thought="(?P<mark>)")),
}


def test_a_matcher_ends_with_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the answer ends, in the middle of its compilation too; without the collector."""
    engine = served(tmp_path)
    made: list[weakref.ref[TokenMatcher]] = []
    copy = TokenMatcher.copy

    def noted(matcher: TokenMatcher) -> TokenMatcher:
        twin = copy(matcher)
        made.append(weakref.ref(twin))
        return twin

    monkeypatch.setattr(TokenMatcher, "copy", noted)
    gc.collect()
    gc.disable()
    try:
        ends = set()
        for number, (end, grammar) in enumerate(ENDS.items()):
            engine.submit(Submit(number, [1, 2], SamplingParams(n=2, max_tokens=9, grammar=grammar)))
            engine.submit(Submit(9, [1, 2], SamplingParams(max_tokens=9, grammar=grammar)))
            engine.abort(Abort(9))
            while engine.has_work():
                for event in engine.step():
                    ends.add(event.finish_reason)
                    if end == "abort":
                        engine.abort(Abort(number))
        assert ends >= set(ENDS)
        assert engine._grammars is not None
        engine._grammars.compile(ENDS["stop"]).result()  # behind what was aborted while it was compiled
        assert len(made) > 6 and not any(one() for one in made)
    finally:
        gc.enable()
        engine.close()


def test_numbers_come_to_an_end(grammars: Grammars) -> None:
    matcher = grammars.compile(of_schema({"type": "array", "items": {"type": "number"}})).result()
    feed(matcher, "[0." + "3" * (MAX_CHARACTERS - 3))
    assert ids("0123456789") <= allowed(matcher)
    feed(matcher, "3")
    assert allowed(matcher) & ids("0123456789.eE") == set() and ids(",]") <= allowed(matcher)
    feed(matcher, ",1")
    assert ids("0123456789") <= allowed(matcher)


def test_a_number_that_must_go_on_does(grammars: Grammars) -> None:
    number = 10**40
    matcher = grammars.compile(of_schema({"const": number})).result()
    feed(matcher, str(number))
    assert matcher.is_finished or EOS in allowed(matcher)


def test_digits_in_strings_are_free() -> None:
    limit = NumberLimit.of(LLTokenizer(tokenizer_json()))
    for char in '{"a\\"' + "1" * 50:
        limit.accept(ord(char) - 0x20)
    everything = b"\xff" * 12
    assert limit.applied(everything) == everything
    for char in '":-' + "1" * 50:
        limit.accept(ord(char) - 0x20)
    assert limit.applied(everything) != everything


def test_masks_meet_what_else_a_row_may_draw() -> None:
    tables = SlotTables(4, 32, 4, torch.device("cpu"))
    sampler = Sampler(tables, 70, [])
    for slot, params in enumerate(
        [SamplingParams(temperature=0), SamplingParams(temperature=0, allowed_token_ids=[5, 66]), SamplingParams()]
    ):
        sampler.enter(NewSlot(slot, [1], 1, params, seed=3))
    logits = torch.zeros(3, 70)
    logits[:, 9] = 5.0
    logits[:, 66] = 1.0
    words = numpy.zeros(3, numpy.int32)
    words[[0, 2]] = 1 << 5, 1 << 2  # ids 5 and 66
    masks = [TokenMask(0, words.tobytes()), TokenMask(2, words.tobytes())]
    drawn = sampler.sample(logits, (0, 1, 2), torch.tensor([1, 1, 1]), masks)
    assert drawn.tokens.tolist()[:2] == [66, 66] and drawn.tokens[2] in (5, 66)
    narrow = TokenMask(1, (1 << 5).to_bytes(12, "little"))
    assert sampler.sample(logits[:2], (1, 0), torch.tensor([1, 1]), [narrow]).tokens.tolist() == [5, 9]
    assert sampler.sample(logits[:2], (1, 0), torch.tensor([1, 1])).tokens.tolist() == [66, 9]


def test_without_a_tokenizer_a_grammar_is_refused(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    engine = create_engine(EngineConfig(model=str(tmp_path), skip_tokenizer_init=True))
    with pytest.raises(RequestRefused, match="without a tokenizer"):
        engine.submit(Submit(0, [1, 2], SamplingParams(grammar=Grammar("start: /a/"))))
    engine.close()


@pytest.mark.parametrize(("length", "most"), [(8, 64), (60_000, 4), (300_000, 1)], ids=["many", "long", "longest"])
def test_what_is_kept_is_bounded_by_number_and_by_size(length: int, most: int) -> None:
    compiler = Grammars(tokenizer_json(), 100, [EOS])
    made: list[weakref.ref[Matcher]] = []

    class Counted(TokenMatcher):
        def copy(self) -> TokenMatcher:
            return self

    def new(grammar: Grammar) -> Matcher:
        matcher = Counted(LLMatcher(LLTokenizer(tokenizer_json()), 'start: "a"'), 4, None)
        made.append(weakref.ref(matcher))
        return matcher

    compiler._new = new  # type: ignore[method-assign]
    for number in range(most + 3):
        grammar = Grammar(f"{number:03}" + "x" * (length - 3))
        assert compiler.compile(grammar).result(20) is compiler.compile(grammar).result(20)
    assert len(made) == most + 3, "the newest is kept, however long it is"
    compiler.close()
    assert sum(one() is not None for one in made) == most
