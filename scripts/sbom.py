#!/usr/bin/env python3
"""Writes what the program consists of, as a CycloneDX 1.5 document (https://cyclonedx.org).

    scripts/sbom.py [FILE]      (default: standard output)

The crates are those that Cargo.lock pins and that the binary `evenkeel` is built from, for Linux on x86-64: linked into it
(`required`), or run while it is built (`excluded`: build scripts and macros). The document has no date and no random number, so
the same sources give the same document.
"""

import json
import os
import pathlib
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = "evenkeel"
PLATFORM = "x86_64-unknown-linux-gnu"


def main():
    metadata = cargo_metadata()
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    program = next(id for id in metadata["workspace_members"] if packages[id]["name"] == PROGRAM)
    linked, built = reachable(nodes, packages, program)
    checksums = read_checksums()
    text = json.dumps(document(packages, nodes, program, linked, built, checksums), indent=2, ensure_ascii=False) + "\n"
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


def cargo_metadata():
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", PLATFORM]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def read_checksums():
    with open(ROOT / "Cargo.lock", "rb") as file:
        lock = tomllib.load(file)
    return {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}


def reachable(nodes, packages, program):
    """The packages that are linked, and those that only run while it is built."""
    linked, built, todo = set(), set(), [(program, True)]
    while todo:
        id, links = todo.pop()
        # A macro runs in the compiler, and so does what it depends on.
        links = links and not any("proc-macro" in target["kind"] for target in packages[id]["targets"])
        seen = linked if links else built
        if id in seen:
            continue
        seen.add(id)
        for dependency in nodes[id]["deps"]:
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
            if None in kinds:
                todo.append((dependency["pkg"], links))
            if "build" in kinds:
                todo.append((dependency["pkg"], False))
    return linked, built - linked


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, scope, checksums):
    entry = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "scope": scope,
        "purl": reference(package),
    }
    if package.get("license"):
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum := checksums.get((package["name"], package["version"])):
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("repository"):
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def document(packages, nodes, program, linked, built, checksums):
    scopes = {**{id: "required" for id in linked}, **{id: "excluded" for id in built}}
    ids = sorted((id for id in scopes if id != program), key=lambda id: reference(packages[id]))
    components = [component(packages[id], scopes[id], checksums) for id in ids]
    dependencies = []
    for id in sorted(scopes, key=lambda id: reference(packages[id])):
        names = {reference(packages[dependency["pkg"]]) for dependency in nodes[id]["deps"] if dependency["pkg"] in scopes}
        dependencies.append({"ref": reference(packages[id]), "dependsOn": sorted(names - {reference(packages[id])})})
    body = json.dumps([components, dependencies])
    whole = component(packages[program], "required", checksums)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, body)}",
        "version": 1,
        "metadata": {"component": {**whole, "type": "application"}},
        "components": components,
        "dependencies": dependencies,
    }


if __name__ == "__main__":
    os.environ.setdefault("CARGO_TERM_COLOR", "never")
    main()
