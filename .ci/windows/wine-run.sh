#!/usr/bin/env bash
# Runs a Windows program with Wine: wine-run PROGRAM ARGUMENT...; with --stop, ends Wine's own processes. Started with
# pipes or a terminal the program takes this process over: its id is the program's, and SIGINT comes as Ctrl+C.
export WINEPREFIX='@PREFIX@' WINEARCH=win64 WINEDEBUG=${WINEDEBUG:--all}
overrides="mscoree,mshtml,winedbg.exe="  # nothing asks a person, and a crash ends at once
overrides+=";vcruntime140,vcruntime140_1,vcruntime140_threads,msvcp140,msvcp140_1,msvcp140_2,msvcp140_atomic_wait,concrt140=n,b"
export WINEDLLOVERRIDES=$overrides
export KMP_AFFINITY=${KMP_AFFINITY:-disabled}  # Wine 8 lacks what OpenMP asks about NUMA nodes
unset DISPLAY
# uv compiles nothing: what is imported once must be kept, or each start reads all sources of torch and transformers.
unset PYTHONDONTWRITEBYTECODE
server=/usr/lib/wine/wineserver64
[ "${1:-}" = --stop ] && exec $server -k
# Wine's services would inherit the first caller's pipes and keep them open: they are started on their own, once, and end
# 120 s after the last program.
if $server -p120 </dev/null >/dev/null 2>&1; then
  @WINE@ cmd /c exit </dev/null >/dev/null 2>&1
fi
# Wine's python.exe cannot use a regular file as a standard stream: those go through pipes.
[ -f /dev/fd/0 ] && exec < <(exec cat)
if [ -f /dev/fd/1 ] || [ -f /dev/fd/2 ]; then
  pipe=$(mktemp -u)
  mkfifo "$pipe.1" "$pipe.2"
  cat <"$pipe.1" &
  cat <"$pipe.2" >&2 &
  exec 8>"$pipe.1" 9>"$pipe.2"
  rm -f "$pipe.1" "$pipe.2"
  trap : INT
  @WINE@ "$@" >&8 2>&9 8>&- 9>&-
  status=$?
  exec 8>&- 9>&-
  wait
  exit $status
fi
exec @WINE@ "$@"
