#!/usr/bin/env bash
# For RUSTC_WORKSPACE_WRAPPER: compiles, and has clippy look at the same sources with the libraries that have just been built. `cargo
# clippy` would check the sources of all dependencies first. What clippy finds is an error.
#
#   scripts/rustc-and-clippy.sh RUSTC ARGUMENTS...
set -euo pipefail

"$@"

is_code=false
arguments=()
for argument in "$@"; do
    case $argument in
        --emit=*) is_code=true ;;
        # Messages about files are for cargo, which has had them.
        --json=*) arguments+=("${argument/,artifacts/}") ;;
        *) arguments+=("$argument") ;;
    esac
done
# Cargo's questions to the compiler have no code; generated code is as it is.
$is_code && [ "${CARGO_PKG_NAME:-}" != evenkeel-envoy-api ] || exit 0

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
clippy-driver "${arguments[@]}" "--emit=metadata=$out/clippy.rmeta" --deny=warnings
