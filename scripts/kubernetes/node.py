"""A node of a Kubernetes cluster of tests: namespaces of its own for processes, mounts and the network, and in them containerd,
kubelet and kube-proxy.

The first process of the node is `pause`. When it ends, the kernel ends every process of the node and removes its mounts and its
network, so nothing but cgroups and files has to be cleaned up. `/etc`, `/opt` and `/var` are the machine's below a layer of the node's
own, so that two nodes have different files under the paths that a real node has (`/etc/cni/net.d`, `/opt/cni/bin`, `/var/lib/kubelet`).
"""
import json
import os
import signal
import subprocess
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CONTAINERD = "/run/containerd/containerd.sock"
CONFLIST = "/etc/cni/net.d/10-bridge.conflist"
DNS_ADDRESS = "10.96.0.10"
READY_SECONDS = 90


class Node:
    def __init__(self, cluster, number):
        self.cluster = cluster
        self.number = number
        self.name = f"node{number}"
        self.address = f"10.250.0.{number}"
        self.pods = f"10.244.{number - 1}.0/24"
        self.folder = cluster.folder / self.name
        self.logs = self.folder / "logs"
        self.cgroup = f"evenkeel-{self.name}"

    # Its namespaces.

    def create(self):
        for name in ["logs", "containerd", "kubelet", "etc", "opt", "var", "work/etc", "work/opt", "work/var"]:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        # PID 1 of the node. `unshare` waits for it; if it is killed, so is PID 1, and with it everything else.
        holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc",
             self.cluster.program("pause")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        first = self.cluster.wait_for(f"the first process of {self.name}", lambda: children.read_text().split(), seconds=10)[0]
        (self.folder / "pid").write_text(first)
        # Until `unshare` has mounted /proc there, the namespaces are not complete.
        self.cluster.wait_for(f"/proc of {self.name}", lambda: self.run("test", "-e", "/proc/1/status", check=False).returncode == 0)
        self.mount()
        self.make_cgroups()
        self.run("hostname", self.name)
        self.run("ip", "link", "set", "lo", "up")
        self.run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    def mount(self):
        for name in ["etc", "opt", "var"]:
            layers = f"lowerdir=/{name},upperdir={self.folder / name},workdir={self.folder / 'work' / name}"
            self.run("mount", "-t", "overlay", "-o", layers, f"{self.name}-{name}", f"/{name}")
        self.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        # A layer cannot lie on a layer, as those of containers would; mounts of kubelet have to be seen by containers of the node.
        for name in ["containerd", "kubelet"]:
            self.run("mkdir", "-p", f"/var/lib/{name}")
            self.run("mount", "--bind", self.folder / name, f"/var/lib/{name}")
        self.run("mkdir", "-p", "/run/netns", "/run/containerd", "/etc/cni/net.d", "/opt/cni/bin", "/var/log/pods")
        self.run("mount", "--make-rshared", "/")
        self.run("sh", "-c", f"cp {self.cluster.runtime / 'cni'}/* /opt/cni/bin/")

    def make_cgroups(self):
        for hierarchy in hierarchies():
            group = hierarchy / self.cgroup
            group.mkdir(exist_ok=True)
            # A new group of cpusets has no cores and no memory.
            for name in ["cpuset.cpus", "cpuset.mems"]:
                if (group / name).exists():
                    (group / name).write_text((hierarchy / name).read_text())

    def pid(self):
        """The first process, as the machine numbers it; None: the node does not run."""
        try:
            pid = int((self.folder / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        return pid if command.split(b"\0")[0].endswith(b"/pause") else None

    def reboot(self):
        """Everything ends without notice, and the node starts with the files that it had. Not the first one: it has the control plane."""
        self.destroy()
        self.cluster.wait_for(f"the end of the cable of {self.name}",
                              lambda: self.cluster.nodes[0].run("ip", "link", "show", self.name, check=False).returncode != 0)
        self.create()
        self.connect()
        self.start_containerd([])
        self.start_kubelet()

    def destroy(self):
        pid = self.pid()
        if pid:
            os.kill(pid, signal.SIGKILL)
            self.cluster.wait_for(f"the end of {self.name}", lambda: not Path(f"/proc/{pid}").exists())
        for hierarchy in hierarchies():
            self.cluster.wait_for(f"the end of the cgroups of {self.name}", lambda: remove_cgroup(hierarchy / self.cgroup))
        (self.folder / "pid").unlink(missing_ok=True)

    # Its network: the nodes are connected to a bridge of the first one.

    def connect(self):
        if self.number == 1:
            self.run("ip", "link", "add", "nodes", "type", "bridge")
            self.run("ip", "address", "add", f"{self.address}/24", "dev", "nodes")
            self.run("ip", "link", "set", "nodes", "up")
            self.run("ip", "route", "add", "default", "dev", "nodes")
            return
        first = self.cluster.nodes[0]
        first.run("ip", "link", "add", self.name, "type", "veth", "peer", "name", f"to-{self.name}")
        # The namespaces' processes are numbered differently in each, so the machine moves the end of the cable.
        subprocess.run(["nsenter", f"--net=/proc/{first.pid()}/ns/net", "ip", "link", "set", f"to-{self.name}", "name", "eth0",
                        "netns", str(self.pid())], check=True)
        first.run("ip", "link", "set", self.name, "master", "nodes", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", first.address)
        for node in self.cluster.nodes[:self.number - 1]:
            node.run("ip", "route", "replace", self.pods, "via", self.address)
            self.run("ip", "route", "add", node.pods, "via", node.address)

    # Its processes.

    def start_containerd(self, images):
        (self.folder / "containerd.toml").write_text(CONTAINERD_CONFIGURATION)
        if self.run("test", "-e", CONFLIST, check=False).returncode != 0:
            self.write(CONFLIST, json.dumps(network(self.pods), indent=1))
        self.spawn("containerd", "-c", self.folder / "containerd.toml")
        self.cluster.wait_for(f"containerd of {self.name}", lambda: self.run("ctr", "version", check=False).returncode == 0)
        for image in images:
            self.import_image(image)

    def import_image(self, path):
        self.run("ctr", "-n", "k8s.io", "images", "import", Path(path).resolve())

    def call(self, container, url):
        """What the test's program in a container gets, without the API server."""
        name = f"call-{time.monotonic_ns()}"
        result = self.run("ctr", "-n", "k8s.io", "tasks", "exec", "--exec-id", name, container, "echo", "get", url, check=False)
        return result.stdout + result.stderr

    def start_kubelet(self):
        kubeconfig = self.cluster.control_plane.kubeconfig
        (self.folder / "resolv.conf").write_text("")
        configuration = self.folder / "kubelet.json"
        configuration.write_text(json.dumps(kubelet_configuration(self), indent=1))
        self.spawn("kubelet", f"--config={configuration}", f"--kubeconfig={kubeconfig}", f"--hostname-override={self.name}",
                   f"--node-ip={self.address}")
        self.cluster.wait_for(f"node {self.name} to be ready", self.is_ready, seconds=READY_SECONDS)
        # It ends when the address of the node changes, so it starts when the node has one.
        configuration = self.folder / "kube-proxy.json"
        configuration.write_text(json.dumps(proxy_configuration(self), indent=1))
        self.spawn("kube-proxy", f"--config={configuration}")

    def is_ready(self):
        self.must_run("kubelet")
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        return self.cluster.kubectl("get", "node", self.name, "-o", f"jsonpath={path}", check=False).stdout == "True"

    def spawn(self, program, *arguments):
        """Starts a program in the node, which outlives this script."""
        output = open(self.logs / f"{program}.log", "ab")
        found = self.cluster.program(program)
        # `nsenter` waits for the program in the other namespace, and ends as it does.
        process = subprocess.Popen([*self.enter(), found, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=output, start_new_session=True, env=self.cluster.environment())
        self.cluster.spawned[self.name, program] = process

    def must_run(self, program):
        process = self.cluster.spawned.get((self.name, program))
        if process and process.poll() is not None:
            raise SystemExit(f"nodes: {program} of {self.name} ended: {self.log(program)}")

    def log(self, program):
        lines = (self.logs / f"{program}.log").read_text(errors="replace").splitlines()
        return "\n" + "\n".join(lines[-15:])

    def pids(self, program):
        """The processes of a program, as the node numbers them."""
        listing = self.run("sh", "-c", "for p in /proc/[0-9]*; do echo ${p#/proc/} $(readlink $p/exe); done").stdout
        lines = [line.split() for line in listing.splitlines()]
        return [line[0] for line in lines if len(line) == 2 and Path(line[1]).name == program]

    def kill(self, program):
        for pid in self.pids(program):
            self.run("kill", "-KILL", pid)
        self.cluster.wait_for(f"the end of {program}", lambda: not self.pids(program))

    def write(self, path, text):
        subprocess.run([*self.enter(), "tee", path], input=text, text=True, check=True, stdout=subprocess.DEVNULL)

    def enter(self):
        return ["nsenter", "--target", str(self.pid()), "--mount", "--net", "--pid", "--uts", "--ipc", "--wdns=/"]

    def run(self, *command, check=True):
        result = subprocess.run([*self.enter(), *map(str, command)], capture_output=True, text=True, env=self.cluster.environment())
        if check and result.returncode != 0:
            raise SystemExit(f"nodes: in {self.name}: {' '.join(map(str, command))}: {result.stderr.strip()}")
        return result


def hierarchies():
    """The mounted hierarchies of cgroups: one for each controller (version 1), or one for all (version 2)."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return sorted(path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists())


def remove_cgroup(group):
    if not group.exists():
        return True
    try:
        for folder in sorted(group.rglob("*/"), reverse=True):
            folder.rmdir()
        group.rmdir()
    except (OSError, FileNotFoundError):
        return False
    return True


CONTAINERD_CONFIGURATION = f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "evenkeel.test/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE a process cannot lower its score.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def network(pods):
    addresses = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "1.1.0", "name": "nodes", "plugins": [bridge]}


def kubelet_configuration(node):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "failCgroupV1": False, "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{node.cgroup}",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [DNS_ADDRESS], "clusterDomain": "cluster.local", "resolvConf": str(node.folder / "resolv.conf"),
        "failSwapOn": False, "oomScoreAdj": 0, "maxOpenFiles": 20000, "enforceNodeAllocatable": [],
        # The disk is that of a developer's machine.
        "evictionHard": {f"{signal}": "0%" for signal in ["nodefs.available", "imagefs.available", "memory.available"]},
        "imageGCHighThresholdPercent": 100, "localStorageCapacityIsolation": False, "readOnlyPort": 0,
        "nodeStatusUpdateFrequency": "5s", "syncFrequency": "10s",
    }


def proxy_configuration(node):
    unchanged = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
        "clusterCIDR": "10.244.0.0/16", "hostnameOverride": node.name, "conntrack": unchanged,
        "clientConnection": {"kubeconfig": str(node.cluster.control_plane.kubeconfig)},
    }
