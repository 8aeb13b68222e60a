"""Answers that are free until a grammar begins in them: where it begins, what it then allows, and where it ends."""

from __future__ import annotations

import random
import time

import pytest
import tokenizers

from wllm_runtime import grammars as module
from wllm_runtime.grammars import Grammars
from wllm_sched import Grammar, GrammarFailed, Matcher, Opening

WORDS = ["<call>", "<think>", "</think>", 'l>{"a"', "all>["]
RULE = '"{" ("\\"a\\"" | "\\"b\\"") "}" "."'
MARK = "(?P<mark><call>)"
OPENING = Opening(begins=MARK, in_thought=MARK + r'\s*\{"a"', thought=("<think>", "</think>"))
GRAMMAR = Grammar(f"start: {RULE}", opening=OPENING)


def tokenizer_json() -> str:
    """One token for each printable ASCII character, then `WORDS`, the end token last."""
    vocab = {chr(0x20 + token_id): token_id for token_id in range(95)}
    vocab[chr(0x120)] = vocab.pop(" ")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.add_tokens([tokenizers.AddedToken(word, normalized=False) for word in WORDS])
    inner.add_special_tokens(["<end>"])
    return str(inner.to_str())


EOS = 95 + len(WORDS)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(tokenizer_json(), 110, [EOS])


@pytest.fixture
def matcher(grammars: Grammars) -> Matcher:
    return grammars.compile(GRAMMAR).result()


def allows(matcher: Matcher, token_id: int) -> bool:
    mask = matcher.mask
    return mask is None or bool(mask[token_id // 8] >> token_id % 8 & 1)


def ids(text: str) -> list[int]:
    return [ord(char) - 0x20 for char in text]


def feed(matcher: Matcher, *parts: str) -> None:
    """Each part is a word of the tokenizer, or characters."""
    for part in parts:
        for token_id in [95 + WORDS.index(part)] if part in WORDS else ids(part):
            assert allows(matcher, token_id), f"{part!r} in {parts}"
            matcher.accept(token_id)


def test_text_is_free(matcher: Matcher) -> None:
    feed(matcher, "a < b, <cal", "<think>", "and so on" * 300)
    assert matcher.mask is None and not matcher.is_finished
    assert allows(matcher, EOS) and allows(matcher, 109)
    matcher.accept(EOS)
    matcher.accept(109)  # an id that only the model has
    assert matcher.mask is None


@pytest.mark.parametrize("mark", [["<call>"], list("<call>"), ["<ca", "ll>"]])
@pytest.mark.parametrize("before", ["", "text ", "<call <", "x" * 2000])
def test_grammar_holds_behind_a_mark(matcher: Matcher, mark: list[str], before: str) -> None:
    feed(matcher, before, *mark)
    assert [token_id for token_id in range(110) if allows(matcher, token_id)] == ids("{")
    feed(matcher, '{"')
    assert not allows(matcher, ids("c")[0]) and not allows(matcher, EOS)
    feed(matcher, 'b"}.')
    assert matcher.mask is None and not matcher.is_finished
    feed(matcher, "> and more ", *mark, '{"a"}.')
    assert matcher.mask is None


def test_token_that_reaches_into_the_grammar(matcher: Matcher) -> None:
    feed(matcher, "<cal", 'l>{"a"')
    assert [token_id for token_id in range(110) if allows(matcher, token_id)] == ids("}")


def test_token_that_leaves_the_grammar_at_once_is_text(matcher: Matcher) -> None:
    feed(matcher, "<c", "all>[")
    assert matcher.mask is None
    feed(matcher, "<call>")
    assert matcher.mask is not None


def test_grammar_that_is_too_hard_to_follow_is_no_text(matcher: Matcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a token cannot be judged the answer fails, and is not free all of a sudden."""
    monkeypatch.setattr(module, "_MAX_WASTE_S", -1.0)
    feed(matcher, "<cal")
    with pytest.raises(GrammarFailed, match="too hard"):
        matcher.accept(95 + WORDS.index('l>{"a"'))


def test_answer_ends_with_its_only_call(grammars: Grammars) -> None:
    once = Opening(begins=MARK, in_thought=MARK, repeats=False)
    matcher = grammars.compile(Grammar(f"start: {RULE}", opening=once)).result()
    feed(matcher, "x", "<call>", '{"a"}')
    assert not matcher.is_finished
    feed(matcher, ".")
    assert matcher.is_finished


@pytest.mark.parametrize("begun", [False, True])
def test_mark_in_a_thought_may_be_an_example(grammars: Grammars, begun: bool) -> None:
    opening = Opening(begins=MARK, in_thought=OPENING.in_thought, thought=OPENING.thought, thought_begun=begun)
    matcher = grammars.compile(Grammar(f"start: {RULE}", opening=opening)).result()
    feed(matcher, *([] if begun else [" ", "<think>"]), "write ", "<call>", '[1] or {"b"')
    assert matcher.mask is None
    if begun:
        feed(matcher, "</think>", "<call>")
    else:
        feed(matcher, "<call>", '{"a"')  # a thought that was never closed
    assert matcher.mask is not None


def test_thought_begins_where_nothing_came_before(matcher: Matcher) -> None:
    feed(matcher, "text ", "<think>", "<call>")
    assert matcher.mask is not None


def test_grammar_without_a_mark(grammars: Grammars) -> None:
    opening = Opening(begins=MARK, in_thought=MARK, at_start=r'(?P<mark>\s*)(?=\{"a")')
    grammar = Grammar(f"start: {RULE}", opening=opening)
    matcher = grammars.compile(grammar).result()
    feed(matcher, ' {"a')
    assert matcher.mask is None
    feed(matcher, '"')
    assert [token_id for token_id in range(110) if allows(matcher, token_id)] == ids("}")
    later = grammars.compile(grammar).result()
    feed(later, 'x {"a"')
    assert later.mask is None


def test_copies_do_not_share_a_place(matcher: Matcher) -> None:
    feed(matcher, "<cal")
    other = matcher.copy()
    feed(matcher, "l>", '{"')
    inside = matcher.copy()
    feed(other, "m", "<call>", "{")
    feed(matcher, 'a"}.')
    feed(inside, "b")
    assert matcher.mask is None and inside.mask is not None


def test_what_is_not_allowed_fails(matcher: Matcher) -> None:
    feed(matcher, "<call>")
    with pytest.raises(GrammarFailed):
        matcher.accept(EOS)


def test_long_answers_take_little_time(matcher: Matcher) -> None:
    start = time.perf_counter()
    feed(matcher, "<thin", "<" * 3000, " " * 3000, "<call" * 500)
    assert matcher.mask is None and time.perf_counter() - start < 10  # copying all text each time takes far longer


def test_place_does_not_depend_on_the_tokens(grammars: Grammars) -> None:
    """The same text in other tokens leads to the same place, as long as no token reaches over an edge."""
    drawn = random.Random(3)
    bits = ["<call>", "<think>", "</think>", "<ca", "x", " ", "text ", '{"a"}.', '<call>{"b"}.', "<", ">"]
    for _ in range(300):
        text = "".join(drawn.choice(bits) for _ in range(drawn.randint(1, 8)))
        places = []
        for whole in (False, True):
            matcher = grammars.compile(GRAMMAR).result()
            rest, count = text, 0
            while rest and allows(matcher, token := _next(rest, whole=whole)):
                matcher.accept(token)
                taken = len(WORDS[token - 95]) if token >= 95 else 1
                rest, count = rest[taken:], count + taken
            places.append((matcher.mask, rest) if not rest else None)
        if None not in places:
            assert places[0] == places[1], text


def _next(text: str, *, whole: bool) -> int:
    if whole and (word := next((word for word in WORDS[:3] if text.startswith(word)), None)):
        return 95 + WORDS.index(word)
    return ids(text[0])[0]
