#!/usr/bin/env bash
# Moves a program's debug information into a file beside it, PROGRAM.debug, where gdb, perf and addr2line look for it.
#
#   scripts/strip.sh PROGRAM [MAX_BYTES]
#
# Warns if the program is larger than MAX_BYTES then.
#
# Cargo keeps its own copy below target/*/deps and lays it out again when it builds, so this may be repeated.
set -euo pipefail

program=$1
max_bytes=${2:-}
if readelf --sections --wide "$program" | grep -q ' \.debug_info '; then
    "${OBJCOPY:-objcopy}" --only-keep-debug "$program" "$program.debug"
    # Beside the program and renamed: the program may run, and cargo's copy is the same file.
    "${OBJCOPY:-objcopy}" --strip-all --add-gnu-debuglink="$program.debug" "$program" "$program.stripped"
    mv "$program.stripped" "$program"
fi
bytes=$(stat --format=%s "$program")
if [ -n "$max_bytes" ] && [ "$bytes" -gt "$max_bytes" ]; then
    echo "warning: $program has $bytes bytes, more than the bar of $max_bytes" >&2
fi
