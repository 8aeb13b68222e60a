"""Tokens per second with and without a JSON schema: `python bench/structured_output.py [--model M] [--batch 1 8]`.

Every request has the same prompt and number of tokens; a schema asks for a list without end, so that none ends early.
Prints one line of JSON for each batch size and form.
"""

from __future__ import annotations

import argparse
import json
from time import perf_counter

from wllm import LLM, SamplingParams
from wllm_api.grammars import Constraint, GrammarChecker
from wllm_sched import Grammar

SCHEMA = {
    "type": "array",
    "minItems": 10_000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
}


def tokens_per_second(llm: LLM, grammar: Grammar | None, batch: int, num_tokens: int) -> float:
    """Of `batch` requests at once, prefill included."""
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=num_tokens, ignore_eos=True, grammar=grammar)
    start = perf_counter()
    outputs = llm.generate(["A list of people, as JSON:"] * batch, params, use_tqdm=False)
    elapsed = perf_counter() - start
    done = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert done == batch * num_tokens, f"{done} tokens instead of {batch * num_tokens}"
    return done / elapsed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    llm = LLM(arguments.model)
    text = llm.model_info.tokenizer_json
    assert text is not None, "the model has no tokenizer"
    grammar = GrammarChecker(text).check_now(Constraint("json", SCHEMA, "schema"))
    for batch in arguments.batch:
        for name, form in (("free", None), ("schema", grammar)):
            tokens_per_second(llm, form, batch, 8)
            rate = tokens_per_second(llm, form, batch, arguments.tokens)
            print(json.dumps({"batch": batch, "form": name, "tokens_per_s": round(rate, 1)}), flush=True)
    llm.shutdown()


if __name__ == "__main__":
    main()
