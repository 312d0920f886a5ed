#!/usr/bin/env bash
# Runs a test program as cargo's runner (see the Makefile). The tests of most crates load a core at most, and run side by side. Those
# listed here start proxies and meshes that load every core, and hold what they see against limits that a starved worker misses:
# one test at a time. The tests of the proxy and of the whole program wait more than they compute: two at a time.
set -euo pipefail

case ${CARGO_PKG_NAME#evenkeel-} in
    evenkeel | proxy) export RUST_TEST_THREADS=2 ;;
    agent | bench | control | lab | local | upstream) export RUST_TEST_THREADS=1 ;;
esac
exec "$@"
