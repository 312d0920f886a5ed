#!/usr/bin/env bash
# Warns if the recorded order of functions, and with it the recorded profile, is of another build: symbol names contain hashes that change
# with the compiler, and without scripts/rustc-named.sh with the dependencies.
#
#   scripts/fits.sh FILE      a program, or its debug information, with symbols
set -euo pipefail

order=$(dirname "${BASH_SOURCE[0]}")/../crates/evenkeel/default.order
# What is compiled for other machines, or without the record, has nothing to fit.
[ -f "$order" ] && [ -f "$1" ] && [ "$(uname -m)" = x86_64 ] || exit 0
recorded=$(grep -cv '^#' "$order")
found=$(nm "$1" 2>/dev/null | awk '{ print $NF }' | sort -u | comm -12 - <(grep -v '^#' "$order" | sort -u) | wc -l)
# Some functions are always gone: changed since, or folded into others of the same code.
[ "$found" -ge $((recorded / 2)) ] || echo "warning: $found of $recorded recorded functions are in this program, so it is compiled nearly \
as without a profile, and is slower: run 'make profile' and 'make order' (docs/performance.md)" >&2
