#!/usr/bin/env python3
"""Tests Pods in the mesh on a real Kubernetes with two nodes, and leaves nothing behind.

    scripts/kubernetes/test.py --program BINARY [--folder DIR] [--long] [--figures] [--keep | --again] [NAME]...

BINARY is a build of `evenkeel`. Without NAMEs every check runs, and with --long those of operations.py, too. --keep leaves the cluster
running, for scripts/kubernetes/cluster.py; --again uses such a one with what is installed in it, and leaves it running. --figures prints how
long things take, before the checks.
"""
import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cluster import ROOT, SETTINGS, Cluster, own_images
from expect import Failure, eventually, expect
from figures import report
from load import Load
from mesh import AGENTS, IMAGE, Mesh
from node import hierarchies
from operations import OPERATIONS, remember

SERVER = "http://server/"
# How long a rollout may take, and an outage of the API server lasts.
ROLLOUT_SECONDS = 90
OUTAGE_SECONDS = 10


def pods_have_sidecars(mesh):
    for name in ["server", "client"]:
        pod = json.loads(mesh.kubectl("-n", "mesh", "get", "pod", mesh.pod("mesh", name)[0], "-o", "json").stdout)
        names = [container["name"] for container in pod["spec"].get("initContainers", [])]
        expect("the init containers", names, lambda names: names[-1:] == ["istio-proxy"])
        nodes = pod["spec"]["nodeName"]
        expect("the node", nodes, lambda node: node == {"server": "node2", "client": "node1"}[name])


def calls_are_authenticated(mesh):
    """The server sees the identity of the client's service account, whatever name the client uses."""
    address = mesh.pod("mesh", "server")[1]
    names = ["server", "server.mesh", "server.mesh.svc.cluster.local", "headless:8080", f"{address}:8080"]
    for name in names:
        answer = mesh.call("mesh", "client", f"http://{name}/")
        expect(f"a call of {name}", answer, lambda answer: answer.startswith("200 ") and "spiffe://cluster.local/ns/mesh/sa/client" in answer)


def strict_refuses_plain_text(mesh):
    address = mesh.pod("mesh", "server")[1]
    for name in ["server.mesh", f"{address}:8080"]:
        answer = mesh.call("default", "outsider", f"http://{name}/")
        expect(f"a call of {name} from outside of the mesh", answer, lambda answer: "200 " not in answer)


def a_rollout_loses_no_request(mesh):
    with Load(mesh) as load:
        mesh.kubectl("-n", "mesh", "rollout", "restart", "deployment/replicated")
        mesh.rollout("mesh", "replicated", seconds=ROLLOUT_SECONDS)
    return load.summary()


def the_mesh_works_without_the_api_server(mesh):
    first = mesh.cluster.nodes[0]
    container = mesh.container("mesh", "client")
    first.kill("kube-apiserver")
    try:
        end = time.monotonic() + OUTAGE_SECONDS
        while time.monotonic() < end:
            expect("a call", first.call(container, SERVER), lambda answer: answer.startswith("200 "))
    finally:
        mesh.cluster.control_plane.start_api_server()
    mesh.cluster.wait_for("the nodes", lambda: all(node.is_ready() for node in mesh.cluster.nodes))


def the_mesh_works_without_its_control_plane(mesh):
    mesh.kubectl("-n", "istio-system", "delete", "pod", "-l", "app=istiod", "--force", "--grace-period=0")
    expect("a call", mesh.call("mesh", "client", SERVER), lambda answer: answer.startswith("200 "))
    mesh.rollout("istio-system", "istiod")
    # A new Pod is injected, gets its certificate and is reached.
    mesh.kubectl("-n", "mesh", "rollout", "restart", "deployment/server")
    mesh.rollout("mesh", "server", seconds=ROLLOUT_SECONDS)
    # The client's sidecar learns of it when it is connected again, which takes seconds.
    took = eventually(lambda: calls_are_authenticated(mesh))
    return f"{took:.1f} s until all names reach a new Pod"


def a_cni_plugin_loads_the_rules(mesh):
    """No container of a Pod has privileges then; Pods without a sidecar start as before."""
    mesh.install_cni()
    pod = json.loads(mesh.kubectl("-n", "mesh", "get", "pod", mesh.pod("mesh", "server")[0], "-o", "json").stdout)
    names = [container["name"] for container in pod["spec"]["initContainers"]]
    expect("the init containers", names, lambda names: names == ["istio-validation", "istio-proxy"])
    added = [container["securityContext"]["capabilities"].get("add") for container in pod["spec"]["initContainers"]]
    expect("capabilities", added, lambda added: not any(added))
    calls_are_authenticated(mesh)
    strict_refuses_plain_text(mesh)
    mesh.kubectl("-n", "default", "rollout", "restart", "deployment/outsider")
    mesh.rollout("default", "outsider")


def a_pod_starts_only_with_its_rules(mesh):
    """The agent is away: a Pod of the mesh waits for it, and says so."""
    mesh.kubectl("-n", "istio-system", "patch", "daemonset", AGENTS, "--type=merge", "-p",
                 json.dumps({"spec": {"template": {"spec": {"nodeSelector": {"absent": "true"}}}}}))
    mesh.kubectl("-n", "istio-system", "wait", "--for=delete", "pod", "-l", f"app={AGENTS}", "--timeout=60s", check=False)
    for node in mesh.cluster.nodes:
        plugins = json.loads(node.run("cat", "/etc/cni/net.d/10-bridge.conflist").stdout)["plugins"]
        expect(f"the plugins of {node.name}", [plugin["type"] for plugin in plugins], lambda types: types == ["bridge"])
        found = node.run("ls", "/opt/cni/bin").stdout.split()
        expect(f"the programs of {node.name}", found, lambda found: "evenkeel-cni" not in found)
    name = mesh.pod("mesh", "server")[0]
    mesh.kubectl("-n", "mesh", "delete", "pod", name, "--wait=false")
    mesh.cluster.wait_for("a Pod that fails without its rules", lambda: "not captured" in mesh.kubectl(
        "-n", "mesh", "logs", "-l", "app=server", "-c", "istio-validation", "--tail=5", check=False).stdout)
    restore = [{"op": "remove", "path": "/spec/template/spec/nodeSelector/absent"}]
    mesh.kubectl("-n", "istio-system", "patch", "daemonset", AGENTS, "--type=json", "-p", json.dumps(restore))
    mesh.kubectl("-n", "istio-system", "rollout", "status", f"daemonset/{AGENTS}", "--timeout=60s")
    mesh.kubectl("-n", "mesh", "delete", "pod", "-l", "app=server", "--wait=false")
    mesh.cluster.wait_for("a new Pod", lambda: mesh.call("mesh", "client", SERVER).startswith("200 "))


QUICK = [pods_have_sidecars, calls_are_authenticated, strict_refuses_plain_text, a_rollout_loses_no_request,
         the_mesh_works_without_the_api_server, the_mesh_works_without_its_control_plane, a_cni_plugin_loads_the_rules,
         a_pod_starts_only_with_its_rules]
CHECKS = QUICK + OPERATIONS


def run(mesh, options):
    if options.figures:
        report(mesh)
    failed = 0
    tier = CHECKS if options.long else QUICK
    chosen = [check for check in CHECKS if check.__name__ in options.checks] if options.checks else tier
    for check in chosen:
        begin = time.monotonic()
        try:
            seen = check(mesh)
            verdict = f"ok, {seen}" if seen else "ok"
        except (Failure, SystemExit) as failure:
            verdict, failed = f"FAILED: {failure}", failed + 1
        print(f"{check.__name__.replace('_', ' ')}: {verdict} ({time.monotonic() - begin:.1f} s)", flush=True)
    return failed


def settings():
    return subprocess.run(["sysctl", *SETTINGS], check=True, capture_output=True, text=True).stdout


def remains(cluster, before):
    """What a cluster that has been stopped has left on the machine."""
    found = [f"cgroup {path}" for hierarchy in hierarchies() for node in cluster.nodes for path in hierarchy.glob(node.cgroup)]
    mounts = Path("/proc/mounts").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if str(cluster.folder) in line]
    found += [f"process {process}" for process in processes_of(cluster)]
    return found + ([f"settings {settings()}, before {before}"] if settings() != before else [])


def processes_of(cluster):
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if f"{cluster.folder}/node" in line]


def main():
    parser = argparse.ArgumentParser(description="Test Pods in the mesh on a real Kubernetes")
    parser.add_argument("--program", required=True)
    parser.add_argument("--folder", default=ROOT / "target/nodes")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("checks", nargs="*")
    options = parser.parse_args()
    unknown = set(options.checks) - {check.__name__ for check in CHECKS}
    if unknown:
        raise SystemExit(f"nodes: no such check: {', '.join(sorted(unknown))}; there are {', '.join(check.__name__ for check in CHECKS)}")
    if options.again:
        sys.exit(1 if run(Mesh(Cluster(options.folder, 2), options.program), options) else 0)
    before = settings()
    Cluster(options.folder).stop()
    shutil.rmtree(options.folder, ignore_errors=True)
    cluster = Cluster(options.folder, 2)
    try:
        failed = test(cluster, options)
    finally:
        if not options.keep:
            cluster.stop()
    left = [] if options.keep else remains(cluster, before)
    for line in left:
        print(f"left behind: {line}")
    sys.exit(1 if failed or left else 0)


def test(cluster, options):
    cluster.start(own_images(cluster.folder))
    image = cluster.folder / "evenkeel.tar"
    subprocess.run([ROOT / "scripts/evenkeel-image.sh", options.program, image, IMAGE], check=True)
    mesh = Mesh(cluster, options.program)
    mesh.import_image(image)
    remember(mesh)
    begin = time.monotonic()
    mesh.install()
    print(f"evenkeel install: {time.monotonic() - begin:.1f} s", flush=True)
    mesh.start_programs()
    return run(mesh, options)


if __name__ == "__main__":
    main()
