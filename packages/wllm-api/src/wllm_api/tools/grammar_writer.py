"""`GrammarWriter`: writes the grammar of calls in the notation of llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from wllm_api.grammars.notation import parts_of, with_options
from wllm_sched.grammar import Grammar

# Between the parts of a call, at most so much.
_BLANK = r"[ \t\r\n]{1,16}"
_ANY = r"/(.|\n)*/"


class GrammarWriter:
    """Collects the rules; `token_of` gives the id of a text that is one special token, None for any other text."""

    def __init__(self, token_of: Callable[[str], int | None]) -> None:
        self._token_of = token_of
        self._schemas: list[dict[str, object]] = []
        self._lexemes: dict[str, str] = {}
        self._rules: list[str] = []

    @property
    def blank(self) -> str:
        """Some white space, or none."""
        return f"{self.space}?"

    @property
    def space(self) -> str:
        """Some white space."""
        return self._lexeme(f"/{_BLANK}/")

    def text(self, text: str) -> str:
        """The text itself."""
        return json.dumps(text, ensure_ascii=False)

    def mark(self, mark: str) -> str:
        """A mark of the family: a token of the model where it is one."""
        token_id = self._token_of(mark)
        return self.text(mark) if token_id is None else f"<[{token_id}]>"

    def json(self, schema: Mapping[str, object]) -> str:
        """JSON that matches a schema."""
        self._schemas.append({"name": f"schema_{len(self._schemas)}", "json_schema": with_options(schema)})
        return f"@schema_{len(self._schemas) - 1}"

    def grammar(self, grammar: Grammar) -> str:
        """A whole grammar, whose other parts keep their names."""
        first, *others = parts_of(grammar)
        self._schemas += [{**first, "name": f"schema_{len(self._schemas)}"}, *others]
        return f"@schema_{len(self._schemas) - 1 - len(others)}"

    def any_text(self, mark: str) -> str:
        """Any text up to a mark, and that mark."""
        if self._token_of(mark) is not None:
            return f"{self._lexeme(_ANY)} {self.mark(mark)}"
        return self._lexeme(f"{_ANY} {self.text(mark)}", "up_to_{}[lazy]")

    def word(self, ends: str) -> str:
        """A short text without any of the characters `ends`, at least one character."""
        return self._lexeme(f"/[^{ends}]{{1,64}}/")

    def rule(self, *parts: str) -> str:
        """A rule of its own."""
        self._rules.append(" ".join(parts))
        return f"rule_{len(self._rules) - 1}"

    def recursive(self, body: Callable[[str], str]) -> str:
        """A rule that may hold itself: `body` gets its name."""
        number = len(self._rules)
        self._rules.append("")
        self._rules[number] = body(f"rule_{number}")
        return f"rule_{number}"

    def one_of(self, choices: Sequence[str]) -> str:
        """One of several rules."""
        return self.rule(" | ".join(choices))

    def several(self, item: str, *between: str, many: bool) -> str:
        """One of `item`, or more with `between` in between."""
        return self.rule(item, f"({' '.join(between)} {item})*") if many else item

    def finished(self, start: str) -> str:
        """The whole, with `start` for its first rule."""
        lines = [f"start: {start}"]
        lines += [f"rule_{number}: {rule}" for number, rule in enumerate(self._rules)]
        lines += [f"{name}: {body}" for body, name in self._lexemes.items()]
        calls = {"name": "calls", "lark_grammar": "\n".join(lines)}
        return json.dumps({"grammars": [calls, *self._schemas]}, ensure_ascii=False)

    def _lexeme(self, body: str, name: str = "TEXT_{}") -> str:
        return self._lexemes.setdefault(body, name.format(len(self._lexemes))).removesuffix("[lazy]")
