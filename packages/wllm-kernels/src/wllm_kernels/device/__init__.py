"""The ops as launches of device code: what runs on CUDA. One module an op, with the signature of its reference.

`kernel` is what those modules use; `backend`, `code` and `driver` load and launch on CUDA.
"""

from __future__ import annotations

from wllm_kernels.device.backend import CudaBackend
from wllm_kernels.device.kernel import backends

cuda_backend = CudaBackend()
backends.register("cuda", cuda_backend)
