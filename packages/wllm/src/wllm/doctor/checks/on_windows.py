"""What Windows alone can have wrong: runtime DLLs, long paths, code page, page file, GPU scheduling, virus scanners."""

from __future__ import annotations

from collections.abc import Iterator

from wllm.console import size_text
from wllm.doctor import windows
from wllm.doctor.checks.storage import model_cache
from wllm.doctor.facts import Facts
from wllm.doctor.finding import Finding, Verdict
from wllm.doctor.shell_command import pip

# Python brings the first two; torch needs the third, and from 2.14 on the last.
RUNTIME_DLLS = ("vcruntime140.dll", "vcruntime140_1.dll", "msvcp140.dll", "vcruntime140_threads.dll")
_REDISTRIBUTABLE = "https://aka.ms/vs/17/release/vc_redist.x64.exe"
_LOW_PAGE_FILE = 4 * 2**30
_UTF8 = 65001


def runtime_dlls(facts: Facts) -> Iterator[Finding]:
    """The Visual C++ runtime, without which torch cannot be imported."""
    missing = windows.missing_dlls(RUNTIME_DLLS)
    if not missing:
        yield Finding("Visual C++ runtime", Verdict.OK, "all DLLs load")
        return
    # An older torch does without the newest of them.
    works = facts.torch.is_slow or bool(facts.torch.version and not facts.torch.error)
    command = pip("install", "msvc-runtime")
    yield Finding(
        "Visual C++ runtime",
        Verdict.NOTE if works else Verdict.PROBLEM,
        f"missing: {', '.join(missing)}",
        "newer versions of torch need them" if works else "torch needs them",
        f"install {_REDISTRIBUTABLE}, or: {command}",
        command,
    )


def long_paths(_: Facts) -> Iterator[Finding]:
    """Paths over 260 characters, which models and environments in deep folders have."""
    if windows.long_paths_enabled():
        yield Finding("long paths", Verdict.OK, "enabled")
        return
    reason = "files of models or packages in deep folders may not be found"
    fix = (
        "as administrator: Set-ItemProperty HKLM:\\SYSTEM\\CurrentControlSet\\Control\\FileSystem LongPathsEnabled 1; "
        "or keep environment and models in short folders"
    )
    yield Finding("long paths", Verdict.NOTE, "off: paths end at 260 characters", reason, fix)


def code_page(_: Facts) -> Iterator[Finding]:
    """What the console shows of texts that are not English."""
    page = windows.console_code_page()
    if page in (0, _UTF8):
        yield Finding("console", Verdict.OK, "UTF-8" if page else "none: the output goes elsewhere")
        return
    reason = "other programs may show what wLLM prints wrongly, which is always UTF-8"
    yield Finding("console", Verdict.NOTE, f"code page {page}", reason, "chcp 65001, or use Windows Terminal")


def page_file(_: Facts) -> Iterator[Finding]:
    """Windows counts memory when it is reserved, so loading a model needs some page file beside the main memory."""
    size = windows.page_file_bytes()
    if size >= _LOW_PAGE_FILE:
        yield Finding("page file", Verdict.OK, size_text(size))
        return
    reason = "programs end with an access violation, or error 1455, when main memory and page file are all promised"
    fix = "System, Advanced system settings, Performance, Virtual memory: system managed size"
    yield Finding("page file", Verdict.WARNING, size_text(size), reason, fix)


def hardware_scheduling(facts: Facts) -> Iterator[Finding]:
    """A hint: it changes what a kernel launch costs, to the better on some machines and to the worse on others."""
    if facts.driver.gpus:
        seen = {True: "on", False: "off", None: "as the driver likes"}[windows.hardware_scheduling()]
        reason = "hardware-accelerated GPU scheduling changes how long a kernel launch takes, for better or worse"
        fix = "compare wllm bench latency with the other setting, in Settings, System, Display, Graphics"
        yield Finding("hardware scheduling", Verdict.NOTE, seen, reason, fix)


def virus_scanner(_: Facts) -> Iterator[Finding]:
    """A hint: what a scanner costs cannot be seen from here."""
    reason = "virus scanners read models again when they are loaded"
    fix = "if loading is slow, exclude that folder in Windows Security, Virus & threat protection, Exclusions"
    yield Finding("virus scanner", Verdict.NOTE, f"models are in {model_cache()}", reason, fix)
