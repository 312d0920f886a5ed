"""What happens to clusters: rollouts, drains, reboots, ends of components, upgrades. Each under load, and each leaves the mesh as it was.

They run behind the checks of test.py, so the CNI plugin loads the rules of Pods.
"""
import json
import os
import shutil
import subprocess
import time
from datetime import datetime, timezone

from cnitool import network
from expect import Failure, expect
from load import Load
from mesh import AGENTS, CHARTS, IMAGES

ROOT = CHARTS.parent
ROLLOUTS = int(os.environ.get("ROLLOUTS", "20"))
# How long the API server is away.
OUTAGE_SECONDS = int(os.environ.get("OUTAGE_SECONDS", "180"))
# How soon a Pod without rules is known.
ALARM_SECONDS = 30
# The chart of an earlier release: a commit of this repository.
EARLIER = "18b09fea"


def twenty_rollouts_lose_no_request(mesh):
    with Load(mesh) as load:
        for _ in range(ROLLOUTS):
            mesh.kubectl("-n", "mesh", "rollout", "restart", "deployment/replicated")
            mesh.rollout("mesh", "replicated")
    return f"{ROLLOUTS} rollouts, {load.summary()}"


def a_drained_node_loses_no_request(mesh):
    with Load(mesh) as load:
        mesh.kubectl("drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
        found = json.loads(mesh.kubectl("-n", "mesh", "get", "pods", "-l", "app=replicated", "-o", "json").stdout)["items"]
        expect("nodes of the Pods", {pod["spec"]["nodeName"] for pod in found}, lambda nodes: nodes == {"node1"})
        mesh.kubectl("uncordon", "node2")
        mesh.kubectl("-n", "mesh", "rollout", "restart", "deployment/replicated")
        mesh.rollout("mesh", "replicated")
    mesh.rollout("mesh", "server")
    return load.summary()


def a_node_reboots(mesh):
    """Everything on the node ends without notice. Its files are there again, the plugin among them; the agent is not."""
    node = mesh.cluster.nodes[1]
    before = mesh.kubectl("-n", "mesh", "get", "pods", "-l", "app=server", "-o", "jsonpath={.items[*].metadata.uid}").stdout
    begin = time.monotonic()
    with Load(mesh, tolerates=lambda failed: True) as load:
        moment = now()
        node.reboot()
        mesh.cluster.wait_for("the Pod on the node", lambda: mesh.are_ready("mesh", "server", moment), seconds=120)
        mesh.wait_for_agents()
        mesh.rollout("mesh", "replicated")
        mesh.cluster.wait_for("a call", lambda: mesh.call("mesh", "client", "http://server/").startswith("200 "))
        took = time.monotonic() - begin
    after = mesh.kubectl("-n", "mesh", "get", "pods", "-l", "app=server", "-o", "jsonpath={.items[*].metadata.uid}").stdout
    expect("the Pod is the same one", (before, after), lambda pair: pair[0] == pair[1])
    expect_capture(mesh)
    return f"{took:.0f} s until it serves; {load.summary()}, failed: {load.failed}"


def a_killed_component_comes_back(mesh):
    """By SIGKILL: the control plane and the agents of nodes, and neither is needed by requests."""
    took = []
    for namespace, label, container in [("istio-system", "istiod", "discovery"), ("istio-system", AGENTS, "agent")]:
        with Load(mesh) as load:
            begin = time.monotonic()
            moment = now()
            mesh.kill(namespace, label, container)
            mesh.cluster.wait_for(f"{label} to be ready again", lambda: mesh.are_ready(namespace, label, moment), seconds=90)
            took.append(f"{label} is back after {time.monotonic() - begin:.1f} s ({load.failed or 'no failure'})")
        mesh.kubectl("-n", "mesh", "rollout", "restart", "deployment/server")
        mesh.rollout("mesh", "server")
        expect_capture(mesh)
    return "; ".join(took)


def a_killed_sidecar_comes_back(mesh):
    name = mesh.pod("mesh", "server")[0]
    mesh.kill("mesh", "server", "istio-proxy")
    mesh.cluster.wait_for("a call", lambda: mesh.call("mesh", "client", "http://server/").startswith("200 "))
    expect("the Pod", mesh.pod("mesh", "server")[0], lambda found: found == name)
    expect_capture(mesh)


def a_killed_gateway_comes_back(mesh):
    """One of two replicas: requests in flight through it fail, and the others go on."""
    mesh.cluster.helm("upgrade", "--install", "ingress", CHARTS / "gateway", "--namespace", "ingress", "--create-namespace",
                      "--set", "service.type=ClusterIP", "--set", "autoscaling.enabled=false")
    mesh.kubectl("apply", "-f", mesh.manifest("gateway"))
    mesh.rollout("ingress", "ingress")
    urls = {"HTTP/1 by the gateway": "http://ingress.ingress/"}
    outside = mesh.container("default", "outsider")
    mesh.cluster.wait_for("a call", lambda: mesh.cluster.nodes[0].call(outside, urls["HTTP/1 by the gateway"]).startswith("200 "))
    begin = time.monotonic()
    with Load(mesh, urls, tolerates=lambda failed: len(failed.split(" s: ")) <= 4, container=outside) as load:
        mesh.kill("ingress", "ingress", "istio-proxy", count=1)
        time.sleep(1)
        mesh.cluster.wait_for("the gateway to be ready again", lambda: mesh.are_ready("ingress", "ingress"), seconds=90)
    took = time.monotonic() - begin
    with Load(mesh, urls, container=outside) as rollout:
        mesh.kubectl("-n", "ingress", "rollout", "restart", "deployment/ingress")
        mesh.rollout("ingress", "ingress")
    mesh.cluster.helm("uninstall", "ingress", "--namespace", "ingress", "--wait")
    mesh.kubectl("delete", "-f", mesh.manifest("gateway"))
    mesh.kubectl("delete", "namespace", "ingress")
    return f"back after {took:.1f} s, {load.summary()}, failed: {load.failed}; a rollout: {rollout.summary()}"


def the_api_server_is_away_for_long(mesh):
    """And the control plane starts again meanwhile."""
    first = mesh.cluster.nodes[0]
    with Load(mesh) as load:
        first.kill("kube-apiserver")
        try:
            time.sleep(OUTAGE_SECONDS)
        finally:
            mesh.cluster.control_plane.start_api_server()
        mesh.cluster.wait_for("the nodes", lambda: all(node.is_ready() for node in mesh.cluster.nodes))
        mesh.cluster.wait_for("the control plane", lambda: mesh.are_ready("istio-system", "istiod"), seconds=120)
        mesh.kubectl("-n", "mesh", "rollout", "restart", "deployment/server")
        mesh.rollout("mesh", "server")
    expect_capture(mesh)
    return f"{OUTAGE_SECONDS} s, {load.summary()}"


def a_pod_without_rules_is_an_alarm(mesh):
    name, address = mesh.pod("mesh", "server")
    node = mesh.cluster.nodes[1]
    path = network_of(node, address)
    expect_capture(mesh)
    begin = time.monotonic()
    node.run("nsenter", f"--net={path}", "nft", "flush", "ruleset")
    event = mesh.cluster.wait_for("an Event about the Pod", lambda: outside_mesh(mesh, name), seconds=ALARM_SECONDS)
    took = time.monotonic() - begin
    mesh.cluster.wait_for("the rules", lambda: "chain" in node.run("nsenter", f"--net={path}", "nft", "list", "ruleset").stdout)
    expect_capture(mesh)
    return f"after {took:.1f} s: {event}"


def the_plugin_answers_a_runtime(mesh):
    """By libcni's own program, which makes one network more for a Pod that runs."""
    node = mesh.cluster.nodes[1]
    with network(node, mesh.pod("mesh", "server")[0]) as made:
        for command in ["status", "add", "check"]:
            made.ask(command)
        node.run("nsenter", f"--net={made.path}", "nft", "flush", "ruleset")
        expect("CHECK without rules", made.ask("check", check=False), lambda text: "are not in its network" in text)


def pods_have_users_of_their_own(mesh):
    """With hostUsers: false. The plugin loads the rules; later the check without it does the same with an init container."""
    expect_own_users(mesh)


def the_cni_plugin_is_upgraded_under_load(mesh):
    with Load(mesh) as load:
        mesh.helm_cni("upgrade", "--set", "logLevel=debug", "--set-string", "podAnnotations.upgraded=yes")
        mesh.restart_programs(["server", "replicated"])
        expect_capture(mesh)
        # Its entry goes to a configuration of its own, and back.
        mesh.helm_cni("upgrade", "--set", "istioOwnedCNIConfig=true")
        for node in mesh.cluster.nodes:
            expect(f"configurations of {node.name}", configurations(node), lambda found: found == {
                "02-evenkeel-cni.conflist": ["bridge", "evenkeel-cni"], "10-bridge.conflist": ["bridge"]})
        mesh.restart_programs(["server", "replicated"])
        expect_capture(mesh)
        mesh.helm_cni("upgrade")
        for node in mesh.cluster.nodes:
            expect(f"configurations of {node.name}", configurations(node), lambda found: found == {
                "10-bridge.conflist": ["bridge", "evenkeel-cni"]})
        mesh.restart_programs(["server", "replicated"])
        expect_capture(mesh)
    return load.summary()


def the_cni_plugin_is_removed_under_load(mesh):
    with Load(mesh) as load:
        mesh.evenkeel("upgrade", "--yes", "--set", "pilot.cni.enabled=false", "--timeout", "120")
        mesh.restart_programs(["server", "replicated"])
        mesh.remove_cni()
        for node in mesh.cluster.nodes:
            expect(f"configurations of {node.name}", configurations(node), lambda found: found == {"10-bridge.conflist": ["bridge"]})
        mesh.restart_programs(["server", "replicated"])
        expect_capture(mesh)
        expect_own_users(mesh)
        mesh.helm_cni("install")
        mesh.evenkeel("upgrade", "--yes", "--set", "pilot.cni.enabled=true", "--timeout", "120")
        mesh.restart_programs(["server", "replicated"])
        expect_capture(mesh)
    return load.summary()


def a_release_is_upgraded_under_load(mesh):
    """From the objects that `install` of an earlier release has applied."""
    chart = mesh.cluster.folder / "earlier"
    shutil.rmtree(chart, ignore_errors=True)
    chart.mkdir()
    archive = subprocess.run(["git", "-C", ROOT, "archive", EARLIER, "charts/evenkeel"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-xC", chart], input=archive, check=True)
    with Load(mesh) as load:
        values = ["--set", "pilot.autoscaleEnabled=false", "--set", "pilot.cni.enabled=true"]
        text = mesh.cluster.helm("template", "evenkeel", chart / "charts/evenkeel", "--namespace", "istio-system", "--is-upgrade", *IMAGES, *values)
        text = text.replace('app.kubernetes.io/managed-by: "Helm"', 'app.kubernetes.io/managed-by: "evenkeel"')
        mesh.kubectl("apply", "--server-side", "--field-manager=evenkeel", "--force-conflicts", "-f", "-", input=text)
        mesh.rollout("istio-system", "istiod")
        preview = mesh.evenkeel("upgrade", "--dry-run").stdout
        expect("the preview", preview, lambda text: "ClusterRole" in text)
        mesh.evenkeel("upgrade", "--yes", "--timeout", "120")
        mesh.restart_programs(["server", "replicated"])
    again = mesh.evenkeel("upgrade", "--dry-run").stdout
    expect_capture(mesh)
    return f"{load.summary()}; a second one: {again.strip().splitlines()[:3]}"


def uninstalling_leaves_nothing(mesh):
    """Objects, files of nodes, rules; cgroups and processes are looked for when the cluster has ended."""
    refused = mesh.evenkeel("uninstall", check=False)
    expect("uninstalling while Pods have sidecars", refused.stdout + refused.stderr, lambda text: "Pods have sidecars" in text)
    mesh.kubectl("delete", "namespace", "mesh")
    mesh.kubectl("delete", "-n", "default", "deployment", "outsider", "--cascade=foreground")
    mesh.remove_cni()
    deleted = [line for line in mesh.evenkeel("uninstall", "--purge").stdout.splitlines() if line.endswith(": deleted")]
    # Each namespace has a ConfigMap with the roots.
    twice = [line for line in set(deleted) if deleted.count(line) > 1 and "istio-ca-root-cert" not in line]
    expect("objects that are deleted twice", twice, lambda twice: not twice)
    mesh.kubectl("wait", "--for=delete", "namespace/istio-system", "--timeout=60s")
    before = json.loads((mesh.cluster.folder / "before.json").read_text())
    for name, found in state(mesh).items():
        expect(f"what is left of {name}", sorted(set(found) - set(before[name])), lambda left: not left)


OPERATIONS = [twenty_rollouts_lose_no_request, a_pod_without_rules_is_an_alarm, a_drained_node_loses_no_request, a_node_reboots,
              a_killed_component_comes_back, a_killed_sidecar_comes_back, a_killed_gateway_comes_back, the_api_server_is_away_for_long,
              the_plugin_answers_a_runtime, pods_have_users_of_their_own, the_cni_plugin_is_upgraded_under_load,
              the_cni_plugin_is_removed_under_load, a_release_is_upgraded_under_load, uninstalling_leaves_nothing]


def expect_capture(mesh):
    """A call is made with the identities of both, so both are captured."""
    answer = mesh.call("mesh", "client", "http://server/")
    expect("a call", answer, lambda answer: answer.startswith("200 ") and "spiffe://cluster.local/ns/mesh/sa/client" in answer)


def expect_own_users(mesh):
    set_host_users(mesh, False)
    try:
        node = mesh.cluster.nodes[1]
        container = mesh.container("mesh", "server")
        tasks = [line.split() for line in node.run("ctr", "-n", "k8s.io", "tasks", "ls").stdout.splitlines()]
        process = next(words[1] for words in tasks if words[0] == container)
        users = node.run("cat", f"/proc/{process}/uid_map").stdout.split()
        expect("the users of the Pod", users, lambda users: users[0] == "0" and users[1] != "0")
        expect_capture(mesh)
        answer = mesh.call("default", "outsider", f"http://{mesh.pod('mesh', 'server')[1]}:8080/")
        expect("a call from outside of the mesh", answer, lambda answer: "200 " not in answer)
    finally:
        set_host_users(mesh, None)


def set_host_users(mesh, value):
    patch = {"spec": {"template": {"spec": {"hostUsers": value}}}}
    mesh.kubectl("-n", "mesh", "patch", "deployment", "server", "--type=merge", "-p", json.dumps(patch))
    mesh.rollout("mesh", "server")


def now():
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def outside_mesh(mesh, pod):
    path = '{range .items[?(@.reason=="OutsideMesh")]}{.message}{"\\n"}{end}'
    return mesh.kubectl("-n", "mesh", "get", "events", "--field-selector", f"involvedObject.name={pod}", "-o", f"jsonpath={path}").stdout.strip()


def network_of(node, address):
    """The file of the network that has an address."""
    for path in node.run("ls", "/run/netns").stdout.split():
        if address in node.run("nsenter", f"--net=/run/netns/{path}", "ip", "-o", "address").stdout.replace("/", " ").split():
            return f"/run/netns/{path}"
    raise Failure(f"{node.name} has no network with {address}")


def configurations(node):
    """The network configurations of a node: the plugins of each."""
    folder = "/etc/cni/net.d"
    names = [name for name in node.run("ls", folder).stdout.split() if name.endswith(".conflist")]
    return {name: [plugin["type"] for plugin in json.loads(node.run("cat", f"{folder}/{name}").stdout)["plugins"]] for name in names}


def remember(mesh):
    """Writes down what there is before the installation."""
    (mesh.cluster.folder / "before.json").write_text(json.dumps(state(mesh)))


def state(mesh):
    return {"objects": sorted(objects(mesh)), **{node.name: sorted(traces(node)) for node in mesh.cluster.nodes}}


def objects(mesh):
    """All objects, without those that come and go by themselves."""
    kinds = mesh.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    kinds = [kind for kind in kinds if not kind.startswith(("events", "componentstatuses", "endpointslices", "pods.metrics"))]
    return set(mesh.kubectl("get", ",".join(kinds), "-A", "--ignore-not-found", "-o", "custom-columns=K:.kind,N:.metadata.namespace,M:.metadata.name",
                            "--no-headers").stdout.splitlines())


def traces(node):
    """Files where plugins and their agents have theirs, and rules of the node's own network, by name."""
    folders = ["/etc/cni", "/opt/cni", "/var/lib/evenkeel"]
    # kubelet has made the folder of the socket, which is gone with the next start of the machine.
    files = node.run("find", *folders, "/run/evenkeel-cni", "-mindepth", "1", check=False).stdout.splitlines()
    tables = node.run("nft", "list", "tables").stdout.splitlines()
    return {*files, *tables}
