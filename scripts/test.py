#!/usr/bin/env python3
"""Builds and runs all tests of the workspace. The test programs run two at a time: most of them wait for processes, time limits and
peers more than they compute, and cargo itself runs one after the other.

    scripts/test.py             build, and run everything
    scripts/test.py --no-run    only build
    scripts/test.py --again     run everything, and what failed once more, one test at a time on the then quiet machine. It succeeds if
                                all of that passes, and names it: such a test depends on how busy the machine is, and needs mending.

Each program's output is in target/tests/; what failed is also printed.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "tests"
# Where rustup puts cargo, and where Debian puts what only root used to call.
os.environ["PATH"] = ":".join([str(Path.home() / ".cargo/bin"), os.environ["PATH"], "/usr/sbin", "/sbin"])
CARGO = ["cargo", "test", "--workspace", "--locked"]
PROGRAMS_AT_A_TIME = 2
# How many tests of a package run at a time. Those that load every core and hold what they see against limits that a starved worker
# misses: one. Those of the agent, the control plane, the proxy and the whole program wait more than they compute. Of all others, as
# many as there are cores. Tests that record are told apart by their threads, so there have to be two at least.
THREADS = {
    "agent": 2, "bench": 1, "control": 3, "evenkeel": 2, "lab": 1, "local": 1, "proxy": 2, "translate": max(2, os.cpu_count()),
    "upstream": 1,
}
# The packages whose tests take longest; they come first, so that no core is left alone with one of them at the end.
LONGEST = ["evenkeel", "proxy", "translate", "bench", "explain", "control"]

# Tests that run when the others are done, and nothing runs beside them: those that hold how evenly cores are loaded against limits, and
# those that look at what others have recorded (crates/translate/tests/it/recorded.rs, crates/evenkeel/tests/it/up/agreement/tables.rs).
ALONE = {"proxy it": "balance::", "translate it": "recorded::", "evenkeel it": "up::agreement::tables::"}
RECORDING = "translate it"
# Those of them that read the record.
READING = ["translate it", "evenkeel it"]

PRINTING = threading.Lock()


class Program:
    """One test program, or a part of it: the unit tests of a library or of a program, or a crate's integration tests."""

    def __init__(self, message, is_alone):
        package = re.search(r"([^/#@]+)(?:@[^@]*)?$", message["package_id"]).group(1)
        manifest = Path(message["manifest_path"])
        self.package = manifest.parent.name
        self.target = "unit tests" if message["target"]["kind"] != ["test"] else message["target"]["name"]
        self.name = f"{self.package} {self.target}"
        self.path = message["executable"]
        self.folder = manifest.parent
        self.environment = {**os.environ, "CARGO_MANIFEST_DIR": str(self.folder), "CARGO_PKG_NAME": package}
        self.log = LOGS / f"{self.package}-{Path(message['target']['src_path']).stem}-{message['target']['name']}.log"
        if is_alone and self.name in READING:
            self.environment["EVENKEEL_TEST_RECORDED"] = str(LOGS / "translate.record")
        elif self.name == RECORDING:
            self.environment["EVENKEEL_TEST_RECORD"] = str(LOGS / "translate.record")
        self.is_alone, self.arguments = is_alone, []
        if part := ALONE.get(self.name):
            self.arguments = [part] if is_alone else ["--skip", part]
        if is_alone:
            self.name += f" ({part.rstrip(':')}, alone)"
            self.log = self.log.with_suffix(".alone.log")

    def rank(self):
        first = LONGEST.index(self.package) if self.package in LONGEST else len(LONGEST)
        return (self.is_alone, first, self.target == "unit tests", self.name)

    def run(self, log, arguments, threads):
        environment = dict(self.environment)
        if threads:
            environment["RUST_TEST_THREADS"] = str(threads)
        with log.open("wb") as output:
            return subprocess.run(
                [self.path, *arguments], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode


class Outcome:
    """What a run of a program came to."""

    def __init__(self, program, code, text, seconds):
        self.program, self.text, self.seconds = program, text, seconds
        self.passed = sum(int(count) for count in re.findall(r"^test result: .*? (\d+) passed;", text, re.M))
        ignored = sum(int(count) for count in re.findall(r"^test result: .*? (\d+) ignored;", text, re.M))
        # The last list of failures has only their names.
        listed = text.rsplit("\nfailures:\n", 1)
        self.failed = re.findall(r"^    (\S+)$", listed[1], re.M) if len(listed) == 2 else []
        self.is_good = code == 0
        self.line = f"{program.name}: {self.passed} passed" + (f", {ignored} ignored" if ignored else "")
        if not self.is_good:
            self.line += f", {len(self.failed)} FAILED" if self.failed else f", FAILED with status {code}"
        self.line += f" in {seconds:.1f} s"


def build():
    """The test programs, built."""
    # Without --no-fail-fast, cargo goes no further than the first crate that does not compile.
    command = [*CARGO, "--no-run", "--no-fail-fast", "--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(built.returncode)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    tests = [message for message in messages if message.get("executable") and message["profile"]["test"]]
    programs = [Program(message, False) for message in tests]
    programs += [Program(message, True) for program, message in zip(programs, tests) if program.name in ALONE]
    return sorted(programs, key=Program.rank)


def run(program):
    with PRINTING:
        print(f"{program.name} …", flush=True)
    start = time.monotonic()
    code = program.run(program.log, program.arguments, THREADS.get(program.package))
    outcome = Outcome(program, code, program.log.read_text(errors="replace"), time.monotonic() - start)
    with PRINTING:
        print(outcome.line if outcome.is_good else f"{outcome.text}\n{outcome.line}", flush=True)
    return outcome


def run_examples():
    """Whether the examples of the documentation pass. `--doc` would have rustdoc read the crates, too, whose manifests say that they have
    none; only names of examples have this in them."""
    command = [*CARGO, "--quiet", "--", "(line "]
    ran = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    passed = sum(int(count) for count in re.findall(r"(\d+) passed;", ran.stdout))
    print(f"examples: {passed} passed" if ran.returncode == 0 else ran.stdout, flush=True)
    return ran.returncode == 0


def run_again(outcome):
    """Whether all tests that failed pass alone. A program that ended before it named one has nothing to run again."""
    if not outcome.failed:
        return False
    log = outcome.program.log.with_suffix(".again.log")
    # What has failed may not have recorded everything.
    if outcome.program.package == "translate":
        outcome.program.environment.pop("EVENKEEL_TEST_RECORDED", None)
    start = time.monotonic()
    code = outcome.program.run(log, ["--exact", *outcome.failed], 1)
    again = Outcome(outcome.program, code, log.read_text(errors="replace"), time.monotonic() - start)
    passes = again.is_good and again.passed >= len(outcome.failed)
    print("Failed once, and passed alone: " + ", ".join(outcome.failed) if passes else again.text, flush=True)
    return passes


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--no-run", action="store_true")
    arguments.add_argument("--again", action="store_true")
    arguments = arguments.parse_args()
    programs = build()
    if arguments.no_run:
        return
    LOGS.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    pool = ThreadPoolExecutor(PROGRAMS_AT_A_TIME)
    try:
        outcomes = list(pool.map(run, [program for program in programs if not program.is_alone]))
        outcomes += [run(program) for program in programs if program.is_alone]
    finally:
        # Ctrl-C ends those that run, which are of the same process group; no others are started.
        pool.shutdown(cancel_futures=True)
    seconds = time.monotonic() - start
    examples = run_examples()
    failed = [outcome for outcome in outcomes if not outcome.is_good]
    passed = sum(outcome.passed for outcome in outcomes)
    print(f"\n{passed} tests passed in {seconds:.0f} s; output: {LOGS}")
    for outcome in failed:
        print(f"{outcome.program.name} FAILED: {', '.join(outcome.failed) or 'see above'}", flush=True)
    if failed and arguments.again:
        failed = [outcome for outcome in failed if not run_again(outcome)]
    if failed or not examples:
        sys.exit("Tests failed." if failed else "Examples of the documentation failed.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
