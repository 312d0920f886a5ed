"""Figures of a cluster with the mesh, printed and not asserted: they depend on the machine, and on the build."""
import json
import os
import statistics
import time

from cnitool import CONFIGURATIONS, network
from node import CONFLIST

# A folder of network configurations without the plugin.
WITHOUT = "/run/without-plugin"
REPEATS = int(os.environ.get("REPEATS", "20"))


def report(mesh):
    """How much later a Pod of the mesh is ready than the same one without a sidecar, what the plugin adds, and how long checks take."""
    plain, injected = [], []
    for number in range(REPEATS):
        plain.append(seconds_to_ready(mesh, "default", number))
        injected.append(seconds_to_ready(mesh, "mesh", number))
    print(f"a Pod is ready: {describe(plain)}; with a sidecar: {describe(injected)}; "
          f"medians differ by {(statistics.median(injected) - statistics.median(plain)) * 1000:.0f} ms")
    report_plugin(mesh)
    begin = time.monotonic()
    result = mesh.evenkeel("check", check=False)
    print(f"evenkeel check: {time.monotonic() - begin:.1f} s, exit code {result.returncode}")


def report_plugin(mesh):
    """What the plugin adds to the time in which a Pod's network is made; nothing is reported without it."""
    node = mesh.cluster.nodes[1]
    listed = json.loads(node.run("cat", CONFLIST).stdout)
    if [plugin["type"] for plugin in listed["plugins"]] == ["bridge"]:
        return
    node.run("mkdir", "-p", WITHOUT)
    node.write(f"{WITHOUT}/10-bridge.conflist", json.dumps({**listed, "plugins": listed["plugins"][:1]}))
    pod = mesh.pod("mesh", "server")[0]
    medians = {}
    for folder in [CONFIGURATIONS, WITHOUT]:
        taken = []
        for _ in range(REPEATS):
            with network(node, pod, folder) as made:
                begin = time.monotonic()
                made.ask("add")
                taken.append(time.monotonic() - begin)
        medians[folder] = statistics.median(taken) * 1000
    node.run("rm", "-r", WITHOUT)
    print(f"a Pod's network is made in {medians[CONFIGURATIONS]:.0f} ms (median), without the plugin in {medians[WITHOUT]:.0f} ms")


def describe(values):
    ordered = sorted(values)
    return f"median {statistics.median(values):.2f} s ({ordered[0]:.2f} to {ordered[-1]:.2f}, {len(values)} Pods)"


def seconds_to_ready(mesh, namespace, number):
    """From the answer of the API server to a Pod's creation, until a watch sees it ready."""
    name = f"figure-{number}"
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": {"app": "figure"}},
        "spec": {"nodeName": "node2", "terminationGracePeriodSeconds": 0,
                 "containers": [{"name": "echo", "image": "evenkeel.test/echo:1", "imagePullPolicy": "Never"}]},
    }
    mesh.kubectl("create", "-f", "-", input=json.dumps(pod))
    begin = time.monotonic()
    mesh.kubectl("-n", namespace, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    took = time.monotonic() - begin
    mesh.kubectl("-n", namespace, "delete", "pod", name, "--now")
    return took
