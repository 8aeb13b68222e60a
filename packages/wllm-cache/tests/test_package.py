"""The package as its users meet it: exports, imports, README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import wllm_cache

PACKAGE = Path(__file__).parent.parent


def test_exports_exist() -> None:
    assert all(hasattr(wllm_cache, name) for name in wllm_cache.__all__)
    assert wllm_cache.__all__ == sorted(wllm_cache.__all__)


def test_imports_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import wllm_cache; "
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True)
    assert run.stdout.strip() == "{'wllm_cache'}"


def test_readme_example_runs() -> None:
    readme = (PACKAGE / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
