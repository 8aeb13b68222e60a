"""Two tasks of a few rows for lm-eval, one of each kind: likelihoods of choices, and generation."""

from __future__ import annotations

import json
from pathlib import Path

TASKS = ("tiny_choice", "tiny_generate")
ROWS = [
    {"question": "The capital of France is", "choices": ["Paris", "Rome", "a bicycle"], "answer": 0},
    {"question": "The capital of Italy is", "choices": ["Paris", "Rome", "a bicycle"], "answer": 1},
    {"question": "The opposite of hot is", "choices": ["a bicycle", "Rome", "cold"], "answer": 2},
    {"question": "One, two, three, four,", "choices": ["Paris", "five", "cold"], "answer": 1},
]


def write_tasks(folder: Path) -> Path:
    """Write the tasks where lm-eval's `include_path` finds them: the folder."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(rows)}},
        "test_split": "test",
        "doc_to_text": "question",
    }
    choice = {
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    }
    generate = {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 4},
        "metric_list": [{"metric": "exact_match"}],
        "filter_list": [
            {"name": "word", "filter": [{"function": "regex", "regex_pattern": r"(\w+)"}, {"function": "take_first"}]}
        ],
    }
    for name, task in zip(TASKS, (choice, generate), strict=True):
        # JSON is YAML too.
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **shared, **task}), encoding="utf-8")
    return folder
