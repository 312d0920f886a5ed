#!/usr/bin/env bash
# Moves a program's debug information into a file beside it, PROGRAM.debug, where gdb, perf and addr2line look for it.
#
#   scripts/strip.sh PROGRAM
#
# Cargo keeps its own copy below target/*/deps and lays it out again when it builds, so this may be repeated.
set -euo pipefail

program=$1
if ! readelf --sections --wide "$program" | grep -q ' \.debug_info '; then
    exit 0
fi
objcopy --only-keep-debug "$program" "$program.debug"
# Beside the program and renamed: the program may run, and cargo's copy is the same file.
objcopy --strip-all --add-gnu-debuglink="$program.debug" "$program" "$program.stripped"
mv "$program.stripped" "$program"
