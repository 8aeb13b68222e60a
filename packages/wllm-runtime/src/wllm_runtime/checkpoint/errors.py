"""The exceptions of the checkpoint package.

CheckpointError
├── ModelNotFound            no such path, hub id or file
├── DamagedCheckpoint        a file is missing, cut short or contradicts itself
├── UnsupportedCheckpoint    sound, but of a kind that wLLM does not run
└── DownloadFailed           the hub could not give us the files
"""

from __future__ import annotations


class CheckpointError(Exception):
    """Base of all errors about model files; the message says what happened, the value seen and the fix."""


class ModelNotFound(CheckpointError):
    """Nothing is at the path or hub id that was given."""


class DamagedCheckpoint(CheckpointError):
    """A model file is missing, incomplete or inconsistent."""


class UnsupportedCheckpoint(CheckpointError):
    """The model is of a format, family or tokenizer that wLLM does not run."""


class DownloadFailed(CheckpointError):
    """A hub id could not be downloaded."""
