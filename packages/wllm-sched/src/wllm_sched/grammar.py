"""What the scheduler asks of grammars: a rule for the text of an answer, held to token by token.

Only the interfaces: who knows a tokenizer implements them. A matcher belongs to one sample and lives on the host, so a
preemption leaves it as it is: it always stands behind the sample's last known token.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypedDict


class Limits(TypedDict, total=False):
    """What a parser may take, as `LLParserLimits` of llguidance names it; what is missing is as the library has it."""

    max_grammar_size: int
    step_max_items: int
    max_lexer_states: int


# What JSON schemas and regular expressions become is hardly ambiguous: 15 ms a token for the hardest that were found.
# Fewer states of the lexer, since each copy of a matcher takes them along.
_LIMITS: Limits = {"max_lexer_states": 50_000}
# Rules of any shape cost up to the cube of their number a token: 20 s for 300 that begin with each other, and 0.1 s for
# the hardest found within these limits. Grammars of languages need half as much.
_FREE_LIMITS: Limits = {**_LIMITS, "max_grammar_size": 1000, "step_max_items": 1000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Where a grammar begins in an answer that is free otherwise, such as a tool call in running text.

    `begins` and the others are regular expressions over the text, special tokens' names included; the grammar holds for
    what follows their group `mark`. `in_thought` is for text inside of a thought, where a mark alone may be an example.
    `at_start` is tried where the answer starts, and behind a thought or an earlier begin. `thought`: the marks around
    thoughts; `thought_begun`: the prompt has begun one. Afterwards the answer is free again if it `repeats`, and ends
    otherwise.
    """

    begins: str
    in_thought: str
    at_start: str | None = None
    thought: tuple[str, str] | None = None
    thought_begun: bool = False
    repeats: bool = True


@dataclass(frozen=True, slots=True)
class Grammar:
    """A rule in llguidance's notation. `bounds_numbers`: it describes JSON, whose numbers must come to an end.

    Without an `opening` it is a rule for the whole answer. `is_free`: a client wrote its rules, which may be of any
    shape.
    """

    text: str
    bounds_numbers: bool = False
    opening: Opening | None = None
    is_free: bool = False

    @property
    def limits(self) -> Limits:
        """What the parser may take, so that no token of an answer holds up others."""
        return _FREE_LIMITS if self.is_free else _LIMITS


class Matcher(Protocol):
    """Where one answer stands in its grammar."""

    @property
    def mask(self) -> bytes | None:
        """Little-endian 32-bit words: bit i % 32 of word i // 32 allows token i next. None allows all."""

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete, and nothing may follow."""

    def accept(self, token_id: int) -> None:
        """Move on by a token; raises `GrammarFailed` where that cannot be."""

    def copy(self) -> Matcher:
        """Another matcher at the same place."""


class GrammarCompiler(Protocol):
    """Makes matchers; the work is done elsewhere than in the calling thread."""

    def compile(self, grammar: Grammar) -> Future[Matcher]:
        """A matcher at the start of an answer, some time later; its future may hold `GrammarFailed`."""
