"""Evenkeel in a cluster of tests: its control plane, and programs with sidecars."""
import base64
import json
from pathlib import Path

from control_plane import KEY, openssl

MANIFESTS = Path(__file__).resolve().parent / "mesh"
CHARTS = Path(__file__).resolve().parent.parent.parent / "charts"
NAMESPACES = {"istio-system": {}, "mesh": {"istio-injection": "enabled"}}


class Mesh:
    def __init__(self, cluster):
        self.cluster = cluster
        self.kubectl = cluster.kubectl
        self.folder = cluster.folder / "mesh"

    def install(self, image):
        self.folder.mkdir(parents=True, exist_ok=True)
        for node in self.cluster.nodes:
            node.import_image(image)
        self.kubectl("apply", "--server-side", "-f", self.cluster.definitions("istio"))
        for name, labels in NAMESPACES.items():
            self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        root = self.make_authority()
        text = (MANIFESTS / "control-plane.yaml").read_text().replace("CA_BUNDLE", base64.b64encode(root).decode())
        self.kubectl("apply", "-f", "-", input=text)
        self.rollout("istio-system", "istiod")

    def make_authority(self):
        """The mesh's certificate authority, which the operator gives, so that its root is known here; returns the root."""
        key, root = self.folder / "ca-key.pem", self.folder / "root-cert.pem"
        openssl("req", "-x509", *KEY, "-days", "30", "-subj", "/O=evenkeel.test", "-keyout", key, "-out", root,
                "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        certificate = root.read_bytes()
        files = {"ca-key.pem": key.read_bytes(), "ca-cert.pem": certificate, "cert-chain.pem": certificate, "root-cert.pem": certificate}
        data = {name: base64.b64encode(content).decode() for name, content in files.items()}
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cacerts", "namespace": "istio-system"}, "data": data})
        for namespace in NAMESPACES:
            self.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio-ca-root-cert", "namespace": namespace},
                        "data": {"root-cert.pem": certificate.decode()}})
        return certificate

    def install_cni(self):
        """Has a CNI plugin load the rules of Pods, in place of their init containers."""
        values = ["--set", "global.hub=evenkeel.test", "--set-string", "global.tag=1", "--set", "global.imagePullPolicy=Never"]
        manifests = self.cluster.helm("template", "cni", CHARTS / "cni", "--namespace", "istio-system", *values)
        self.kubectl("-n", "istio-system", "apply", "-f", "-", input=manifests)
        self.kubectl("-n", "istio-system", "rollout", "status", "daemonset/evenkeel-cni-node", "--timeout=60s")
        patch = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--cni"}]
        self.kubectl("-n", "istio-system", "patch", "deployment", "istiod", "--type=json", "-p", json.dumps(patch))
        self.rollout("istio-system", "istiod")
        for name in ["server", "client"]:
            self.kubectl("-n", "mesh", "rollout", "restart", f"deployment/{name}")
            self.rollout("mesh", name)

    def apply(self, document):
        self.kubectl("apply", "-f", "-", input=json.dumps(document))

    def start_programs(self):
        self.kubectl("apply", "-f", MANIFESTS / "programs.yaml")
        for namespace, name in [("mesh", "server"), ("mesh", "client"), ("default", "outsider")]:
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
        pods = json.loads(self.kubectl("-n", namespace, "get", "pods", "-l", f"app={name}", "-o", "json").stdout)["items"]
        pod = next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and "podIP" in pod["status"]), None)
        if not pod:
            raise SystemExit(f"nodes: {namespace} has no Pod of {name}: {self.describe(namespace, name)}")
        return pod["metadata"]["name"], pod["status"]["podIP"]

    def call(self, namespace, name, url):
        """What a program gets: standard output, or the error."""
        result = self.kubectl("-n", namespace, "exec", f"deployment/{name}", "-c", "echo", "--", "echo", "get", url, check=False)
        return result.stdout + result.stderr

    def start_load(self, namespace, name, url, seconds):
        """Starts requests one after another; the process prints how many there were, and what failed."""
        return self.cluster.start_kubectl("-n", namespace, "exec", f"deployment/{name}", "-c", "echo", "--", "echo", "load", url, str(seconds))

    def container(self, namespace, name):
        """The id of the program's container, as containerd knows it."""
        pod = json.loads(self.kubectl("-n", namespace, "get", "pod", self.pod(namespace, name)[0], "-o", "json").stdout)
        statuses = pod["status"]["containerStatuses"]
        return next(status["containerID"] for status in statuses if status["name"] == "echo").removeprefix("containerd://")
