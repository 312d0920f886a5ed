#!/usr/bin/env bash
# Builds the committed sources twice, in directories of different names, and compares the results byte for byte.
#
#   scripts/reproducible.sh [PROFILE [PACKAGE]]      (default: release evenkeel)
#
# Paths are the only thing that two builds of the same sources with the same compiler do not have in common. The compiler writes them
# into panics and debug information; it gets them mapped to names that are the same everywhere, by a wrapper: flags that Cargo knows
# of would be part of its hashes.
set -euo pipefail

profile=${1:-release}
package=${2:-evenkeel}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/reproducible.XXXXXX")
trap 'rm -rf "$work"' EXIT
export PATH=$HOME/.cargo/bin:$PATH CARGO_INCREMENTAL=0

main() {
    local first second
    first=$(build "$work/first")
    second=$(build "$work/the-second-one")
    diff <(cd "$first" && hashes) <(cd "$second" && hashes) || {
        echo "reproducible.sh: the two builds differ" >&2
        return 1
    }
    echo "two builds, same hashes:"
    (cd "$first" && hashes)
}

# Builds a copy of the sources in a directory, and prints where the results are.
build() {
    local sources=$1/sources target=$1/target
    mkdir -p "$sources" "$target"
    git -C "$root" archive HEAD | tar -x -C "$sources"
    cat >"$1/rustc" <<END
#!/usr/bin/env bash
exec $sources/scripts/rustc-named.sh "\$@" --remap-path-prefix=$sources=/evenkeel --remap-path-prefix=$target=/target --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo
END
    chmod +x "$1/rustc"
    # For aws-lc, which is C and assembly. Linkers and archivers write no dates (-D is the default of both).
    local mapped="-ffile-prefix-map=$sources=/evenkeel -ffile-prefix-map=$target=/target -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    (
        cd "$sources"
        export RUSTC_WRAPPER=$1/rustc CARGO_TARGET_DIR=$target CFLAGS=$mapped ASMFLAGS=$mapped
        RUSTFLAGS=$(flags) cargo build --profile "$profile" --locked --package "$package" >&2
    )
    echo "$target/$profile"
}

# The Makefile's flags of release builds, without paths of this directory.
flags() {
    [ "$profile" = release ] || return 0
    make --no-print-directory --silent -C "$root" release-flags
}

hashes() {
    find . -maxdepth 1 -type f \( -perm -u+x -o -name '*.rlib' \) -print0 | sort -z | xargs -0 sha256sum
}

main
