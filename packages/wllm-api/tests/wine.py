"""Whether this Windows Python runs under Wine, and what that lacks."""

from __future__ import annotations

import ctypes
import sys

import pytest

WINE = sys.platform == "win32" and hasattr(ctypes.windll.ntdll, "wine_get_version")
needs_ctrl_break = pytest.mark.skipif(WINE, reason="Wine sends no CTRL_BREAK; tests/windows presses Ctrl+C there")
