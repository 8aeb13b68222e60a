"""Chat templates: the prompts they give, against the dialect of transformers."""

import json
import sys
from datetime import datetime
from types import SimpleNamespace

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from wllm_api.errors import TemplateError
from wllm_api.text import ChatTemplate, sandbox

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The shapes of construct that public templates use: macros, namespaces, slices, loop variables, filters and tests,
# whitespace control, nested loops, inline conditions, concatenation, in-place sets.
DIALECT = [
    CHATML,
    "{{- bos_token }}\n{%- if messages[0].role == 'system' %}\n  {%- set system = messages[0].content | trim %}\n"
    "  {%- set messages = messages[1:] %}\n{%- else %}\n  {%- set system = '' %}\n{%- endif %}\n[{{ system }}]\n"
    "{%- for m in messages %}\n    {{- '<' ~ m['role'] ~ '>' + m['content'] | trim + eos_token }}\n{%- endfor %}",
    "{% macro show(x, depth=0) -%}\n{% if x is mapping %}{% for k, v in x | dictsort %}{{ k }}="
    "{{ show(v, depth + 1) }};{% endfor %}{% elif x is iterable and x is not string %}"
    "{{ x | map('upper') | join('|') }}{% else %}{{ x }}"
    "{% endif %}{%- endmacro %}{% for t in tools or [] %}{{ show(t) }}{% endfor %}{{ show(['a', 'b']) }}",
    "{% set ns = namespace(found=false, last=-1) %}{% for m in messages[::-1] %}"
    "{% if not ns.found and m.role == 'user' %}{% set ns.found = true %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{{ ns.found }} {{ ns.last }}"
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.first }} {{ loop.last }} {{ loop.revindex }}"
    " {{ loop.previtem.role if loop.previtem else '-' }} {{ loop.cycle('x', 'y') }}\n{% else %}none{% endfor %}",
    "{% for t in tools %}{{ t | tojson }}{{ t | tojson(indent=2) }}"
    "{{ t | tojson(separators=(',', ':'), sort_keys=true) }}{% endfor %}"
    "{{ {'a': (1, 2), 'b': [none, true]} | tojson }}{{ 'ü<b>' | tojson(ensure_ascii=true) }}",
    "{% for m in messages if m.role != 'system' %}{% generation %}{% set inner = 1 %}{{ m.content }}{% endgeneration %}"
    "{{ inner is defined }}{% endfor %}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.content }}{% if loop.index == 3 %}"
    "{% break %}{% endif %}{% endfor %}",
    "{% set block %}  {{ messages | length }} {{ undefined_name }}{% endset %}{{ block | trim }}"
    "{% filter upper %}a{{ 'b' }}{% endfilter %}{{ 'x' * 3 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}"
    "{{ '%s-%d' % ('a', 5) }}{{ '{}!'.format('b') }}",
    "{{ messages[0].content.split(' ')[-1].strip().replace('i', 'y') }}{{ ', '.join(['a', 'b']) }}"
    "{{ ['z', 'a'] | sort }}{{ (1, 2) + (3,) }}{{ [1] + [2] }}{{ 'a' in 'abc' }}"
    "{{ messages | map(attribute='role') | list }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ range(3) | list }}{{ 'abc'[1:] }}"
    "{{ 'text' | indent(2) }}{{ '3' | int + 1 }}{{ {'b': 1}.items() | list }}{{ dict(a=1) }}"
    "{{ none | default('d', true) }}",
    "{% macro wrap() %}{{ caller(1) }}{{ caller(2) }}{% endmacro %}{% call(x) wrap() %}({{ x }}){% endcall %}",
    "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
]

MESSAGES: list[dict[str, object]] = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hi <b> größe 龜"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Who?\n"},
]
FUNCTION = {"name": "f", "description": "größe <b>", "parameters": {"a": [1, None]}}
TOOLS: list[dict[str, object]] = [{"type": "function", "function": FUNCTION}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class _Generation(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_call"), [], [], body).set_lineno(line)

    def _call(self, caller: jinja2.runtime.Macro) -> str:
        return caller()


def _plain_jinja(source: str, **variables: object) -> str:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment.filters["tojson"] = tojson
    return environment.from_string(source).render(**variables)


@pytest.mark.parametrize("source", DIALECT)
@pytest.mark.parametrize("prompt", [True, False])
def test_counting_changes_no_prompt(source: str, prompt: bool) -> None:
    expected = _plain_jinja(
        source, messages=MESSAGES, tools=TOOLS, documents=None, add_generation_prompt=prompt, **TOKENS
    )
    assert expected
    template = ChatTemplate(source, TOKENS)
    assert template.render(MESSAGES, tools=TOOLS, add_generation_prompt=prompt) == expected


@pytest.mark.parametrize("source", [*DIALECT, "{{ strftime_now('%d %B %Y') }}" + CHATML])
def test_transformers_gives_the_same_prompt(source: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="compares with transformers")
    messages: list[dict[str, object]] = [
        *MESSAGES,
        {"role": "assistant", "content": "Well", "reasoning": "hm", "tool_calls": None},
    ]
    continuing = (False, True) if source.endswith(CHATML) else (False,)
    for prompt, continued in [(True, False), *((False, continued) for continued in continuing)]:
        theirs, _ = utils.render_jinja_template(
            [utils._normalize_chat_messages(messages)],
            TOOLS,
            chat_template=source,
            add_generation_prompt=prompt,
            continue_final_message=continued,
            **TOKENS,
        )
        ours = ChatTemplate(source, TOKENS).render(
            messages, tools=TOOLS, add_generation_prompt=prompt, continue_final_message=continued
        )
        assert ours == theirs[0]


def test_json_is_written_as_it_is() -> None:
    # R26: no \u escapes, no HTML escapes.
    assert ChatTemplate("{{ tools[0].function.description | tojson }}", {}).render([], tools=TOOLS) == '"größe <b>"'


def test_templates_know_the_date() -> None:
    before = datetime.now().strftime("%d %B %Y")
    date = ChatTemplate("{{ strftime_now('%d %B %Y') }}", {}).render([])
    assert date in (before, datetime.now().strftime("%d %B %Y"))


@pytest.mark.parametrize(("platform", "asked"), [("linux", "%-d %B 5%%-a"), ("win32", "%#d %B 5%%-a")])
def test_a_day_without_zero_is_asked_as_the_system_takes_it(
    platform: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(strftime=lambda pattern: pattern)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(sandbox, "datetime", SimpleNamespace(now=lambda: now))
    assert ChatTemplate("{{ strftime_now('%-d %B 5%%-a') }}", {}).render([]) == asked


def test_null_is_absent() -> None:
    # R19: an assistant's tool call has no content, and templates would print "None".
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}{{ m.name is defined }}]{% endfor %}", {})
    assert template.render([{"role": "assistant", "content": None, "name": None}]) == "[False]"


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_found_under_each_of_its_names(name: str) -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }} {{ messages[0].thinking }}", {})
    assert template.render([{"role": "assistant", name: "hm"}]) == "hm hm"


def test_extra_variables_and_special_tokens() -> None:
    template = ChatTemplate("{{ bos_token }}{{ enable_thinking }}{{ documents }}{{ tools }}", TOKENS)
    assert template.render([], extra={"enable_thinking": False}) == "<s>FalseNoneNone"
    assert template.render([], extra={"documents": ["d"], "bos_token": "B"}) == "B['d']None"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_extra_variables_cannot_replace_the_request(name: str) -> None:
    with pytest.raises(TemplateError, match="cannot be named"):
        ChatTemplate(CHATML, {}).render(MESSAGES, extra={name: []})


def test_the_callers_messages_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    template = ChatTemplate("{% for p in messages[0].content %}{{ p.text }}{% endfor %}", {})
    assert template.render(messages, add_generation_prompt=False, continue_final_message=True) == "a"
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


@pytest.mark.parametrize("text", ["An apple a day, keeps", "keeps ", " keeps", "keeps\n\n", "x" * 100])
def test_a_continued_message_ends_the_prompt(text: str) -> None:
    # R25: no end-of-turn token after it, the trailing blank kept.
    messages = [{"role": "user", "content": "a saying"}, {"role": "assistant", "content": text}]
    prompt = ChatTemplate(CHATML, {}).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert prompt.endswith("<|im_start|>assistant\n" + text)


def test_a_template_that_trims_continues_with_trimmed_text() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", {})
    messages = [{"role": "assistant", "content": "keeps "}]
    assert template.render(messages, add_generation_prompt=False, continue_final_message=True) == "[keeps"


@pytest.mark.parametrize(
    ("source", "messages", "prompt", "says"),
    [
        (CHATML, MESSAGES, True, "both true"),
        (CHATML, [], False, "no content"),
        (CHATML, [{"role": "assistant", "tool_calls": []}], False, "no content"),
        (CHATML, [{"role": "assistant", "content": []}], False, "no content"),
        ("{{ messages[0].role }} content", MESSAGES, False, "does not show the whole"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    source: str, messages: list[dict[str, object]], prompt: bool, says: str
) -> None:
    with pytest.raises(TemplateError, match=says):
        ChatTemplate(source, {}).render(messages, add_generation_prompt=prompt, continue_final_message=True)


def test_a_refusal_is_the_templates_own_text() -> None:
    # R22
    template = ChatTemplate("{{ raise_exception('System message must be at the beginning') }}", {})
    with pytest.raises(TemplateError) as caught:
        template.render(MESSAGES)
    assert str(caught.value) == "System message must be at the beginning"


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ x", "{% endif %}", "{{ x | nofilter }}", "{% break %}", "(" * 3 + "{{" + "(" * 5000]
)
def test_a_broken_template_is_told_at_construction(source: str) -> None:
    with pytest.raises(TemplateError, match="cannot be parsed"):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    "source", ["{{ messages[0].nothing.more }}", "{{ 1 / 0 }}", "{{ nothing() }}", "{{ x | tojson }}"]
)
def test_any_failure_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError, match="failed on these messages"):
        ChatTemplate(source, {}).render(MESSAGES)


@pytest.mark.parametrize("depth", [*range(300, 1000, 25), 100_000])
def test_deep_nesting_is_taken_or_refused(depth: int) -> None:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    messages = [{"role": "user", "content": "Hi", "tool_calls": value}]
    for template in (ChatTemplate(CHATML, {}), ChatTemplate("{{ (extra or messages) | tojson }}", {})):
        for arguments in ({"extra": {"extra": value}}, {"tools": [{"parameters": value}]}, {}):
            try:
                template.render(messages if not arguments else MESSAGES, **arguments)
            except TemplateError as error:
                assert depth > 300, error


def test_messages_are_plain_data() -> None:
    with pytest.raises(TemplateError, match="not datetime"):
        ChatTemplate(CHATML, {}).render([{"role": "user", "content": datetime.now()}])
