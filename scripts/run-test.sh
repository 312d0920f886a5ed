#!/usr/bin/env bash
# Runs a test program as cargo's runner (see the Makefile). The tests of most crates load a core at most, and run side by side. Those
# listed here start proxies and meshes that load every core, and hold what they see against limits that a starved worker misses:
# one test at a time. The tests of the agent, the control plane, the proxy and the whole program wait more than they compute: two or
# three at a time.
set -euo pipefail

case ${CARGO_PKG_NAME#evenkeel-} in
    control) export RUST_TEST_THREADS=3 ;;
    agent | evenkeel | proxy) export RUST_TEST_THREADS=2 ;;
    bench | lab | local | upstream) export RUST_TEST_THREADS=1 ;;
esac
exec "$@"
