"""Networks made by libcni's own program, `cnitool`, as a container runtime makes those of Pods."""
from contextlib import contextmanager

NAME = "of-cnitool"
CONFIGURATIONS = "/etc/cni/net.d"


class Network:
    """One more network for a Pod of a node that runs."""

    def __init__(self, node, pod, configurations=CONFIGURATIONS):
        self.node = node
        self.path = f"/run/netns/{NAME}"
        arguments = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=mesh;K8S_POD_NAME={pod}"
        self.variables = ["env", "CNI_PATH=/opt/cni/bin", f"NETCONFPATH={configurations}", f"CNI_ARGS={arguments}"]

    def ask(self, command, check=True):
        result = self.node.run(*self.variables, self.node.cluster.program("cnitool"), command, "nodes", self.path, check=check)
        return result.stdout + result.stderr


@contextmanager
def network(node, pod, configurations=CONFIGURATIONS):
    node.run("ip", "netns", "add", NAME)
    made = Network(node, pod, configurations)
    try:
        yield made
    finally:
        made.ask("del", check=False)
        node.run("ip", "netns", "delete", NAME)
