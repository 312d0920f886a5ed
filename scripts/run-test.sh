#!/usr/bin/env bash
# Runs a test program as cargo's runner (see the Makefile). The tests of most crates load a core at most, and run side by side. Those
# listed here start proxies and meshes that load every core, and hold what they see against limits that a starved worker misses:
# one test at a time. The tests of the proxy and of the whole program wait more than they compute: two at a time.
set -euo pipefail

package=${CARGO_PKG_NAME#evenkeel-}
# With these, .ci/run runs the tests of one package beside those of all others.
[ "${ONLY_TESTS_OF:-$package}" = "$package" ] && [ "${NO_TESTS_OF:-}" != "$package" ] || exit 0

case $package in
    evenkeel | proxy) export RUST_TEST_THREADS=2 ;;
    agent | bench | control | lab | local | upstream) export RUST_TEST_THREADS=1 ;;
esac
exec "$@"
