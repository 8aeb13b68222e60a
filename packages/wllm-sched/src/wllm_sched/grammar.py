"""What the scheduler asks of grammars: a rule for the text of an answer, held to token by token.

Only the interfaces: who knows a tokenizer implements them. A matcher belongs to one sample and lives on the host, so a
preemption leaves it as it is: it always stands behind the sample's last known token.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol


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

    Without an `opening` it is a rule for the whole answer.
    """

    text: str
    bounds_numbers: bool = False
    opening: Opening | None = None


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
