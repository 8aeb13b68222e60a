"""Takes from Python what ends the process under Wine 8; imported by a .pth file at every start."""

import ctypes
import os
import sys

if sys.platform == "win32":  # for mypy: elsewhere nobody imports this
    import _winapi

    # shutil.copy (from Python 3.12 on) has another way.
    vars(_winapi).pop("CopyFile2", None)

    def _getppid() -> int:
        # Python's own (from 3.13 on) takes a snapshot of the process. The last field is the parent's id.
        fields = (ctypes.c_void_p * 6)()
        ctypes.windll.ntdll.NtQueryInformationProcess(ctypes.c_void_p(-1), 0, fields, ctypes.sizeof(fields), None)
        return fields[5] or 0

    os.getppid = _getppid
