"""Findings as text for people and as one JSON document for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from wllm.doctor.finding import Finding, Verdict


def text_report(findings: Sequence[Finding]) -> str:
    """A line for each finding, with its reason and fix below, and a summary at the end."""
    width = max((len(finding.check) for finding in findings), default=0)
    indent = " " * (len("problem") + width + 4)
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict.name.lower():<7}  {finding.check:<{width}}  {finding.seen}")
        if finding.reason:
            lines.append(f"{indent}why: {finding.reason}")
        if finding.fix:
            lines.append(f"{indent}fix: {finding.fix}")
    return "\n".join([*lines, "", _summary(findings)])


def json_report(findings: Sequence[Finding]) -> str:
    """An object with the worst verdict and all findings; ASCII, whatever the console."""
    worst = max((finding.verdict for finding in findings), default=Verdict.OK)
    rows = [
        {
            "check": finding.check,
            "verdict": finding.verdict.name.lower(),
            "seen": finding.seen,
            "reason": finding.reason,
            "fix": finding.fix,
        }
        for finding in findings
    ]
    return json.dumps({"verdict": worst.name.lower(), "findings": rows}, indent=2)


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.verdict for finding in findings)
    named = [(counts[verdict], verdict.name.lower()) for verdict in reversed(Verdict) if verdict != Verdict.OK]
    parts = [f"{number} {name}{'s' if number > 1 else ''}" for number, name in named if number]
    return ", ".join(parts) or "all is well"
