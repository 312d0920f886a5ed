#!/usr/bin/env python3
"""A real Kubernetes cluster on this machine: kubelet, containerd, runc, kube-proxy and CoreDNS on nodes in namespaces without an uplink.

    scripts/kubernetes/cluster.py start FOLDER [--nodes 2]      (needs root, and what scripts/setup.sh nodes obtains)
    scripts/kubernetes/cluster.py kubectl FOLDER ARGUMENTS...
    scripts/kubernetes/cluster.py load FOLDER IMAGE.tar...      (imports images into all nodes)
    scripts/kubernetes/cluster.py stop FOLDER

FOLDER gets everything that the cluster writes; FOLDER/nodeN/logs has the logs of its processes.
"""
import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from control_plane import ControlPlane
from node import Node

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = ROOT / "target/tools/kubernetes"
MAX_NODES = 9
# Settings of the whole machine that kubelet and kube-proxy change.
SETTINGS = ["vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops", "kernel.keys.root_maxkeys",
            "kernel.keys.root_maxbytes"]


class Cluster:
    def __init__(self, folder, nodes=None):
        self.folder = Path(folder).resolve()
        count = nodes or len(list(self.folder.glob("node[1-9]"))) or 1
        self.nodes = [Node(self, number) for number in range(1, count + 1)]
        self.control_plane = ControlPlane(self.nodes[0])
        self.spawned = {}

    def start(self, images):
        if any(node.pid() for node in self.nodes):
            raise SystemExit(f"nodes: a cluster runs in {self.folder}: scripts/kubernetes/cluster.py stop {self.folder}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.save_settings()
        for node in self.nodes:
            node.create()
            node.connect()
            node.start_containerd(images)
        self.control_plane.start()
        for node in self.nodes:
            node.start_kubelet()
        # Without it the API server refuses Pods.
        self.wait_for("the default service account", lambda: self.kubectl("get", "serviceaccount", "default", check=False).stdout)
        self.kubectl("apply", "-f", HERE / "coredns.yaml")
        self.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")

    def stop(self):
        for node in reversed(self.nodes):
            node.destroy()
        self.restore_settings()

    def save_settings(self):
        values = subprocess.run(["sysctl", *SETTINGS], check=True, capture_output=True, text=True).stdout
        saved = self.folder / "settings"
        if not saved.exists():
            saved.write_text(values)

    def restore_settings(self):
        saved = self.folder / "settings"
        if saved.exists():
            subprocess.run(["sysctl", "-qp", saved], check=True)
            saved.unlink()

    def kubectl(self, *arguments, check=True, input=None):
        """Runs kubectl in the network of the first node, with the files of the machine."""
        result = subprocess.run(self.kubectl_command(arguments), capture_output=True, text=True, input=input)
        if check and result.returncode != 0:
            raise SystemExit(f"nodes: kubectl {' '.join(map(str, arguments))}: {result.stderr.strip()}")
        return result

    def start_kubectl(self, *arguments):
        return subprocess.Popen(self.kubectl_command(arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def kubectl_command(self, arguments):
        network = f"--net=/proc/{self.nodes[0].pid()}/ns/net"
        command = ["nsenter", network, self.program("kubectl"), "--kubeconfig", self.control_plane.kubeconfig, *arguments]
        return list(map(str, command))

    def helm(self, *arguments):
        """Runs helm in the network of the first node."""
        network = f"--net=/proc/{self.nodes[0].pid()}/ns/net"
        command = ["nsenter", network, self.program("helm"), "--kubeconfig", self.control_plane.kubeconfig, *arguments]
        command = list(map(str, command))
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise SystemExit(f"nodes: helm {arguments[0]}: {result.stderr.strip()}")
        return result.stdout

    def program(self, name):
        found = [path for path in [PROGRAMS / name, self.runtime / name] if path.exists()]
        return str(found[0]) if found else name

    @property
    def runtime(self):
        """The folder of the container runtime's programs."""
        return PROGRAMS / "runtime"

    def environment(self):
        """That of a node's processes: containerd looks for its others by name."""
        return {**os.environ, "PATH": f"{self.runtime}:{os.environ['PATH']}"}

    def definitions(self, name):
        """The custom resource definitions of `istio`, `gateway-api` or `gateway-api-experimental`."""
        return PROGRAMS / f"crds/{name}.yaml"

    def wait_for(self, what, condition, seconds=60):
        """Waits until the condition has a value that counts, and returns it."""
        end = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > end:
                raise SystemExit(f"nodes: waited {seconds} s for {what}")
            time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description="A real Kubernetes cluster on this machine")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ["start", "stop", "kubectl", "load"]:
        command = commands.add_parser(name)
        command.add_argument("folder")
        if name == "start":
            command.add_argument("--nodes", type=int, default=2, choices=range(1, MAX_NODES + 1))
            command.add_argument("images", nargs="*", help="further images")
        if name in ["kubectl", "load"]:
            command.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    cluster = Cluster(options.folder, getattr(options, "nodes", None))
    if options.command == "start":
        cluster.start([*own_images(cluster.folder), *options.images])
        print(cluster.kubectl("get", "nodes", "-o", "wide").stdout, end="")
    elif options.command == "stop":
        cluster.stop()
    elif options.command == "load":
        for node in cluster.nodes:
            for image in options.arguments:
                node.import_image(image)
    else:
        result = cluster.kubectl(*options.arguments, check=False)
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr)
        sys.exit(result.returncode)


def own_images(folder):
    """The images of the programs that obtain.sh builds: pause, echo and CoreDNS."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, arguments in [("pause", []), ("echo", ["serve"]), ("coredns", [])]:
        path = folder / f"{name}.tar"
        words = [f"--argument={word}" for word in arguments]
        subprocess.run([sys.executable, ROOT / "scripts/image.py", path, f"evenkeel.test/{name}:1", *words,
                        f"--program={PROGRAMS / name}"], check=True)
        made.append(path)
    return made


if __name__ == "__main__":
    main()
