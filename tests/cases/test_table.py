"""The table of reported faults: every number has a test, and every test that it names is there."""

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
    named = [(number, re.findall(r"`(.*?)`", tests)) for number, tests in rows.items()]
    assert [number for number, tests in named if not tests] == []
    assert [(number, test) for number, tests in named for test in tests if not exists(test)] == []
