"""The table of reported faults: every number has a test."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROW = re.compile(r"\| (R\d\d) \| .* \| (.*) \|")


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    path = (ROOT if "/" in file else HERE) / file
    return path.is_file() and f"def {name}(" in path.read_text(encoding="utf-8")


def test_every_fault_has_a_test() -> None:
    rows = dict(ROW.findall((HERE / "README.md").read_text(encoding="utf-8")))
    assert list(rows) == [f"R{number:02}" for number in range(1, 48)]
    assert [number for number, tests in rows.items() if not any(map(exists, re.findall(r"`(.*?)`", tests)))] == []
