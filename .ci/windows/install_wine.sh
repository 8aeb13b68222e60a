#!/usr/bin/env bash
# Installs Wine and MinGW from Debian's packages, unless they are there. Where that cannot be, prints why and exits with 3.
set -euo pipefail

packages=(wine64 gcc-mingw-w64-x86-64-win32)
[ -x /usr/lib/wine/wine64 ] && command -v x86_64-w64-mingw32-gcc >/dev/null && exit
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "it takes ${packages[*]} from Debian's packages, and this is no Debian, or not its root"
  exit 3
fi
export DEBIAN_FRONTEND=noninteractive
said=$( (timeout 300 apt-get update -qq && timeout 600 apt-get install -y -qq --no-install-recommends "${packages[@]}") 2>&1) || {
  echo "apt-get cannot install ${packages[*]}: $(tail -n 1 <<<"$said")"
  exit 3
}
