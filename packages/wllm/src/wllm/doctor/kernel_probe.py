"""The program that runs the kernels' self-check for the doctor. Tells one answer for each check on each GPU.

The fields of an answer are those of `CheckedKernels`.
"""

from __future__ import annotations

from dataclasses import asdict

from wllm.doctor.probe import tell


def main() -> None:
    """Check every GPU that torch sees; none is no answer."""
    import torch

    from wllm_kernels.selfcheck.checks import run_checks

    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            for result in run_checks():
                tell({"gpu": index, **asdict(result)})


if __name__ == "__main__":
    main()
