#!/usr/bin/env bash
# Compares Cargo.lock with the RustSec advisory database, from a copy on this machine.
#
#   scripts/advisories.sh DIRECTORY
#
# DIRECTORY is a clone of the database, or an unpacked archive of it: a directory with `crates/NAME/RUSTSEC-….md`. No package registry
# has the database, so where Git servers cannot be reached it has to be brought along. cargo-deny takes a clone that it has fetched
# itself: this gives it one, made of the directory.
set -euo pipefail

[ $# -eq 1 ] && [ -d "$1/crates" ] || {
    echo "usage: scripts/advisories.sh DIRECTORY (a copy of the RustSec advisory database, with the folder crates/)" >&2
    exit 2
}
database=$(cd "$1" && pwd)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A clone of one commit.
origin=$work/origin
mkdir "$origin"
cp -R "$database/crates" "$origin/"
for part in "$database"/rust "$database"/*.md "$database"/*.toml; do
    [ -e "$part" ] && cp -R "$part" "$origin/"
done
git -C "$origin" init --quiet
git -C "$origin" add .
git -C "$origin" -c user.name=advisories -c user.email=advisories@localhost commit --quiet --message "the database"

cp "$root/deny.toml" "$work/deny.toml"
cat >>"$work/deny.toml" <<END

[advisories]
db-path = "$work/db"
db-urls = ["file://$origin"]
yanked = "allow"
unmaintained = "workspace"
END
cd "$root"
"$root/target/tools/bin/cargo-deny" --locked check --config "$work/deny.toml" advisories
