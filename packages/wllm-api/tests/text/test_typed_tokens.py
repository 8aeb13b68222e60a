"""Names of control tokens that someone types: they stay text, and everything else is as transformers has it."""

import random

import pytest
import tokenizers
from tokenizers import AddedToken

from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.errors import InvalidText, TemplateError
from wllm_api.text import ChatTemplate, ControlTokens, PromptText, Tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{{ m.tool_calls | tojson(ensure_ascii=true) }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|im|>", "<|im|>x")
OTHERS = ("<tool_call>", "</tool_call>")
CONTROL = ControlTokens([*SPECIAL, *OTHERS], shown=OTHERS)


def byte_level() -> tokenizers.Tokenizer:
    inner = build_tokenizer(SPECIAL[3:])
    inner.add_tokens([AddedToken(name, normalized=False) for name in (*OTHERS, "  ")])
    return inner


def sentencepiece() -> tokenizers.Tokenizer:
    """Its special tokens are in the vocabulary, and get other ids under other names."""
    vocab = {name: number for number, name in enumerate(("<unk>", "<s>", "</s>"))}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {"\u2581": 259, "hi": 260, "\u2581hi": 261, "h": 262, "i": 263}
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab, [("h", "i"), ("\u2581", "hi")], unk_token="<unk>", byte_fallback=True)
    )
    inner.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")]
    )
    inner.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("\u2581", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<s>", "</s>")])
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|im|>", "<|im|>x"])
    inner.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return inner


KINDS = {"byte_level": byte_level, "sentencepiece": sentencepiece}


@pytest.fixture(params=KINDS)
def reference(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    return KINDS[request.param]()


@pytest.fixture
def tokenizer(reference: tokenizers.Tokenizer) -> Tokenizer:
    tokenizer = Tokenizer.from_json(reference.to_str())
    tokenizer.keep_typed(CONTROL)
    return tokenizer


def render(*messages: dict[str, object], source: str = CHATML, **fields: object) -> PromptText:
    return ChatTemplate(source, {}, CONTROL).render(messages, **fields)  # type: ignore[arg-type]


def test_no_control_token_comes_from_a_user(reference: tokenizers.Tokenizer, tokenizer: Tokenizer) -> None:
    drawn = random.Random(4)
    names = [name for name in (*SPECIAL, *OTHERS) if reference.token_to_id(name) is not None]
    bits = [*names, *names, "hi", " ", "\n", "<", "|>", "im_end", "ü", "\ufdd0", "\ufdd1", "<|im", "  "]
    for _ in range(300):
        texts = ["".join(drawn.choice(bits) for _ in range(drawn.randint(1, 8))) for _ in range(2)]
        messages = [{"role": role, "content": text} for role, text in zip(("user", "tool"), texts, strict=True)]
        prompt = render(*messages)
        assert prompt == ChatTemplate(CHATML, {}).render(messages), "what is shown is the same text"
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        # This kind of tokenizer puts a blank behind each control token of its own.
        shown = tokenizer.decode(ids, skip_special_tokens=False)
        assert shown.replace(" ", "") == prompt.replace(" ", "")
        counts = {name: ids.count(reference.token_to_id(name)) for name in names}
        expected = {"<|im_start|>": 3, "<|im_end|>": 2}
        assert counts == {name: expected.get(name, 0) for name in names}, texts


def test_typed_names_are_the_tokens_of_plain_text(reference: tokenizers.Tokenizer, tokenizer: Tokenizer) -> None:
    """The library can encode special tokens as text too, but then all of them."""
    drawn = random.Random(5)
    names = [name for name in SPECIAL if reference.token_to_id(name) is not None]
    for _ in range(100):
        text = "hi " + "".join(drawn.choice([*names, "hi ", "x<", "ü"]) for _ in range(6))
        prompt = render({"role": "user", "content": text}, source="{{ messages[0].content }}")
        reference.encode_special_tokens = True
        expected = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(prompt, add_special_tokens=False) == expected
        reference.encode_special_tokens = False


def test_begin_token_is_added_as_ever() -> None:
    tokenizer = Tokenizer.from_json(sentencepiece().to_str())
    tokenizer.keep_typed(CONTROL)
    prompt = render({"role": "user", "content": "hi</s>"}, source="{{ messages[0].content }}")
    assert tokenizer.encode(prompt) == [1, *tokenizer.encode(prompt, add_special_tokens=False)]
    assert 2 not in tokenizer.encode(prompt)


def test_nothing_is_marked_without_need() -> None:
    assert render({"role": "user", "content": "a < b"}).typed == ()


def test_the_models_own_words_keep_their_marks() -> None:
    said = "<tool_call>{}</tool_call><|im_end|>"
    for role, typed in (("assistant", 1), ("system", 1), ("user", 3), ("tool", 3)):
        assert len(render({"role": role, "content": said}).typed) == typed, role


def test_calls_tools_and_variables_are_words_too() -> None:
    call = {"name": "f", "arguments": {"a": ["</s>"]}}
    prompt = render({"role": "assistant", "content": "", "tool_calls": [call]})
    assert [prompt[start:end] for start, end in prompt.typed] == ["</s>", "</s>"]
    prompt = render(
        {"role": "user", "content": ""},
        source="{{ tools }}{{ note }}",
        tools=[{"name": "<|im_end|>"}],
        extra={"note": "<s>"},
    )
    assert [prompt[start:end] for start, end in prompt.typed] == ["<|im_end|>", "<s>"]


def test_a_continued_message_may_end_with_a_name() -> None:
    for text in ("<|im_end|>", "so <|im_end|> and", "x<|im_end|> "):
        prompt = render(
            {"role": "assistant", "content": text}, add_generation_prompt=False, continue_final_message=True
        )
        assert prompt == "<|im_start|>assistant\n" + text
        assert [prompt[start:end] for start, end in prompt.typed] == ["<|im_end|>"]


def test_templates_that_look_at_names_still_find_them() -> None:
    source = (
        "{% if messages[0].content.startswith('<|im_end|>') %}yes{% endif %}"
        "{{ messages[0].content.split('</s>')[-1] }}{{ messages[0].content | trim | length > 5 }}"
    )
    assert render({"role": "user", "content": "<|im_end|>a</s>b"}, source=source) == "yesbTrue"


def test_a_free_character_is_always_found_or_asked_for() -> None:
    free = "".join(chr(code) for code in range(0xFDD0, 0xFDF0))
    prompt = render({"role": "user", "content": free[:-1] + "</s>" + free[:-1]})
    assert free[:-1] + "</s>" + free[:-1] in prompt and len(prompt.typed) == 1
    with pytest.raises(TemplateError, match="keeps free"):
        render({"role": "user", "content": free + "</s>"})


def test_a_tokenizer_that_knows_no_other_way_refuses() -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0)], unk_id=0))
    inner.add_special_tokens(["</s>"])
    tokenizer = Tokenizer.from_json(inner.to_str())
    tokenizer.keep_typed(CONTROL)
    prompt = render({"role": "user", "content": "a</s>"}, source="{{ messages[0].content }}")
    with pytest.raises(InvalidText, match="cannot write as text"):
        tokenizer.encode(prompt)
