"""The exceptions of wllm-runtime.

RuntimeLibraryError
├── ConfigError (ValueError)     an engine setting that cannot be met
├── UnsupportedModel             a model that this version does not run
├── WeightsError                 tensors missing, unexpected or of the wrong shape
├── OutOfMemory                  the model or its KV cache does not fit
└── StoreError                   a model on disk that is not there, or not wLLM's to delete
"""

from __future__ import annotations


class RuntimeLibraryError(Exception):
    """Base of all errors of this package."""


class ConfigError(RuntimeLibraryError, ValueError):
    """An engine setting that cannot be met; the message names the setting, its value and the fix."""


class UnsupportedModel(RuntimeLibraryError):
    """A model architecture or option that this version does not run."""


class WeightsError(RuntimeLibraryError):
    """The checkpoint's tensors do not fit the model its config describes."""


class OutOfMemory(RuntimeLibraryError):
    """The model or its KV cache does not fit into memory."""


class StoreError(RuntimeLibraryError):
    """No model on this disk has the name, or it is not wLLM's to delete."""
