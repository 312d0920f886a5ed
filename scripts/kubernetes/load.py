"""Requests that go on while something happens, of every protocol."""
import re
import subprocess

from expect import Failure

# By name: the URL that the client calls.
URLS = {"HTTP/1": "http://replicated/", "HTTP/2": "h2c://replicated:81/", "gRPC": "grpc://replicated:82/echo.Echo/Say", "TCP": "tcp://replicated:9000"}


class Load:
    """Runs in the client's container, by its container runtime, so that it needs no API server. `with` it: at the end, nothing has failed."""

    def __init__(self, mesh, urls=None, tolerates=lambda failed: not failed, container=None):
        self.node = mesh.cluster.nodes[0]
        self.container = container or mesh.container("mesh", "client")
        self.urls = urls or URLS
        self.tolerates = tolerates
        self.environment = mesh.cluster.environment()
        self.processes = {}
        self.requests = {}
        self.failed = {}

    def __enter__(self):
        for number, (name, url) in enumerate(self.urls.items()):
            command = [*self.node.enter(), "ctr", "-n", "k8s.io", "tasks", "exec", "--exec-id", f"load-{id(self)}-{number}", self.container,
                       "echo", "load", url]
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                                    env=self.environment)
        return self

    def __exit__(self, kind, error, trace):
        outputs = {name: process.communicate()[0] for name, process in self.processes.items()}
        if error:
            return
        for name, output in outputs.items():
            found = re.search(r"requests=(\d+) failed=map\[(.*)\]", output, re.DOTALL)
            self.requests[name], self.failed[name] = (int(found[1]), found[2]) if found else (0, output)
        bad = {name: failed for name, failed in self.failed.items() if not self.requests[name] or not self.tolerates(failed)}
        if bad:
            raise Failure(f"of {self.requests} requests have failed: {bad}")

    def summary(self):
        return ", ".join(f"{count} of {name}" for name, count in self.requests.items())
