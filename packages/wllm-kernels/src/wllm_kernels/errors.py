"""The exceptions of wllm-kernels.

KernelError
└── InvalidArgument (ValueError)    a tensor or option that an op cannot work with
"""

from __future__ import annotations


class KernelError(Exception):
    """Base of all errors of this package."""


class InvalidArgument(KernelError, ValueError):
    """An argument has a shape, dtype or value that the op does not accept; the message says which it takes."""
