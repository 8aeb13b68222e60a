"""What the API process must not load."""

import subprocess
import sys

import pytest

MODULES = ("wllm_api.text", "wllm_api.engine", "wllm_api.engine.child", "wllm_api.engine.scripted")
UNWANTED = ("torch", "transformers", "fastapi", "starlette", "uvicorn", "pydantic", "numpy")


@pytest.mark.parametrize("module", MODULES)
def test_neither_torch_nor_transformers_nor_fastapi_is_loaded(module: str) -> None:
    # I15; the offline LLM uses these modules without a server's libraries.
    program = f"import sys, {module}; print([name for name in {UNWANTED} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert result.stdout.strip() == "[]"
