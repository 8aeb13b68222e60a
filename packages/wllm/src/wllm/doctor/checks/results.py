"""Whether the kernels compute on this GPU what their references compute on the CPU, and what launches cost.

Only looked at with `--kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator

from wllm.doctor.facts import CheckedKernels, Facts
from wllm.doctor.finding import Finding, Verdict

_CHECK = "kernels' results"
_WRONG = "what models answer on this GPU may be wrong"
_FIX = "update the NVIDIA driver; if that does not help, report it with what wllm doctor --kernels --json prints"


def results(facts: Facts) -> Iterator[Finding]:
    """A line for each GPU, and one for each check that fails."""
    usable = [(index, gpu) for index, gpu in enumerate(facts.torch.gpus) if not gpu.problem]
    if not usable or facts.torch.problem:
        reason = facts.torch.problem or "there is no GPU that torch can use, and on a CPU no kernel runs"
        yield Finding(_CHECK, Verdict.NOTE, "none: nothing ran", reason)
        return
    found = facts.kernels
    for index, gpu in usable:  # what keeps kernels from the others is told by the check before
        checked = [each for each in found.checked if each.gpu == index]
        failed = [each for each in checked if each.error]
        yield from (_failure(each) for each in failed)
        if checked and not failed:
            launches, seconds = sum(each.launches for each in checked), sum(each.seconds for each in checked)
            seen = f"{gpu.name}: {len(checked)} checks agree, {launches} launches, {seconds:.1f} s"
            yield Finding(f"{_CHECK}, GPU {index}", Verdict.OK, seen)
        for each in (each for each in found.timed if each.gpu == index):
            seen = f"{each.single_us:.1f} us a kernel one by one, {each.graph_us:.1f} us from a CUDA graph"
            yield Finding(f"launches, GPU {index}", Verdict.OK, seen)
    if found.problem or not found.checked:
        last = f" after {found.checked[-1].name} on GPU {found.checked[-1].gpu}" if found.checked else ""
        seen = f"the process that runs the kernels {found.problem or 'said nothing'}{last}"
        yield Finding(_CHECK, Verdict.PROBLEM, seen, _WRONG, _FIX)


def _failure(checked: CheckedKernels) -> Finding:
    error = " ".join(checked.error.split())
    return Finding(f"{_CHECK}, GPU {checked.gpu}", Verdict.PROBLEM, f"{checked.name}: {error}", _WRONG, _FIX)
