"""`wllm doctor --fix`: shows each command that mends something, asks, and runs it where the answer is yes."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Sequence

from wllm.console import complain, say
from wllm.doctor.finding import Finding, Verdict
from wllm.doctor.shell_command import ShellCommand


def mend(findings: Sequence[Finding]) -> bool:
    """Offer the commands of what is a warning or worse, each once; whether any was run."""
    offers = {finding.command: finding for finding in reversed(findings) if finding.verdict >= Verdict.WARNING}
    ran = False
    for command, finding in reversed(offers.items()):
        if command is None:
            continue
        say(f"\n{finding.check}: {finding.seen}\n  {command}")
        if _agreed():
            ran = True
            _run(command)
    if offers.keys() <= {None}:
        say("\nThere is nothing here that a command can mend; what there is to do stands behind each fix.")
    importlib.invalidate_caches()  # of packages that came or went
    return ran


def _agreed() -> bool:
    say("Run it? [y/N]", end=" ")
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:
        say()
        return False


def _run(command: ShellCommand) -> None:
    try:
        code = subprocess.run(command.words).returncode
    except OSError as error:
        complain(f"{command.words[0]} cannot be run: {error.strerror}")
        return
    if code:
        complain(f"It ended with code {code}; its last lines say why.")
