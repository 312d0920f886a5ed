#!/usr/bin/env bash
# Fetches the dashboard's libraries from npm's registry, verifies them against the hashes below, and writes their minified files to
# crates/dashboard/assets/vendor. Builds need neither this script nor a network: the files are committed.
#
#   scripts/dashboard-assets.sh            write the files
#   scripts/dashboard-assets.sh --check    only verify that the committed files are those of the packages
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
vendor=$root/crates/dashboard/assets/vendor

main() {
    staging=$(mktemp -d)
    trap 'rm -rf "$staging"' EXIT
    fetch @dagrejs/dagre 1.1.8 5SEDlndt4W/LaVzPYJW+bSmSEZc9EzTf8rJ20WCKvjS5EAZAN0b+x0Yww7VMT4R3Wootkg+X9bUfUxazYw6Blw==
    place dist/dagre.min.js dagre.min.js
    place LICENSE dagre.LICENSE
    fetch uplot 1.6.32 KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==
    place dist/uPlot.iife.min.js uPlot.iife.min.js
    place dist/uPlot.min.css uPlot.min.css
    place LICENSE uPlot.LICENSE
    $check || echo "wrote $vendor"
}

# A package of this version, whose archive has this SHA-512 (base64, as npm's lock files have it).
fetch() {
    local archive hash
    archive=$staging/$(cd "$staging" && npm pack --silent "$1@$2")
    hash=$(openssl dgst -sha512 -binary "$archive" | base64 --wrap 0)
    [ "$hash" = "$3" ] || fail "$1@$2 has the hash $hash, expected $3"
    rm -rf "$staging/package"
    tar -xzf "$archive" -C "$staging"
}

place() {
    if $check; then
        cmp "$staging/package/$1" "$vendor/$2" || fail "$2 is not the package's"
    else
        install -D -m 644 "$staging/package/$1" "$vendor/$2"
    fi
}

fail() {
    echo "dashboard-assets.sh: $*" >&2
    exit 1
}

check=false
[ "${1:-}" != --check ] || check=true
main
