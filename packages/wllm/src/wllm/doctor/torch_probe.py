"""The program that imports torch for the doctor, in a process of its own: a broken torch can end its process.

Tells one answer, the fields of `Torch`.
"""

from __future__ import annotations

from typing import Any

from wllm.doctor.probe import tell


def main() -> None:
    """Tell what torch says of itself, its GPUs and the kernels."""
    tell(facts())


def facts() -> dict[str, Any]:
    """The fields of `Torch`; an import that fails is in `error`."""
    try:
        import torch
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    found: dict[str, Any] = {"version": str(torch.__version__), "cuda": torch.version.cuda}
    if torch.version.cuda is None:
        return found
    try:
        from wllm_kernels import capabilities
    except Exception as error:
        return {**found, "problem": f"wllm_kernels cannot be imported: {type(error).__name__}: {error}"}
    if not torch.cuda.is_available():
        return {**found, "problem": _why_no_gpu()}
    known = capabilities()
    code = {gpu.index: sorted(set(gpu.code.values())) for gpu in known.gpus}
    gpus = [{**_gpu(index), "code": code.get(index, [])} for index in range(torch.cuda.device_count())]
    return {**found, "problem": known.problem or "", "gpus": gpus}


def _why_no_gpu() -> str:
    from wllm_kernels import KernelError
    from wllm_kernels.device import cuda_backend

    try:
        cuda_backend.gpus()
    except KernelError as error:
        return str(error)
    return ""


def _gpu(index: int) -> dict[str, Any]:
    import torch

    from wllm_kernels import KernelError, check_gpu

    name = f"GPU {index}"
    try:
        name = torch.cuda.get_device_name(index)
        check_gpu(torch.device("cuda", index))
    except KernelError as error:
        return {"name": name, "problem": str(error)}
    except Exception as error:  # whatever torch raises when it opens a GPU, full memory first of all
        return {"name": name, "problem": f"torch cannot use {name}: {type(error).__name__}: {error}"}
    return {"name": name, "problem": ""}


if __name__ == "__main__":
    main()
