#!/usr/bin/env bash
# Packs a built program as a tarball and a Debian package, with the same files for the same program.
#
#   scripts/package.sh PROGRAM ARCHITECTURE [FOLDER]      (amd64 or arm64; default: target/package)
#
# Both have the program, its licence, the examples, the documentation, and completions of commands for bash, zsh and fish. Beside each
# lies a file with its SHA-256. The program has to run on this machine, or completions are left out, with a warning.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# GNU tar, dpkg-deb and gzip write the time that this names instead of the present.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}

main() {
    [ $# -ge 2 ] || fail "usage: scripts/package.sh PROGRAM amd64|arm64 [FOLDER]"
    program=$1 architecture=$2 out=${3:-$root/target/package}
    [ -f "$program" ] || fail "$program does not exist; make build builds it"
    [[ $architecture =~ ^(amd64|arm64)$ ]] || fail "unknown architecture '$architecture': expected amd64 or arm64"
    version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
    mkdir -p "$out"
    staging=$(mktemp -d)
    trap 'rm -rf "$staging"' EXIT
    umask 022
    completions
    tarball
    package
    (cd "$out" && for file in "$name.tar.gz" "$deb"; do sha256sum "$file" >"$file.sha256" && echo "$out/$file"; done)
}

completions() {
    mkdir -p "$staging/completions"
    local shell
    for shell in bash zsh fish; do
        "$program" completion "$shell" >"$staging/completions/evenkeel.$shell" 2>/dev/null || {
            echo "warning: $program does not run on this machine: the packages have no completions" >&2
            rm -rf "$staging/completions"
            return
        }
    done
}

tarball() {
    name=evenkeel-$version-linux-$architecture
    local folder=$staging/tar/$name
    mkdir -p "$folder"
    install -m 755 "$program" "$folder/evenkeel"
    cp -r "$root"/{README.md,LICENSE,CHANGELOG.md,SECURITY.md,docs,examples} "$folder"
    [ ! -d "$staging/completions" ] || cp -r "$staging/completions" "$folder"
    plain "$folder"
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=gnu \
        --directory "$staging/tar" "$name" | gzip --no-name --best >"$out/$name.tar.gz"
}

package() {
    deb=evenkeel_${version}_$architecture.deb
    local folder=$staging/deb
    install -D -m 755 "$program" "$folder/usr/bin/evenkeel"
    install -d "$folder/usr/share/doc/evenkeel"
    cp -r "$root"/{README.md,SECURITY.md,docs,examples} "$folder/usr/share/doc/evenkeel"
    gzip --no-name --best --stdout "$root/CHANGELOG.md" >"$folder/usr/share/doc/evenkeel/changelog.gz"
    {
        echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
        printf 'Upstream-Name: evenkeel\n\nFiles: *\nCopyright: the Evenkeel authors\nLicense: Apache-2.0\n'
        echo " On Debian systems the whole text is in /usr/share/common-licenses/Apache-2.0."
    } >"$folder/usr/share/doc/evenkeel/copyright"
    if [ -d "$staging/completions" ]; then
        install -D -m 644 "$staging/completions/evenkeel.bash" "$folder/usr/share/bash-completion/completions/evenkeel"
        install -D -m 644 "$staging/completions/evenkeel.zsh" "$folder/usr/share/zsh/vendor-completions/_evenkeel"
        install -D -m 644 "$staging/completions/evenkeel.fish" "$folder/usr/share/fish/vendor_completions.d/evenkeel.fish"
    fi
    plain "$folder"
    install -d "$folder/DEBIAN"
    control "$folder" >"$folder/DEBIAN/control"
    find "$folder" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --build "$folder" "$out/$deb" >/dev/null
}

# What a checkout's owner may do beyond others, and bytecode of the examples' programs, do not belong into a package.
plain() {
    find "$1" -name __pycache__ -prune -exec rm -r {} +
    chmod --recursive u=rwX,go=rX "$1"
}

# iproute2 and nftables are for `evenkeel up`; the examples' programs are Python.
control() {
    cat <<EOT
Package: evenkeel
Version: $version
Architecture: $architecture
Maintainer: Evenkeel <noreply@evenkeel.dev>
Installed-Size: $(du --summarize --apparent-size --block-size=1024 "$1/usr" | cut -f 1)
Depends: libc6 (>= 2.36), libgcc-s1
Recommends: iproute2, nftables
Suggests: python3, curl
Section: net
Priority: optional
Description: service mesh: proxy, control plane and a whole mesh on one machine
 Evenkeel takes the YAML of Istio and Kubernetes unchanged and speaks Envoy's
 xDS between its proxy and its control plane. "evenkeel up DIR" runs a mesh on
 one machine without Kubernetes.
EOT
}

fail() {
    echo "package: $*" >&2
    exit 1
}

main "$@"
