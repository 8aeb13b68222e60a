"""Give numpy the complex functions that Wine's C runtime only names: `complex_math.py PYTHON_DIR COMPILER`.

numpy's modules in that folder are pointed at a DLL that has these functions, from MinGW, and forwards all others.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pefile

THEIRS, OURS = b"api-ms-win-crt-math-l1-1-0.dll\0", b"wine-shim-ucrt-math-l1-1-0.dll\0"
assert len(THEIRS) == len(OURS)  # the name is replaced in place

REAL = ("creal", "cimag", "carg", "cabs")
COMPLEX = ("conj", "cexp", "clog", "cpow", "csqrt", "csin", "ccos", "ctan", "csinh", "ccosh", "ctanh")
NAMES = {name + suffix for name in (*REAL, *COMPLEX) for suffix in ("", "f")}

# MSVC passes a complex number as a structure of two.
HEAD = """\
#include <complex.h>
typedef struct { double r, i; } D;
typedef struct { float r, i; } F;
static double _Complex d(D z) { double _Complex w; __real__ w = z.r; __imag__ w = z.i; return w; }
static float _Complex f(F z) { float _Complex w; __real__ w = z.r; __imag__ w = z.i; return w; }
static D ud(double _Complex w) { D z = {__real__ w, __imag__ w}; return z; }
static F uf(float _Complex w) { F z = {__real__ w, __imag__ w}; return z; }
"""


def redirect(module: Path) -> set[str]:
    """Point a module at our DLL if it needs one of `NAMES`; what it takes from there."""
    data = module.read_bytes()
    if THEIRS not in data and OURS not in data:
        return set()
    image = pefile.PE(data=data, fast_load=True)
    image.parse_data_directories([pefile.DIRECTORY_ENTRY["IMAGE_DIRECTORY_ENTRY_IMPORT"]])
    taken: set[str] = set()
    for library in image.DIRECTORY_ENTRY_IMPORT:
        names = {entry.name.decode() for entry in library.imports if entry.name}
        if library.dll.lower() in (THEIRS[:-1], OURS[:-1]) and names & NAMES:
            taken |= names
            module.write_bytes(data.replace(THEIRS, OURS))
    return taken


def wrapper(name: str) -> str:
    """C code of one function, with structures outside."""
    is_float = name.endswith("f") and name[:-1] in (*REAL, *COMPLEX)
    base = name[:-1] if is_float else name
    struct, real, wrap, unwrap = ("F", "float", "f", "uf") if is_float else ("D", "double", "d", "ud")
    if base in REAL:
        return f"{real} s_{name}({struct} a) {{ return {name}({wrap}(a)); }}"
    if base == "cpow":
        return f"{struct} s_{name}({struct} a, {struct} b) {{ return {unwrap}({name}({wrap}(a), {wrap}(b))); }}"
    return f"{struct} s_{name}({struct} a) {{ return {unwrap}({name}({wrap}(a))); }}"


def main(python_dir: str, compiler: str) -> None:
    """Redirect numpy in `python_dir` and build the DLL beside python.exe."""
    home = Path(python_dir)
    taken: set[str] = set()
    for module in (home / "Lib" / "site-packages" / "numpy").rglob("*.pyd"):
        taken |= redirect(module)
    with tempfile.TemporaryDirectory() as name:
        code, exports = Path(name) / "math.c", Path(name) / "math.def"
        code.write_text(HEAD + "\n".join(wrapper(each) for each in sorted(taken & NAMES)) + "\n", encoding="ascii")
        lines = (f"{each}=s_{each}" if each in NAMES else f"{each}=ucrtbase.{each}" for each in sorted(taken))
        exports.write_text("EXPORTS\n" + "\n".join(lines) + "\n", encoding="ascii")
        target = home / OURS[:-1].decode()
        flags = ["-O1", "-s", "-shared", "-static-libgcc"]
        subprocess.run([compiler, *flags, "-o", str(target), str(code), str(exports)], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
