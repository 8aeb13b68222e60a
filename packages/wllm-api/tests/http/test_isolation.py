"""I15: the server's process never loads a deep-learning library, and the package's own import loads nothing."""

import subprocess
import sys

import pytest

HEAVY = ["torch", "transformers", "numpy", "huggingface_hub", "wllm_runtime", "wllm_kernels"]
WEB = ["fastapi", "uvicorn", "pydantic", "starlette", "prometheus_client"]


@pytest.mark.parametrize(("statement", "absent"), [
    ("import wllm_api", [*HEAVY, *WEB, "tokenizers", "jinja2"]),
    ("import wllm_api.text", [*HEAVY, *WEB]),
    ("import wllm_api.engine", [*HEAVY, *WEB]),
    ("import wllm_api.app, wllm_api.server, wllm_api.testing, wllm_api.engine.scripted", HEAVY),
])  # fmt: skip
def test_what_an_import_loads(statement: str, absent: list[str]) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {absent!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True)
    assert ran.stdout.strip() == "[]"
