#!/usr/bin/env bash
# Packs a binary of Evenkeel as a container image.
#
#   scripts/evenkeel-image.sh BINARY OUTPUT.tar [NAME:TAG]
#
# The image has the binary with its shared libraries, `nft` and `ip` for capture rules, the roots of certificates, and the list of its
# components. It runs as user 1337, by which capture rules recognize the proxy.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -ge 2 ] || {
    echo "usage: scripts/evenkeel-image.sh BINARY OUTPUT.tar [NAME:TAG]" >&2
    exit 1
}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -1)
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$(dirname "$2")"
strip -o "$staging/evenkeel" "$1"
"$root/scripts/sbom.py" "$staging/sbom.json"
"$root/scripts/image.py" "$2" "${3:-evenkeel:$version}" --program "$staging/evenkeel" --tool nft --tool ip \
    --file /etc/ssl/certs/ca-certificates.crt=/etc/ssl/certs/ca-certificates.crt --sbom "$staging/sbom.json" --user 1337:1337
