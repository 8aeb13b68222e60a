"""Structured output: from what a request asks for to a grammar that the engine follows. Knows no HTTP.

`Constraint` is what is asked for, `notation` writes it as a grammar, `schema_rules`, `breadth` and `endings` say which
JSON schemas can be kept, `closing` and `ranges` change them where it takes that, `GrammarChecker` compiles on trial.
"""

from wllm_api.grammars.checker import GrammarChecker
from wllm_api.grammars.constraint import Constraint

__all__ = ["Constraint", "GrammarChecker"]
