"""The installed version of this package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """The version, or "unknown" when the source tree runs without being installed."""
    try:
        return version("wllm-api")
    except PackageNotFoundError:
        return "unknown"
