#!/usr/bin/env bash
# For RUSTC_WRAPPER, in release builds: compiles with symbol names that do not depend on a crate's dependencies.
#
# Cargo hashes a crate's features, its profile and all of its dependencies into the names of its functions. The recorded profile and the
# recorded order go by names (crates/evenkeel/default.*), so with any other dependency they would fit no function of the crates above it.
# The name and version of the package are enough to tell crates apart; the compiler adds the crate's name and its own version.
#
#   scripts/rustc-named.sh RUSTC ARGUMENTS...
set -euo pipefail

arguments=()
for argument in "$@"; do
    case $argument in
        metadata=*) argument=metadata=$CARGO_PKG_NAME-$CARGO_PKG_VERSION ;;
    esac
    arguments+=("$argument")
done
exec "${arguments[@]}"
