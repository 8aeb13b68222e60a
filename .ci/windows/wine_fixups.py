"""Takes from Python what Wine 8 cannot do, and what ends the process there; imported by a .pth file at every start."""

import ctypes
import errno
import os
import sys

if sys.platform == "win32":  # for mypy: elsewhere nobody imports this
    import _socket
    import _winapi

    def _symlink(src: object, dst: object, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        # Wine says that it has made the link, and has not; Windows refuses users without the right.
        raise OSError(errno.EINVAL, "A required privilege is not held by the client", src, 1314, dst)

    os.symlink = _symlink  # noqa: TID251

    # shutil.copy (from Python 3.12 on) has another way.
    vars(_winapi).pop("CopyFile2", None)

    # Wine refuses these options; clients that keep connections alive look whether Python has them.
    for _name in ("TCP_KEEPCNT", "TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        vars(_socket).pop(_name, None)

    def _getppid() -> int:
        # Python's own (from 3.13 on) takes a snapshot of the process. The last field is the parent's id.
        fields = (ctypes.c_void_p * 6)()
        ctypes.windll.ntdll.NtQueryInformationProcess(ctypes.c_void_p(-1), 0, fields, ctypes.sizeof(fields), None)
        return fields[5] or 0

    os.getppid = _getppid
