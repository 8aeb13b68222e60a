"""The package as its users meet it: exports, imports, README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import wllm_sched
import wllm_sched.testing

PACKAGE = Path(__file__).parent.parent


def test_exports_exist() -> None:
    for module in (wllm_sched, wllm_sched.testing):
        assert all(hasattr(module, name) for name in module.__all__)
        assert list(module.__all__) == sorted(module.__all__)


def test_imports_only_wllm_cache_and_the_standard_library() -> None:
    # I15: no torch.
    code = (
        "import sys; before = set(sys.modules); import wllm_sched, wllm_sched.testing; "
        "print(sorted({n.partition('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True)
    assert run.stdout.strip() == "['wllm_cache', 'wllm_sched']"


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (PACKAGE / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.count("length") == 3
