"""Whether a device still works for this process.

After a computer slept, after the GPU's driver was reset or replaced, and after a kernel went astray, every call that
concerns the GPU fails, and only a new process can use it again. The first call that fails may be any, of CUDA, cuBLAS
or the driver, and each has its own names for it. So no error is known by its name: the device is tried.
"""

from __future__ import annotations

import torch

from wllm_sched import DeviceLost


def check_device(device: torch.device) -> None:
    """Raise `DeviceLost` unless `device` still computes; waits for what it is at. A CPU always does."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
        # One that has nothing to do would not notice.
        torch.ones(1, device=device).item()
    except torch.OutOfMemoryError:
        return  # an answer, too
    except Exception as error:
        # torch says more in further lines, about debugging.
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise DeviceLost(
            f"the GPU no longer works for this process: {what}. That happens when the computer has slept, when the "
            "GPU's driver was reset (Windows does it after 2 s in one kernel) or updated, and when a kernel failed; "
            "only a new process can use it, and a server starts one by itself"
        ) from error
