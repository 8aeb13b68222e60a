"""What the package as a whole promises: its README runs, its exports exist, and it says what it runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch

import wllm_kernels

PACKAGE = Path(__file__).parents[1]


def test_readme_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    implementation = "device" if torch.cuda.is_available() else "reference"
    assert done.stdout.splitlines() == ["torch.Size([2, 8, 64])", implementation]


def test_exports() -> None:
    assert sorted(wllm_kernels.__all__) == wllm_kernels.__all__
    assert all(hasattr(wllm_kernels, name) for name in wllm_kernels.__all__)


def test_meta_tensors_go_through_the_fakes() -> None:
    x, weight = torch.empty(3, 8, device="meta"), torch.empty(8, device="meta")
    assert wllm_kernels.rms_norm(x, weight, 1e-5).shape == (3, 8)


def test_compiled_code_calls_the_registered_op() -> None:
    seen: list[str] = []

    def backend(module: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in module.graph.nodes)
        return module

    x, weight = torch.randn(3, 8), torch.ones(8)
    compiled = torch.compile(lambda x: wllm_kernels.rms_norm(x, weight, 1e-5), backend=backend, fullgraph=True)
    assert torch.equal(compiled(x), wllm_kernels.rms_norm(x, weight, 1e-5))
    assert "wllm.rms_norm.default" in seen


def test_import_loads_no_other_package_of_ours_and_no_transformers() -> None:
    code = (
        "import sys, wllm_kernels;"
        "print({name.split('.')[0] for name in sys.modules} & {'transformers', 'wllm_runtime', 'wllm_sched'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert done.stdout.strip() == "set()", done.stderr
