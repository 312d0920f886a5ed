"""Figures of a cluster with the mesh, printed and not asserted: they depend on the machine, and on the build."""
import json
import statistics
import time

REPEATS = 20


def report(mesh):
    """How much later a Pod of the mesh is ready than the same one without a sidecar, what the plugin adds, and how long checks take."""
    plain, injected = [], []
    for number in range(REPEATS):
        plain.append(seconds_to_ready(mesh, "default", number))
        injected.append(seconds_to_ready(mesh, "mesh", number))
    print(f"a Pod is ready: {describe(plain)}; with a sidecar: {describe(injected)}; "
          f"medians differ by {(statistics.median(injected) - statistics.median(plain)) * 1000:.0f} ms")
    begin = time.monotonic()
    result = mesh.evenkeel("check", check=False)
    print(f"evenkeel check: {time.monotonic() - begin:.1f} s, exit code {result.returncode}")


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
