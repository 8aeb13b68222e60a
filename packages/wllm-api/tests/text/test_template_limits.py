"""A hostile chat template ends in an error: soon, with little memory, without touching Python's internals."""

import pytest

from wllm_api.errors import TemplateError
from wllm_api.text import ChatTemplate, limits

GROWING = "{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = EXPRESSION %}{% endfor %}{{ ns.s }}"

HOSTILE = {
    "huge range": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(99999) %}{% for j in range(99999) if j is even %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
    "recursive macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "call block": "{% macro f(n) %}{% if n %}{{ caller(n - 1) }}{{ caller(n - 1) }}{% endif %}{% endmacro %}"
    "{% macro g(n) %}{% call(m) f(n) %}{{ g(m) }}{% endcall %}{% endmacro %}{{ g(60) }}",
    "huge product": "{{ 'a' * 10 ** 10 }}",
    "huge list": "{{ ([1] * 10 ** 10) | length }}",
    "huge power": "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
    "squared number": GROWING.replace("'ab'", "3").replace("EXPRESSION", "ns.s * ns.s"),
    "doubled by +": GROWING.replace("EXPRESSION", "ns.s + ns.s"),
    "doubled by ~": GROWING.replace("EXPRESSION", "ns.s ~ ns.s"),
    "doubled by format": GROWING.replace("EXPRESSION", "'%s%s' % (ns.s, ns.s)"),
    "doubled by method": GROWING.replace("EXPRESSION", "'{0}{0}'.format(ns.s)"),
    "doubled by join": GROWING.replace("EXPRESSION", "[ns.s, ns.s] | join"),
    "nested lists": GROWING.replace("EXPRESSION", "[ns.s, ns.s]"),
    "nested tuples": GROWING.replace("EXPRESSION", "(ns.s, ns.s)"),
    "nested objects": GROWING.replace("EXPRESSION", "{'a': ns.s, 'b': ns.s}"),
    "nested dict()": GROWING.replace("EXPRESSION", "dict(a=ns.s, b=ns.s)"),
    "nested macro": "{% macro f(s) %}{{ s }}{{ s }}{% endmacro %}{{ " + "f(" * 60 + "'x'" + ")" * 60 + " }}",
    "nested set": "{% set s = 'ab' %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 60 + "{{ s }}",
    "long output": "{% for i in range(100) %}{{ 'a' * 1000000 }}{% endfor %}",
    "wide filter": "{{ 'x' | center(10 ** 10) }}",
    "wide method": "{{ 'x'.ljust(10 ** 10) }}",
    "wide keyword": "{{ 'x' | center(width=10 ** 10) }}",
    "wide % format": "{{ '%9999999999d' % 1 }}",
    "wide * format": "{{ '%*d' % (10 ** 10, 1) }}",
    "wide format filter": "{{ '%9999999999d' | format(1) }}",
    "wide {} format": "{{ '{:9999999999}'.format(1) }}",
    "wide format_map": "{{ '{a:9999999999}'.format_map({'a': 1}) }}",
    "width from argument": "{{ '{:{}}'.format(1, 99999999999) }}",
    "replace method": "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) | length }}",
    "join method": "{{ ('b' * 1000000).join(range(99999) | map('string')) }}",
    "join filter": "{{ range(99999) | join('b' * 1000000) }}",
    "map": "{{ range(99999) | map('center', 999999) | join | length }}",
    "indent": "{{ ('\\n' * 1000000) | indent(1000000) | length }}",
    "json indent": "{{ (range(99999) | list) | tojson(indent=1000000) | length }}",
    "tabs": "{{ ('\\t' * 1000000).expandtabs(1000000) }}",
    "translate": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "sum of lists": "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "internals": "{{ ''.__class__.__mro__ }}",
    "internals by filter": "{{ ('' | attr('__class__')).mro() }}",
    "internals by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "private attribute": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__.x }}",
    "mutation": "{{ messages.append(1) }}",
    "file": "{% include 'secrets' %}",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template_ends_in_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ITERATIONS", 100_000)
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(HOSTILE[name], {}).render([{"role": "user", "content": "hi"}])
    assert "MemoryError" not in str(caught.value)


def test_deep_nesting_of_namespaces_is_not_printed() -> None:
    source = GROWING.replace("EXPRESSION", "namespace(a=ns.s, b=ns.s)")
    assert ChatTemplate(source, {}).render([]) == "<Namespace>"


def test_seconds_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SECONDS", 0.0)
    with pytest.raises(TemplateError, match="seconds"):
        ChatTemplate("{% for i in range(5) %}{% endfor %}", {}).render([])


def test_long_sources_are_refused() -> None:
    with pytest.raises(TemplateError, match="1,000,001 characters"):
        ChatTemplate("x" * 1_000_001, {})


def test_long_conversations_are_no_attack() -> None:
    source = (
        "{% set ns = namespace(out='') %}{% for m in messages %}{% for n in messages[:20] %}{% endfor %}"
        "{% set ns.out = ns.out + m.role + m.content %}{% endfor %}{{ ns.out }}"
    )
    messages = [{"role": "user", "content": "word " * 20}] * 2000
    assert len(ChatTemplate(source, {}).render(messages)) == 2000 * 104


def test_each_render_has_its_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ITERATIONS", 1000)
    template = ChatTemplate("{% for i in range(900) %}{% endfor %}ok", {})
    assert [template.render([]) for _ in range(3)] == ["ok"] * 3
