#!/usr/bin/env python3
"""Runs the Gateway API's conformance suite on a real Kubernetes with Evenkeel's chart, and leaves nothing behind.

    scripts/kubernetes/conformance.py --program BINARY [--folder DIR] [--reports DIR] [--only gateway|mesh] [--test NAME]... [--keep]

BINARY is a build of `evenkeel`. Every profile is run with every feature. --test runs single tests, and writes no report. --keep leaves the
cluster running, for scripts/kubernetes/cluster.py; --again uses one that runs, with the control plane that it has.
"""
import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cluster import PROGRAMS, ROOT, Cluster, own_images
from control_plane import KEY, openssl
from test import remains, settings

CHART = ROOT / "charts/evenkeel"
IMAGE = "evenkeel.test/evenkeel:1"
# What runs in one go: the profiles, the feature without which the other's tests do not run, and labels of the Pods' namespaces.
RUNS = {
    "gateway": {"profiles": ["GATEWAY-HTTP", "GATEWAY-GRPC", "GATEWAY-TLS", "GATEWAY-TCP", "GATEWAY-UDP"], "without": "Mesh", "labels": ""},
    "mesh": {"profiles": ["MESH-HTTP", "MESH-GRPC"], "without": "Gateway", "labels": "istio-injection=enabled"},
}
# The images that the suite's manifests name.
ECHO = [f"registry.k8s.io/gateway-api/echo-basic:{tag}" for tag in ["v1.5.1", "v1.6.0-dev.2", "v1.6.0-dev.3"]]
ECHO_ADVANCED = "registry.k8s.io/gateway-api/echo-advanced:v1.5.1"
COREDNS = "registry.k8s.io/coredns/coredns:v1.12.2"
# Two addresses for the test of static ones: of the suite's load balancer, and of nobody.
ADDRESSES = {"usable": "10.251.0.1", "unusable": "10.252.0.1"}
SUITE_SECONDS = 3 * 3600


def main():
    parser = argparse.ArgumentParser(description="Run the Gateway API's conformance suite")
    parser.add_argument("--program", required=True)
    parser.add_argument("--folder", default=ROOT / "target/conformance")
    parser.add_argument("--reports", type=Path, help="the folder that gets the suite's reports")
    parser.add_argument("--only", choices=RUNS, help="the tests of Gateways, or of the mesh")
    parser.add_argument("--test", action="append", default=[])
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    before = settings()
    names = [options.only] if options.only else list(RUNS)
    cluster = Cluster(options.folder, 1)
    if not options.again:
        cluster.stop()
        shutil.rmtree(cluster.folder, ignore_errors=True)
    try:
        if not options.again:
            cluster.start(own_images(cluster.folder))
            load_images(cluster, names)
            install(cluster, options.program)
        passed = all([run(cluster, name, options) for name in names])
    finally:
        if not options.keep:
            cluster.stop()
    left = [] if options.keep else remains(cluster, before)
    for line in left:
        print(f"left behind: {line}")
    sys.exit(1 if left or not passed else 0)


def load_images(cluster, runs):
    """The programs of the suite's Pods, under the names of the images that its manifests have."""
    node = cluster.nodes[0]
    write_image(cluster, "echo-basic", ECHO[0], "--user=65532:65532", f"--program={PROGRAMS / 'echo-basic'}")
    for other in ECHO[1:]:
        node.run("ctr", "-n", "k8s.io", "images", "tag", ECHO[0], other)
    write_image(cluster, "coredns-of-suite", COREDNS, f"--program={PROGRAMS / 'coredns'}")
    if "mesh" in runs:
        load_mesh_image(cluster)


def load_mesh_image(cluster):
    certificate, key = cluster.folder / "echo.crt", cluster.folder / "echo.key"
    openssl("req", "-x509", *KEY, "-days", "30", "-subj", "/CN=echo", "-keyout", key, "-out", certificate)
    key.chmod(0o644)
    write_image(cluster, "echo-advanced", ECHO_ADVANCED, "--user=1338:1338", f"--program={PROGRAMS / 'echo-advanced/server'}",
                f"--file={PROGRAMS / 'echo-advanced/client'}=/usr/local/bin/client", f"--file={certificate}=/cert.crt",
                f"--file={key}=/cert.key")


def write_image(cluster, name, reference, *arguments):
    path = cluster.folder / f"{name}.tar"
    subprocess.run([sys.executable, ROOT / "scripts/image.py", path, reference, *arguments], check=True)
    cluster.nodes[0].import_image(path)


def install(cluster, program):
    """Installs the definitions of the Gateway API and the chart, as users do."""
    image = cluster.folder / "evenkeel.tar"
    subprocess.run([ROOT / "scripts/evenkeel-image.sh", program, image, IMAGE], check=True)
    cluster.nodes[0].import_image(image)
    cluster.kubectl("apply", "--server-side", "-f", cluster.definitions("gateway-api-experimental"))
    cluster.helm("install", "evenkeel", CHART, "--namespace", "istio-system", "--create-namespace", "--wait", "--timeout=180s",
                 "--set", "global.hub=evenkeel.test", "--set-string", "global.tag=1", "--set", "global.imagePullPolicy=Never",
                 "--set", "pilot.autoscaleEnabled=false", "--set", "pilot.replicaCount=1")


def run(cluster, name, options):
    """Runs the suite in the network of the node, where the addresses of Services are served; returns whether all passed."""
    settings = RUNS[name]
    arguments = ["--gateway-class=evenkeel", "--all-features", f"--exempt-features={settings['without']}",
                 f"--conformance-profiles={','.join(settings['profiles'])}", f"--namespace-labels={settings['labels']}",
                 "--organization=evenkeel", "--project=evenkeel", "--url=https://evenkeel.dev", f"--version={version()}",
                 "--contact=maintainers", f"--usable-address={ADDRESSES['usable']}", f"--unusable-address={ADDRESSES['unusable']}"]
    if options.test:
        return all([suite(cluster, [*arguments, f"--run-test={test}"], test) for test in options.test])
    report = cluster.folder / f"{name}.yaml"
    passed = suite(cluster, [*arguments, f"--report-output={report}"], name)
    if report.exists() and options.reports:
        options.reports.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(report, options.reports / report.name)
    return passed


def version():
    """The version of the workspace's packages."""
    lines = (ROOT / "Cargo.toml").read_text().splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("version = "))


def suite(cluster, arguments, name):
    log = cluster.folder / f"suite-{name}.log"
    network = f"--net=/proc/{cluster.nodes[0].pid()}/ns/net"
    command = ["nsenter", network, cluster.program("conformance.test"), "-test.run=^TestConformance$", "-test.v",
               f"-test.timeout={SUITE_SECONDS}s", *arguments]
    environment = {**os.environ, "KUBECONFIG": str(cluster.control_plane.kubeconfig)}
    begin = time.monotonic()
    with open(log, "w") as output:
        result = subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment)
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(("    --- ", "--- ")):
            print(line.strip())
    print(f"{name}: {'ok' if result.returncode == 0 else 'FAILED'} ({time.monotonic() - begin:.0f} s); {log} has the details", flush=True)
    return result.returncode == 0


if __name__ == "__main__":
    main()
