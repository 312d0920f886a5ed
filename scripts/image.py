#!/usr/bin/env python3
"""Writes an OCI image layout as a tar archive, from files of this machine and without a registry.

    scripts/image.py OUTPUT.tar NAME:TAG --program FILE [--argument WORD]... [--tool NAME]... [--file FILE=PATH]... [--user UID] [--sbom FILE]

The image has the program at /usr/local/bin and as its entry point, with the shared libraries that it and the tools need, and nothing
else. Files are sorted, belong to root, and have the time of SOURCE_DATE_EPOCH (default: 0), so the same files give the same image.
`ctr images import OUTPUT.tar` and `skopeo copy oci-archive:OUTPUT.tar …` read it.
"""
import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from datetime import datetime, timezone
from pathlib import Path

EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYOUT = "application/vnd.oci.image"
# Where Debian 12 has symbolic links to below /usr.
MERGED = {"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "usr/lib64"}


class Files:
    """What an image contains, by absolute path."""

    def __init__(self):
        self.content = {}
        self.links = dict(MERGED)
        self.sources = set()

    def add(self, source, path):
        source = Path(source)
        self.sources.add(source.resolve())
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        self.add_bytes(path, source.read_bytes(), mode)

    def add_bytes(self, path, content, mode=0o644):
        self.content[merged(path)] = (content, mode)

    def add_program(self, source, path):
        self.add(source, path)
        self.add_libraries(source)

    def add_libraries(self, program):
        for library in libraries(program):
            self.add(library, library)

    def layer(self):
        """The uncompressed archive."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in sorted({*self.content, *self.links, *folders({*self.content, *self.links}), "/tmp"}):
                self.write(archive, path)
        return buffer.getvalue()

    def write(self, archive, path):
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.mtime = EPOCH
        if path in self.links:
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, self.links[path], 0o777
            archive.addfile(entry)
        elif path in self.content:
            content, entry.mode = self.content[path]
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        else:
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if path == "/tmp" else 0o755
            archive.addfile(entry)


def merged(path):
    first = "/" + path.split("/")[1]
    return "/" + MERGED[first] + path[len(first):] if first in MERGED else path


def folders(paths):
    parents = {str(parent) for path in paths for parent in Path(path).parents}
    return parents - {"/"}


def libraries(program):
    result = subprocess.run(["ldd", program], capture_output=True, text=True)
    return re.findall(r"(/\S+) \(0x", result.stdout) if result.returncode == 0 else []


def add_tool(files, name):
    found = shutil.which(name, path=PATH)
    if not found:
        raise SystemExit(f"image: `{name}` is not on this machine; scripts/setup.sh image installs it")
    files.add_program(os.path.realpath(found), os.path.realpath(found))
    if os.path.realpath(found) != found:
        files.links[merged(found)] = os.path.realpath(found)
    if "xtables" in os.path.realpath(found):
        # iptables loads its matches and targets when rules name them.
        for extension in sorted(Path("/usr/lib").glob("*/xtables/*.so")):
            files.add_program(extension, str(extension))


def packages(files):
    """The Debian packages that the files are from, with their versions."""
    names = set()
    for source in files.sources:
        # Packages own files by the names from before /usr was merged.
        for path in {str(source), str(source).removeprefix("/usr")}:
            result = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True)
            names |= {line.split(":")[0] for line in result.stdout.splitlines()}
    listing = subprocess.run(["dpkg-query", "--show", "--showformat=${Package} ${Version} ${Architecture}\n", *sorted(names)],
                             capture_output=True, text=True).stdout if names else ""
    return sorted(line.split() for line in listing.splitlines())


def describe(files, sbom):
    """Adds the list of components, with the Debian packages and their licences."""
    found = packages(files)
    document = json.loads(Path(sbom).read_text(encoding="utf-8"))
    for name, version, architecture in found:
        url = f"pkg:deb/debian/{name}@{version}?arch={architecture}&distro=debian-12"
        document["components"].append(
            {"type": "library", "bom-ref": url, "name": name, "version": version, "scope": "required", "purl": url})
        licence = Path(f"/usr/share/doc/{name}/copyright")
        if licence.exists():
            files.add_bytes(str(licence), licence.read_bytes())
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    files.add_bytes("/usr/share/doc/evenkeel/sbom.cdx.json", text.encode())


def image(files, options):
    """The blobs by digest, and the descriptor of the image."""
    layer = files.layer()
    machine = MACHINES.get(os.uname().machine, os.uname().machine)
    created = datetime.fromtimestamp(EPOCH, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = Path(options.program).name
    run = {"Entrypoint": [f"/usr/local/bin/{name}"], "Cmd": options.argument or None, "Env": [f"PATH={PATH}"], "User": options.user}
    config = {
        "created": created, "architecture": machine, "os": "linux", "config": {key: value for key, value in run.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]}, "history": [{"created": created, "created_by": "scripts/image.py"}],
    }
    blobs = {}
    layers = [put(blobs, gzip.compress(layer, 6, mtime=0), f"{LAYOUT}.layer.v1.tar+gzip")]
    config = put(blobs, encode(config), f"{LAYOUT}.config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": f"{LAYOUT}.manifest.v1+json", "config": config, "layers": layers}
    return blobs, put(blobs, encode(manifest), manifest["mediaType"])


def put(blobs, content, kind):
    name = digest(content)
    blobs[name] = content
    return {"mediaType": kind, "digest": name, "size": len(content)}


def encode(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def write_layout(output, name, blobs, descriptor):
    tag = name.rsplit(":", 1)[-1]
    names = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": name}
    index = {"schemaVersion": 2, "mediaType": f"{LAYOUT}.index.v1+json", "manifests": [{**descriptor, "annotations": names}]}
    content = {"oci-layout": encode({"imageLayoutVersion": "1.0.0"}), "index.json": encode(index)}
    content |= {f"blobs/{key.replace(':', '/')}": value for key, value in blobs.items()}
    staging = Path(f"{output}.new")
    with tarfile.open(staging, "w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(content):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(content[path]), EPOCH, 0o644
            archive.addfile(entry, io.BytesIO(content[path]))
    staging.rename(output)


def main():
    parser = argparse.ArgumentParser(description="Write an OCI image layout as a tar archive")
    parser.add_argument("output")
    parser.add_argument("name", help="NAME:TAG")
    parser.add_argument("--program", required=True, help="the entry point")
    parser.add_argument("--argument", action="append", default=[], help="an argument that the image itself gives")
    parser.add_argument("--tool", action="append", default=[], help="a program of this machine")
    parser.add_argument("--file", action="append", default=[], metavar="FILE=PATH", help="a file, and where the image has it")
    parser.add_argument("--user", default="", help="user and group, as numbers")
    parser.add_argument("--sbom", help="list of the program's components (scripts/sbom.py), to which those of Debian are added")
    options = parser.parse_args()
    files = Files()
    files.add_bytes("/etc/passwd", b"root:x:0:0:root:/:/\nnonroot:x:65532:65532::/:/\n")
    files.add_bytes("/etc/group", b"root:x:0:\nnonroot:x:65532:\n")
    files.add_bytes("/etc/nsswitch.conf", b"hosts: files dns\n")
    files.add_program(options.program, f"/usr/local/bin/{Path(options.program).name}")
    for tool in options.tool:
        add_tool(files, tool)
    for pair in options.file:
        files.add(*pair.split("=", 1))
    if options.sbom:
        describe(files, options.sbom)
    blobs, descriptor = image(files, options)
    write_layout(options.output, options.name, blobs, descriptor)
    print(f"{options.output}: {options.name}, {Path(options.output).stat().st_size / 1e6:.1f} MB, {descriptor['digest'][:19]}")


if __name__ == "__main__":
    main()
