"""Asks a program in a process of its own, because what it imports can end it, or never end.

The program is a module that calls `tell` for each answer; whatever else is printed there may stand around the answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

_MARK = "answer: "


def tell(answer: dict[str, Any]) -> None:
    """Give the doctor one answer."""
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)  # noqa: T201


class Asked(NamedTuple):
    """The answers, why there are no more of them (empty: the program came to its end), and whether time was why."""

    answers: list[dict[str, Any]]
    problem: str = ""
    is_slow: bool = False


def ask(module: str, timeout_s: float) -> Asked:
    """Run a module to its end, or for so many seconds."""
    # -P: a folder called torch where the command was given is none that the server would import.
    command = [sys.executable, "-P", "-X", "utf8", "-W", "ignore", "-m", module]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONOPTIMIZE"}
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        return Asked(_answers(error.stdout or b""), f"did not end within {timeout_s:.0f} s", is_slow=True)
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        return Asked(_answers(done.stdout), f"ended with code {done.returncode} {last}".strip())
    return Asked(_answers(done.stdout))


def _answers(output: bytes) -> list[dict[str, Any]]:
    lines = output.decode(errors="replace").splitlines()
    return [json.loads(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK)]
