# The commands for contributors. Each first installs the tools it needs (scripts/setup.sh) and can be run again at any time.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# rustup's directory, for a shell that has not read its profile since the installation.
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin

# Release builds are optimized with a recorded profile of the benchmarks (scripts/profile.sh).
profile := $(wildcard $(CURDIR)/crates/evenkeel/default.profdata)
optimized := $(if $(profile),-Cprofile-use=$(profile) -Cllvm-args=-no-pgo-warn-mismatch)
comma := ,
# Functions of the same machine code are one: lld, the default linker there, can do it.
folded := $(if $(filter x86_64,$(shell uname -m)),-Clink-arg=-Wl$(comma)--icf=all)
# The functions that a running mesh needs lie side by side (scripts/order.sh), so that a proxy has fewer pages of code in memory.
order := $(wildcard $(CURDIR)/crates/evenkeel/default.order)
ordered := $(if $(and $(folded),$(order)),-Clink-arg=-Wl$(comma)--symbol-ordering-file=$(order) -Clink-arg=-Wl$(comma)--no-warn-symbol-ordering)
# Relative relocations, one bit each instead of 24 bytes (glibc 2.36).
packed := $(if $(folded),-Clink-arg=-Wl$(comma)-z$(comma)pack-relative-relocs)
# With a profile that fits, LLVM's vectorizer of straight-line code (SLP) ran for half an hour in the link. What it would gain was not measured.
scalar := -Cno-vectorize-slp
release_flags := RUSTC_WRAPPER=$(CURDIR)/scripts/rustc-named.sh RUSTFLAGS="$(RUSTFLAGS) $(optimized) $(folded) $(ordered) $(packed) $(scalar)"
release := $(release_flags) cargo build --release --locked
# After it: debug information goes into a file beside the program; both warn: of a program of more than 40 MB, and of a record that no longer fits.
finish := scripts/strip.sh target/release/evenkeel 40000000 && scripts/fits.sh target/release/evenkeel.debug
# A build with a short compile time, for `make demo`.
quick := cargo build --profile quick --locked

.PHONY: help
help: ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

.PHONY: demo
demo: ## Build quickly and run examples/capitals until Ctrl-C
	@scripts/setup.sh demo
	$(quick) --bin evenkeel
	target/quick/evenkeel up examples/capitals

.PHONY: demo-check
demo-check: ## Build quickly, run the example's scenario once, and print what was verified
	@scripts/setup.sh demo
	$(quick) --bin evenkeel
	target/quick/evenkeel up examples/capitals --check

# One build in the test profile serves every test: unit, golden, interoperation and end to end.
# ARGS is passed on: make test ARGS=--again
.PHONY: test
test: ## Run all tests: unit, golden, interoperation with Envoy, end to end
	@scripts/setup.sh test
	scripts/test.py $(ARGS)

.PHONY: thorough
thorough: ## Run all tests, those with random or repeated cases with all of them
	@scripts/setup.sh test
	THOROUGH=1 scripts/test.py $(ARGS)

# Not part of `make test`: SPIRE takes some nine minutes of CPU to build, once.
.PHONY: spire
spire: ## Build SPIRE (once), and run the test with its certificates
	@scripts/setup.sh test spire
	cargo test --workspace --locked --test it spire:: -- --ignored --nocapture

# Also part of `make test`: who runs both leaves it out here (rules=).
rules := cargo test --locked --package evenkeel-testkit --test it workspace_rules
# Also done by scripts/rustc-and-clippy.sh, while tests are built: who uses that leaves it out here (clippy=).
clippy := cargo clippy --workspace --all-targets --locked -- --deny warnings

.PHONY: lint
lint: ## Check formatting, clippy, licences, bans and dependencies between crates
	@scripts/setup.sh lint
	cargo fmt --all --check
	target/tools/bin/cargo-deny --locked check bans licenses sources
	$(clippy)
	$(rules)

# ARGS is passed on: make bench ARGS="--only hop --rounds 3"
.PHONY: bench
bench: ## Measure the proxy beside a byte-copying relay, Envoy, HAProxy and nginx
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory programs
	target/release/evenkeel-bench run $(ARGS)

# ARGS is passed on: make bench-control ARGS="--only full,storm"
.PHONY: bench-control
bench-control: ## Measure the control plane with thousands of simulated proxies
	@scripts/setup.sh build kubernetes
	$(release) --bin evenkeel --bin evenkeel-lab
	@$(finish)
	target/release/evenkeel-lab bars --kubernetes target/tools/kubernetes $(ARGS)

.PHONY: bless
bless: ## Accept the current output in all golden files
	BLESS=1 cargo test --workspace --locked

.PHONY: build
build: ## Build the optimized binary, with its debug information in a file beside it
	@scripts/setup.sh build
	$(release) --bin evenkeel
	@$(finish)

# ARCH=arm64 builds for another kind of machine. It needs Rust's target aarch64-unknown-linux-gnu and Debian's gcc-aarch64-linux-gnu, and
# nobody has run what it gives: the recorded profile and the measurements are of amd64.
ARCH ?= amd64
.PHONY: package
package: ## Build a tarball and a .deb of the optimized binary, target/package (ARCH=arm64: untested)
ifeq ($(ARCH),amd64)
	@$(MAKE) --no-print-directory build
	scripts/package.sh target/release/evenkeel amd64
else
	@scripts/setup.sh build
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
		cargo build --release --locked --bin evenkeel --target aarch64-unknown-linux-gnu
	@OBJCOPY=aarch64-linux-gnu-objcopy scripts/strip.sh target/aarch64-unknown-linux-gnu/release/evenkeel
	scripts/package.sh target/aarch64-unknown-linux-gnu/release/evenkeel arm64
	@echo "warning: nobody has run Evenkeel on arm64 yet" >&2
endif

# The container image, as an OCI layout in a tar archive: no registry and no base image is needed. Its files have the time of the commit.
.PHONY: image
image: ## Build the container image of the optimized binary, target/package/evenkeel-image.tar
	@scripts/setup.sh image
	@$(MAKE) --no-print-directory build
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} scripts/evenkeel-image.sh target/release/evenkeel target/package/evenkeel-image.tar

# Not part of `make test`: its programs of Kubernetes take some eight minutes of CPU to build, once. Needs root.
.PHONY: test-kubernetes
test-kubernetes: ## Build quickly, and test Pods in the mesh on a real Kubernetes with two nodes
	@scripts/setup.sh build nodes
	$(quick) --bin evenkeel
	scripts/kubernetes/test.py --program target/quick/evenkeel $(ARGS)

# Not part of `make test`, as the tests above. The suite takes some half an hour.
.PHONY: conformance
conformance: ## Build quickly, and run the Gateway API's conformance suite on a real Kubernetes, docs/conformance
	@scripts/setup.sh build conformance
	$(quick) --bin evenkeel
	scripts/kubernetes/conformance.py --program target/quick/evenkeel --reports docs/conformance $(ARGS)

# The binaries that the measurements run.
.PHONY: programs
programs:
	$(release) --bin evenkeel --bin evenkeel-bench
	@$(finish)

# The command that links the program, for scripts/order.sh.
.PHONY: link-args
link-args:
	@$(release_flags) cargo rustc --release --locked --package evenkeel --bin evenkeel --target-dir $(target) -- \
		-Csave-temps --print link-args

# The flags of release builds, for scripts/reproducible.sh.
.PHONY: release-flags
release-flags:
	@echo "$(optimized) $(folded) $(ordered) $(packed) $(scalar)"

# What the program consists of, for scanners of advisories and licences.
.PHONY: sbom
sbom: ## Write the list of the program's components, target/evenkeel.cdx.json (CycloneDX)
	@mkdir -p target
	scripts/sbom.py target/evenkeel.cdx.json

.PHONY: reproducible
reproducible: ## Build the committed sources twice, in different directories, and compare the hashes
	scripts/reproducible.sh

# DB is a clone of the RustSec advisory database: make advisories DB=/srv/advisory-db
.PHONY: advisories
advisories: ## Compare Cargo.lock with a copy of the RustSec advisory database (DB=DIRECTORY)
	@scripts/setup.sh lint
	scripts/advisories.sh "$(DB)"

.PHONY: order
order: ## Record which functions a running mesh needs, as root (35 minutes)
	scripts/order.sh

.PHONY: profile
profile: ## Record the profile for release builds (25 minutes)
	scripts/profile.sh
