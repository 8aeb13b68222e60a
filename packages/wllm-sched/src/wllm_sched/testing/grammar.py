"""`FakeGrammars`: grammars over a fake vocabulary, each a hash function, ready some calls after they were asked for."""

from __future__ import annotations

from concurrent.futures import Future

from wllm_sched.errors import GrammarFailed
from wllm_sched.grammar import Grammar, Matcher


class FakeMatcher:
    """Allows about one token in three, now and then all. The text is "RULE LENGTH": `LENGTH` tokens are complete.

    With a third word, token number `LENGTH` fails instead.
    """

    def __init__(self, grammar: Grammar, vocab_size: int, eos_token_id: int | None, path: tuple[int, ...] = ()) -> None:
        rule, length, *fails = grammar.text.split()
        self._rule, self._length, self._fails = int(rule), int(length), bool(fails)
        self._grammar, self._vocab_size, self._eos_token_id = grammar, vocab_size, eos_token_id
        self.path = path
        self._allowed: list[int] = []

    @property
    def is_finished(self) -> bool:
        """Whether the length is reached, or the end token came."""
        return len(self.path) == self._length or (bool(self.path) and self.path[-1] == self._eos_token_id)

    @property
    def allowed(self) -> list[int]:
        """The tokens that may come next; at least one."""
        if not self._allowed:
            state = hash((self._rule, self.path))
            allowed = [token for token in range(self._vocab_size) if state % 4 == 0 or hash((state, token)) % 3 == 0]
            self._allowed = allowed or [state % self._vocab_size]
        return self._allowed

    @property
    def mask(self) -> bytes | None:
        """`allowed` as bits, None when it is all."""
        if len(self.allowed) == self._vocab_size:
            return None
        return sum(1 << token for token in self.allowed).to_bytes(-(-self._vocab_size // 32) * 4, "little")

    def accept(self, token_id: int) -> None:
        """Move on; raises `GrammarFailed` where the grammar says so."""
        assert token_id in self.allowed, f"Token {token_id} is drawn behind {self.path}, where it is not allowed"
        self.path += (token_id,)
        self._allowed = []
        if self._fails and len(self.path) == self._length:
            raise GrammarFailed(f"The grammar fails at token {self._length}.")

    def copy(self) -> FakeMatcher:
        """Another one at the same place."""
        return FakeMatcher(self._grammar, self._vocab_size, self._eos_token_id, self.path)


class _LateFuture(Future[Matcher]):
    # Its result is there, but it says so only when it is asked for the `lag`-th time, so that runs can be repeated.
    def __init__(self, lag: int) -> None:
        super().__init__()
        self._lag = lag

    def done(self) -> bool:
        self._lag -= 1
        return self._lag < 0


class FakeGrammars:
    """A compiler without threads: a grammar is ready after `lag` looks. The text "bad" cannot be compiled."""

    def __init__(self, vocab_size: int, eos_token_id: int | None, lag: int = 0) -> None:
        self._vocab_size, self._eos_token_id, self._lag = vocab_size, eos_token_id, lag

    def compile(self, grammar: Grammar) -> Future[Matcher]:
        """A matcher, `lag` looks later."""
        future = _LateFuture(self._lag)
        if grammar.text == "bad":
            future.set_exception(GrammarFailed("The grammar is bad."))
        else:
            future.set_result(FakeMatcher(grammar, self._vocab_size, self._eos_token_id))
        return future
