#!/usr/bin/env bash
# Records which functions a running mesh needs: crates/evenkeel/default.order (about 35 minutes on two cores; as root).
#
#   scripts/order.sh [ROUNDS]      (default: 8)
#
# The linker puts the recorded functions side by side (the Makefile's `ordered`). The kernel maps a program's code in blocks of 16
# pages around each page that is used, so functions that are spread over the program cost each proxy megabytes.
#
# A round links the program with the functions known so far in front, runs examples/capitals from a file system without read-ahead,
# takes the code from memory once the mesh has settled, and notes the function at each page fault afterwards. A page fault shows only
# the first function that is used of its page: hence the rounds, each with another layout.
#
# Functions that have other names since stay where the linker puts them, so it need not be recorded for every change.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rounds=${1:-8}
target=${CARGO_TARGET_DIR:-$root/target}
work=$target/order
recorded=$root/crates/evenkeel/default.order
group=/sys/fs/cgroup/memory/evenkeel-order
[ -d /sys/fs/cgroup/memory ] || group=/sys/fs/cgroup/evenkeel-order
export PATH=$HOME/.cargo/bin:$PATH:/usr/sbin:/sbin

main() {
    cd "$root"
    [ "$(id -u)" -eq 0 ] || { echo "order.sh: run it as root: it mounts a file system and makes a control group" >&2; exit 1; }
    scripts/setup.sh demo order
    mkdir -p "$work" "$group"
    trap clean EXIT
    build
    file_system
    grep -v '^#' "$recorded" >"$work/known" 2>/dev/null || true
    local round
    for round in $(seq "$rounds"); do
        link "$round"
        run
        note "$round"
    done
    write
}

clean() {
    [ -z "${mesh:-}" ] || kill -INT "$mesh" 2>/dev/null || true
    wait
    mountpoint -q "$work/mount" && umount "$work/mount"
    rmdir "$group" 2>/dev/null || true
}

# Keeps the objects that the program is linked from, and how. The libraries are those of release builds, which are compiled once.
build() {
    make --silent --no-print-directory link-args target="$target" | grep -m 1 '"-o" ' |
        sed -e "s,\"-o\" \"[^\"]*\",\"-o\" \"$work/program\"," -e 's,"-Wl\,--symbol-ordering-file=[^"]*",,' >"$work/link"
}

file_system() {
    rm -f "$work/image"
    truncate --size 1G "$work/image"
    mkfs.ext4 -q "$work/image"
    mkdir -p "$work/mount"
    mount -o loop "$work/image" "$work/mount"
    local device
    device=$(basename "$(findmnt --noheadings --output SOURCE "$work/mount")")
    echo 0 >"/sys/block/$device/bdi/read_ahead_kb"
}

link() {
    sort --random-sort --random-source=<(yes "$1") "$work/known" >"$work/first"
    bash -c "$(cat "$work/link") -Wl,--symbol-ordering-file=$work/first -Wl,--no-warn-symbol-ordering"
    cp "$work/program" "$work/mount/evenkeel"
    # Clean pages can be taken from memory, and are then charged to the group of whom reads them again.
    sync
    echo 1 >/proc/sys/vm/drop_caches
}

run() {
    rm -rf "$work/state"
    bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' in-group "$group" \
        "$work/mount/evenkeel" up "$root/examples/capitals" --state "$work/state" >"$work/log" 2>&1 &
    mesh=$!
    sleep 13 # The mesh is up, and has let go of what starting needed.
    reclaim
    local process proxies recorder url
    proxies=$(for process in $(cat "$group/cgroup.procs"); do
        if tr '\0' ' ' <"/proc/$process/cmdline" | grep -q ' agent '; then echo "$process"; fi
    done | paste --serial --delimiters ,)
    perf record --quiet --event page-faults --count 1 --pid "$proxies" --output "$work/faults" -- sleep 22 >"$work/perf.log" 2>&1 &
    recorder=$!
    sleep 0.5
    reclaim
    url=$(grep --only-matching --max-count 1 '^ *http://127.0.0.1:[0-9]*' "$work/log" | tr -d ' ')
    for _ in $(seq 18); do
        curl --silent --max-time 5 --output /dev/null "$url/" || true
        sleep 1
    done
    wait "$recorder"
    kill -INT "$mesh"
    wait "$mesh" || true
    mesh=
}

# Takes the pages of the program from the group's processes. The second version of control groups wants an amount, and fails when it
# cannot reclaim all of it.
reclaim() {
    if [ -e "$group/memory.force_empty" ]; then
        echo 0 >"$group/memory.force_empty"
    else
        echo 1G >"$group/memory.reclaim" 2>/dev/null || true
    fi
}

note() {
    local before
    before=$(wc -l <"$work/known")
    perf script --no-demangle --input "$work/faults" --fields ip,sym,dso 2>/dev/null |
        awk '$NF ~ /\/mount\/evenkeel\)$/ && $2 ~ /^[A-Za-z_]/ { print $2 }' |
        sort --unique --output "$work/found"
    sort --unique "$work/known" "$work/found" --output "$work/known"
    printf 'round %s: %s functions, %s of them new\n' "$1" "$(wc -l <"$work/known")" "$(($(wc -l <"$work/known") - before))"
}

# First what the profile counts, from the most frequent on: a request then runs through few pages. Names that end in `.llvm.NUMBER`
# are of one build only, and functions that the program no longer has are left out.
write() {
    local profdata
    profdata=$(rustc --print target-libdir)/../bin/llvm-profdata
    nm "$work/program" | awk '{ print $NF }' | sort --unique >"$work/there"
    grep -v '\.llvm\.' "$work/known" | sort --unique | comm -12 - "$work/there" >"$work/names"
    "$profdata" show --topn=100000 "$root/crates/evenkeel/default.profdata" |
        sed -n 's/^ *\(.*;\)\{0,1\}\([^;]*\), max count = .*/\2/p' | awk '!seen[$0]++' >"$work/counted"
    {
        echo '# Functions that a running mesh needs. Recorded by scripts/order.sh; do not edit.'
        awk 'NR == FNR { known[$0]; next } $0 in known' "$work/names" "$work/counted"
        awk 'NR == FNR { counted[$0]; next } !($0 in counted)' "$work/counted" "$work/names"
    } >"$recorded"
    printf 'recorded: %s (%s functions)\n' "${recorded#"$root/"}" "$(grep -vc '^#' "$recorded")"
}

main
