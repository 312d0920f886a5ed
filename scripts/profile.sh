#!/usr/bin/env bash
# Records what release builds are optimized for: crates/evenkeel/default.profdata (about 25 minutes on two cores).
#
#   scripts/profile.sh
#
# Builds the program with counters in it, lets it do what `make bench` and `make bench-control` have it do, and keeps how often
# each branch was taken. Functions that have changed since are compiled as without a profile, so it need not be recorded for
# every change; do it when `make bench` shows that it has aged, and under a new compiler, whose symbols have other names. The names do not
# depend on libraries (scripts/rustc-named.sh).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
counted=$target/profile
recorded=$root/crates/evenkeel/default.profdata
export PATH=$HOME/.cargo/bin:$PATH

main() {
    cd "$root"
    scripts/setup.sh bench profile
    build
    train
    merge
}

# Build scripts, and the programs that make the load, carry counters too; what they count is of no use.
export LLVM_PROFILE_FILE=/dev/null

# Counters are put into each crate before the program is linked, so they are the same without optimization at that time, which would take
# a third of this.
build() {
    RUSTC_WRAPPER=$root/scripts/rustc-named.sh RUSTFLAGS="-Cprofile-generate" \
        cargo build --release --locked --bin evenkeel --bin evenkeel-bench --bin evenkeel-lab --target-dir "$counted" \
        --config 'profile.release.lto="off"'
}

train() {
    rm -rf "$counted/counts" "$counted/run"
    mkdir -p "$counted/counts" "$counted/run"
    wrap >"$counted/run/evenkeel"
    chmod +x "$counted/run/evenkeel"
    # It measures the program beside it.
    ln "$counted/release/evenkeel-bench" "$counted/run/evenkeel-bench"
    "$counted/run/evenkeel-bench" run --peers evenkeel --rounds 1 --only hop,pair,http2,tcp,handshakes,policy,change \
        --out "$counted/results"
    local lab=("$counted/release/evenkeel-lab") of=(--program "$counted/run/evenkeel" --services 700 --proxies 100)
    "${lab[@]}" services "${of[@]}" --scope learned --changes 50
    "${lab[@]}" services "${of[@]}" --scope full --changes 50
    "${lab[@]}" churn "${of[@]}"
    # Until the last has written its counts, at its end.
    flock "$counted/run/lock" true
}

# A program in the place of the one with counters. Benchmarks end what they started without a chance to write anything; the
# kernel then tells its child to end, which does that in order. The lock is held for as long as the child runs.
wrap() {
    cat <<END
#!/usr/bin/env bash
exec 9>"$counted/run/lock"
flock --shared 9
EVENKEEL_NO_CONFINEMENT=1 LLVM_PROFILE_FILE="$counted/counts/%p.profraw" setpriv --pdeathsig TERM "$counted/release/evenkeel" "\$@" &
wait \$!
END
}

merge() {
    local profdata
    profdata=$(rustc --print target-libdir)/../bin/llvm-profdata
    "$profdata" merge --sparse --output "$recorded" "$counted"/counts/*.profraw
    printf 'recorded: %s (%s bytes)\n' "${recorded#"$root/"}" "$(stat -c %s "$recorded")"
}

main
