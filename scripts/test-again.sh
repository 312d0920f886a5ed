#!/usr/bin/env bash
# Runs the tests that failed in a log of `make test` once more, one at a time. Succeeds if each of them is found and passes; names
# them, because such a test depends on how busy the machine is and needs mending. A build that failed has nothing to run again.
set -euo pipefail
log=$1

# `error: 2 targets failed:`, then one line for each: "    `-p evenkeel --test it`". All crates are named again, whatever failed:
# with the same set of crates nothing is compiled anew.
mapfile -t targets < <(sed -n 's/^ *`-p [a-z0-9-]* \(.*\)`$/\1/p' "$log" | sort -u)
mapfile -t names < <(awk '/^failures:$/ { listed = 1 } /^test result/ { listed = 0 } listed && /^    [A-Za-z0-9_:]+$/ { print $1 }' "$log" | sort -u)
[ ${#targets[@]} -gt 0 ] && [ ${#names[@]} -gt 0 ] || {
    echo "test-again: no failed test is named in $log" >&2
    exit 1
}

output=$(RUST_TEST_THREADS=1 cargo test --workspace --locked ${targets[*]} -- --exact "${names[@]}" 2>&1) || {
    echo "$output"
    exit 1
}
echo "$output"
again=$(awk '/^test result: ok/ { passed += $4 } END { print passed + 0 }' <<<"$output")
[ "$again" -ge ${#names[@]} ] || {
    echo "test-again: $again of ${#names[@]} failed tests were found" >&2
    exit 1
}
echo "Failed once, and passed alone: ${names[*]}"
