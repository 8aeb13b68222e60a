"""The program that runs the kernels' self-check for the doctor.

Tells for each GPU one answer a check, with the fields of `CheckedKernels`, then, where all agree, one with those of
`TimedLaunches`.
"""

from __future__ import annotations

from dataclasses import asdict

from wllm.doctor.probe import tell


def main() -> None:
    """Check and time every GPU that torch sees; none is no answer."""
    import torch

    from wllm_kernels.selfcheck.checks import run_checks
    from wllm_kernels.selfcheck.timing import launch_times

    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            agree = True
            for result in run_checks():
                tell({"gpu": index, **asdict(result)})
                agree = agree and not result.error
            if agree:
                tell({"gpu": index, **asdict(launch_times())})


if __name__ == "__main__":
    main()
