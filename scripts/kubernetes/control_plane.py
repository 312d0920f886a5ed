"""The control plane of a Kubernetes cluster of tests: certificates, etcd, the API server, the controllers and the scheduler, all on
the first node."""
import base64
import json
import subprocess
import time

API_PORT = 6443
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
POD_RANGE = "10.244.0.0/16"
ETCD = "http://127.0.0.1:2379"
PEERS = "http://127.0.0.1:2380"
ISSUER = "https://kubernetes.default.svc.cluster.local"
READY_SECONDS = 90


class ControlPlane:
    """Its processes run in the namespaces of `node`, its files are in that node's folder."""

    def __init__(self, node):
        self.node = node
        self.folder = node.folder / "control-plane"
        self.kubeconfig = self.folder / "kubeconfig"

    def start(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.make_certificates()
        self.node.spawn("etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD,
                        "--listen-peer-urls", PEERS, "--initial-advertise-peer-urls", PEERS, "--initial-cluster", f"default={PEERS}")
        self.start_api_server()
        shared = ["--kubeconfig", self.kubeconfig, "--authentication-kubeconfig", self.kubeconfig, "--authorization-kubeconfig",
                  self.kubeconfig, "--bind-address=127.0.0.1", "--leader-elect=false"]
        self.node.spawn("kube-controller-manager", *shared, "--use-service-account-credentials", "--allocate-node-cidrs=true",
                        f"--cluster-cidr={POD_RANGE}", f"--service-cluster-ip-range={SERVICE_RANGE}",
                        "--service-account-private-key-file", self.file("accounts.key"), "--root-ca-file", self.file("ca.crt"),
                        "--cluster-signing-cert-file", self.file("ca.crt"), "--cluster-signing-key-file", self.file("ca.key"))
        self.node.spawn("kube-scheduler", *shared)

    def start_api_server(self):
        """Starts it and waits until it answers. A test that has stopped it starts it again with this."""
        file = self.file
        self.node.spawn(
            "kube-apiserver", f"--etcd-servers={ETCD}", "--bind-address=0.0.0.0", f"--advertise-address={self.node.address}",
            f"--secure-port={API_PORT}", "--tls-cert-file", file("server.crt"), "--tls-private-key-file", file("server.key"),
            "--client-ca-file", file("ca.crt"), "--service-account-key-file", file("accounts.pub"),
            "--service-account-signing-key-file", file("accounts.key"), f"--service-account-issuer={ISSUER}",
            f"--service-cluster-ip-range={SERVICE_RANGE}", "--authorization-mode=Node,RBAC", "--allow-privileged=true",
            "--endpoint-reconciler-type=lease", "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-client-certificate", file("admin.crt"), "--kubelet-client-key", file("admin.key"))
        end = time.monotonic() + READY_SECONDS
        while self.node.cluster.kubectl("get", "--raw", "/readyz", check=False).returncode != 0:
            self.node.must_run("kube-apiserver")
            if time.monotonic() > end:
                raise SystemExit(f"nodes: the API server is not ready after {READY_SECONDS} s: {self.node.log('kube-apiserver')}")
            time.sleep(0.2)

    def file(self, name):
        return self.folder / name

    def make_certificates(self):
        openssl("req", "-x509", *KEY, "-days", "30", "-subj", "/CN=nodes-of-tests", "-keyout", self.file("ca.key"),
                "-out", self.file("ca.crt"), "-addext", "basicConstraints=critical,CA:TRUE",
                "-addext", "keyUsage=critical,keyCertSign,digitalSignature")
        service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"]
        addresses = ["127.0.0.1", self.node.address, API_SERVICE]
        names = [f"DNS:{name}" for name in service] + [f"IP:{address}" for address in addresses]
        self.sign("server", "/CN=kube-apiserver", f"subjectAltName={','.join(names)}\nextendedKeyUsage=serverAuth\n")
        self.sign("admin", "/O=system:masters/CN=admin", "extendedKeyUsage=clientAuth\n")
        openssl("genrsa", "-out", self.file("accounts.key"), "2048")
        openssl("rsa", "-in", self.file("accounts.key"), "-pubout", "-out", self.file("accounts.pub"))
        self.kubeconfig.write_text(json.dumps(self.configuration()))
        self.kubeconfig.chmod(0o600)

    def sign(self, name, subject, extensions):
        request, extra = self.file(f"{name}.csr"), self.file(f"{name}.extensions")
        extra.write_text(extensions)
        openssl("req", *KEY, "-subj", subject, "-keyout", self.file(f"{name}.key"), "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.file("ca.crt"), "-CAkey", self.file("ca.key"), "-CAcreateserial",
                "-days", "30", "-out", self.file(f"{name}.crt"), "-extfile", extra)

    def configuration(self):
        """A kubeconfig that holds everything itself, so that it can be read in every node."""
        def data(name):
            return base64.b64encode(self.file(name).read_bytes()).decode()
        cluster = {"server": f"https://{self.node.address}:{API_PORT}", "certificate-authority-data": data("ca.crt")}
        user = {"client-certificate-data": data("admin.crt"), "client-key-data": data("admin.key")}
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "nodes",
            "clusters": [{"name": "nodes", "cluster": cluster}], "users": [{"name": "admin", "user": user}],
            "contexts": [{"name": "nodes", "context": {"cluster": "nodes", "user": "admin"}}],
        }


KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def openssl(*arguments):
    result = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"nodes: openssl {arguments[0]}: {result.stderr.strip()}")
