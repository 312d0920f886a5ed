"""Evenkeel in a cluster of tests: its control plane, and programs with sidecars."""
import json
import subprocess
from pathlib import Path

MANIFESTS = Path(__file__).resolve().parent / "mesh"
CHARTS = Path(__file__).resolve().parent.parent.parent / "charts"
IMAGE = "evenkeel.test/evenkeel:v1"
# Where images come from, for every chart.
IMAGES = ["--set", "global.hub=evenkeel.test", "--set", "global.tag=v1", "--set", "global.imagePullPolicy=Never"]
AGENTS = "evenkeel-cni-node"
# Programs with sidecars.
INJECTED = ["server", "client", "replicated"]


class Mesh:
    def __init__(self, cluster, program):
        self.cluster = cluster
        self.kubectl = cluster.kubectl
        self.program = Path(program).resolve()

    def evenkeel(self, *arguments, check=True):
        """Runs the program as an administrator of the cluster does, in the network of the first node."""
        network = f"--net=/proc/{self.cluster.nodes[0].pid()}/ns/net"
        command = ["nsenter", network, self.program, *arguments, "--kubeconfig", self.cluster.control_plane.kubeconfig]
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if check and result.returncode != 0:
            raise SystemExit(f"nodes: evenkeel {' '.join(map(str, arguments))}: {result.stdout[-3000:]}{result.stderr.strip()}")
        return result

    def import_image(self, image):
        for node in self.cluster.nodes:
            node.import_image(image)

    def install(self):
        self.evenkeel("install", *IMAGES, "--set", "pilot.autoscaleEnabled=false", "--timeout", "120")

    def install_cni(self):
        """Has a CNI plugin load the rules of Pods, in place of their init containers."""
        self.helm_cni("install")
        self.evenkeel("upgrade", "--yes", "--set", "pilot.cni.enabled=true", "--timeout", "120")
        self.restart_programs()

    def helm_cni(self, command, *values):
        self.cluster.helm(command, "cni", CHARTS / "cni", "--namespace", "istio-system", *IMAGES, *values)
        self.wait_for_agents()

    def remove_cni(self):
        self.cluster.helm("uninstall", "cni", "--namespace", "istio-system", "--wait")
        # Helm waits for the DaemonSet, and not for its Pods.
        self.kubectl("-n", "istio-system", "wait", "--for=delete", "pod", "-l", f"app={AGENTS}", "--timeout=60s")

    def wait_for_agents(self):
        self.kubectl("-n", "istio-system", "rollout", "status", f"daemonset/{AGENTS}", "--timeout=90s")

    def restart_programs(self, names=INJECTED):
        for name in names:
            self.kubectl("-n", "mesh", "rollout", "restart", f"deployment/{name}")
        for name in names:
            self.rollout("mesh", name)

    def manifest(self, name):
        return MANIFESTS / f"{name}.yaml"

    def pods(self, namespace, name):
        return json.loads(self.kubectl("-n", namespace, "get", "pods", "-l", f"app={name}", "-o", "json").stdout)["items"]

    def are_ready(self, namespace, name, since=""):
        """Whether all Pods are ready, and all of their containers that go on have started since a moment."""
        found = self.pods(namespace, name)
        return bool(found) and all(is_ready(pod) and all(start >= since for start in starts(pod)) for pod in found)

    def kill(self, namespace, name, container, count=None):
        """Ends a container of each Pod, or of the first ones, by SIGKILL."""
        for pod in self.pods(namespace, name)[:count]:
            node = next(node for node in self.cluster.nodes if node.name == pod["spec"]["nodeName"])
            node.run("ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container_id(pod, container))

    def apply(self, document):
        self.kubectl("apply", "-f", "-", input=json.dumps(document))

    def start_programs(self):
        self.kubectl("apply", "-f", MANIFESTS / "programs.yaml")
        for namespace, name in [*(("mesh", name) for name in INJECTED), ("default", "outsider")]:
            self.rollout(namespace, name)

    def rollout(self, namespace, name, seconds=90):
        result = self.kubectl("-n", namespace, "rollout", "status", f"deployment/{name}", f"--timeout={seconds}s", check=False)
        if result.returncode != 0:
            raise SystemExit(f"nodes: deployment {namespace}/{name} does not start: {result.stderr.strip()}\n{self.describe(namespace, name)}")

    def describe(self, namespace, name):
        pods = self.kubectl("-n", namespace, "describe", "pods", "-l", f"app={name}", check=False).stdout
        logs = self.kubectl("-n", namespace, "logs", "-l", f"app={name}", "--all-containers", "--tail=20", "--prefix", check=False)
        return f"{pods[-3000:]}\n{logs.stdout[-4000:]}{logs.stderr}"

    def pod(self, namespace, name):
        """A running Pod of a Deployment: its name and address."""
        pods = self.pods(namespace, name)
        pod = next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and "podIP" in pod["status"]), None)
        if not pod:
            raise SystemExit(f"nodes: {namespace} has no Pod of {name}: {self.describe(namespace, name)}")
        return pod["metadata"]["name"], pod["status"]["podIP"]

    def call(self, namespace, name, url):
        """What a program gets: standard output, or the error."""
        result = self.kubectl("-n", namespace, "exec", f"deployment/{name}", "-c", "echo", "--", "echo", "get", url, check=False)
        return result.stdout + result.stderr

    def container(self, namespace, name):
        """The id of the program's container, as containerd knows it."""
        pod = json.loads(self.kubectl("-n", namespace, "get", "pod", self.pod(namespace, name)[0], "-o", "json").stdout)
        return container_id(pod, "echo")


def containers(pod):
    """What is known of the containers that go on."""
    status = pod["status"]
    return [*status.get("containerStatuses", []), *(found for found in status.get("initContainerStatuses", []) if found["name"] == "istio-proxy")]


def container_id(pod, name):
    return next(found["containerID"] for found in containers(pod) if found["name"] == name).removeprefix("containerd://")


def is_ready(pod):
    return "deletionTimestamp" not in pod["metadata"] and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in pod["status"].get("conditions", []))


def starts(pod):
    return [found["state"].get("running", {}).get("startedAt", "") for found in containers(pod)]
