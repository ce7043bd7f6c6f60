# Everything that a contributor or a build machine runs. From a fresh clone it needs rustup, make and a C compiler; `check` and
# `manifests` also need Go.

CARGO ?= cargo
TOOLS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/cofferdam/tools
CARGO_DENY_VERSION := 0.20.2
CARGO_AUDITABLE_VERSION := 0.7.7
CARGO_FUZZ_VERSION := 0.13.2
RUST_VERSION := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
WASM_TARGET := wasm32-wasip2

DENY := $(TOOLS)/cargo-deny-$(CARGO_DENY_VERSION)/bin/cargo-deny
AUDITABLE := $(TOOLS)/cargo-auditable-$(CARGO_AUDITABLE_VERSION)/bin
FUZZ := $(TOOLS)/cargo-fuzz-$(CARGO_FUZZ_VERSION)/bin/cargo-fuzz

.DEFAULT_GOAL := help

.PHONY: help
help: ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: toolchain ## build host and guests
	$(CARGO) build --locked --workspace

.PHONY: program
program: toolchain ## build the optimised program, with jemalloc: target/release/cofferdam
	$(CARGO) build --locked --release --package cofferdam --features jemalloc

# The time of the images and of all files in them.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
# Flags that keep the paths of this machine out of the program. They need a target directory of their own: with other flags, cargo
# builds everything anew.
IMAGE_TARGET := $(CURDIR)/target/image-build
IMAGE_FLAGS = --remap-path-prefix=$(CURDIR)=/cofferdam --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo
IMAGE_CFLAGS = -ffile-prefix-map=$(IMAGE_TARGET)=/target -ffile-prefix-map=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo
# Removes the symbol table and the digest that the linker has made of it: LLVM names local symbols by the bitcode of their module, which
# differs between two builds, because macros of wasmtime generate items in another order. Code and data are the same.
IMAGE_STRIP := objcopy --strip-all --remove-section=.note.gnu.build-id
IMAGE_BUILD = RUSTFLAGS="$(IMAGE_FLAGS)" CFLAGS="$(IMAGE_CFLAGS)" PATH="$(AUDITABLE):$$PATH" \
	CARGO_TARGET_DIR=$(IMAGE_TARGET) $(CARGO)

.PHONY: image
image: toolchain $(AUDITABLE)/cargo-auditable ## write the container images, an OCI layout with bills of materials: target/image
	@test -n "$(SOURCE_DATE_EPOCH)" || { echo "make image: not a git clone: set SOURCE_DATE_EPOCH, in seconds since 1970" >&2; exit 1; }
	$(IMAGE_BUILD) auditable build --locked --release --package cofferdam --features jemalloc
	$(IMAGE_BUILD) build --locked --release --package cofferdam-image
	$(IMAGE_STRIP) $(IMAGE_TARGET)/release/cofferdam $(IMAGE_TARGET)/cofferdam
	$(IMAGE_TARGET)/release/cofferdam-image build --binary $(IMAGE_TARGET)/cofferdam --created $(SOURCE_DATE_EPOCH) \
		--output target/image --archive target/image.tar

.PHONY: image-reproduce
image-reproduce: toolchain ## build the images of HEAD in two directories, and compare them: twice as long as image
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) deploy/image/reproduce.sh

.PHONY: release
release: toolchain $(AUDITABLE)/cargo-auditable ## write the files of a release, with Go for helm: program, images, chart, bills of materials, checksums: target/dist
	deploy/release/build.sh

.PHONY: image-pin
image-pin: toolchain ## pin the versions of Debian packages that apt would install, for the images, and the machines and the Ceph of make conformance
	$(CARGO) run --locked --package cofferdam-image -- pin
	$(CARGO) run --locked --package cofferdam-image -- pin --packages conformance/machines/packages.toml
	$(CARGO) run --locked --package cofferdam-image -- pin --packages conformance/ceph/packages.toml

.PHONY: dev
dev: toolchain ## build, show the demo, and keep a Kubernetes API with storage running for kubectl
	$(CARGO) run --locked --bin cofferdam -- dev --demo --keep-running

.PHONY: demo
demo: toolchain ## build and show the demo: exits 0 if every step succeeded
	$(CARGO) run --locked --bin cofferdam -- dev --demo

.PHONY: test
test: toolchain ## run every test
	$(CARGO) test --locked --workspace

.PHONY: check
check: fmt clippy deny doc documents-check manifests-check ## formatting, lints, licences and dependencies, documentation, documents of a release, rendered manifests

.PHONY: fmt
fmt: toolchain
	$(CARGO) fmt --all --check
	@! git grep -nE '^(<<<<<<<|>>>>>>>)( |$$)' || { echo "make fmt: conflict markers: expected none" >&2; exit 1; }

.PHONY: clippy
clippy: toolchain
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

.PHONY: deny
deny: toolchain $(DENY)
	$(DENY) --locked check --hide-inclusion-graph licenses bans sources

# Not part of `check`: the database changes by itself, so a commit that was green would turn red without a change.
ADVISORY_DATABASE := https://github.com/RustSec/advisory-db

.PHONY: advisories
advisories: toolchain $(DENY) ## compare the dependencies with the RustSec advisory database, which it fetches
	@$(DENY) --log-level error --locked fetch db || { \
		echo "make advisories: cannot fetch $(ADVISORY_DATABASE): expected access to it; the dependencies were not compared" >&2; exit 1; }
	$(DENY) --locked check --disable-fetch --hide-inclusion-graph advisories

.PHONY: doc
doc: toolchain
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items

.PHONY: manifests
manifests: ## render deploy/manifests from the Helm chart: with Go, which builds helm the first time
	deploy/helm/render.sh

.PHONY: manifests-check
manifests-check:
	deploy/helm/render.sh check

# The links and the names of archives in the documents of a release, before `make release` needs them.
.PHONY: documents-check
documents-check:
	deploy/release/documents.sh check

.PHONY: peers
peers: ## build etcd, Kubernetes, containerd and the Go sidecars into a cache: with Go, some 20 minutes the first time
	conformance/peers/build.sh

.PHONY: previous
previous: toolchain ## build the Cofferdam that the suite upgrade starts from into the same cache, from the history: some 10 minutes the first time
	conformance/peers/build.sh previous

.PHONY: e2e
e2e: ## build Kubernetes' end-to-end tests for the suite external-storage into the same cache: some 10 minutes the first time
	conformance/peers/build.sh e2e

.PHONY: conformance
conformance: toolchain need-root peers $(if $(filter upgrade,$(SUITE)),previous) $(if $(filter external-storage,$(SUITE)),e2e) ## run all suites on a real Kubernetes, or some by SUITE=name; KUBERNETES=1.33 selects its version; RESULTS=docs/conformance.md updates its table
	$(CARGO) build --locked --bin cofferdam --bin conformance
	$(CARGO) run --locked --bin conformance -- $(if $(RESULTS),--results=$(RESULTS)) $(if $(MATRIX),--matrix=$(MATRIX)) $(SUITE)

# The oldest version that is supported, that of the other suites, and the newest one. A failure does not stop the other versions.
MATRIX_VERSIONS := 1.33 1.36 1.37
MATRIX_SUITES := install provision replacement

.PHONY: conformance-matrix
conformance-matrix: need-root ## run the suites install, provision and replacement on several versions of Kubernetes, into README.md: an hour the first time
	failed=; for version in $(MATRIX_VERSIONS); do \
		$(MAKE) conformance KUBERNETES=$$version SUITE="$(MATRIX_SUITES)" MATRIX=README.md || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "make conformance-matrix: failed on Kubernetes$$failed" >&2; exit 1; }

.PHONY: bench-peers
bench-peers: toolchain need-root peers ## compare with the upstream controllers on CLAIMS=2000 claims and beside VOLUMES=20000 volumes, into docs/benchmarks.md; LOADS=scheduling,memory runs and prints a part
	$(CARGO) build --locked --release --package cofferdam --features jemalloc
	$(CARGO) build --locked --release --package cofferdam-conformance
	OUTPUT=$(CURDIR)/docs CLAIMS=$(CLAIMS) VOLUMES=$(VOLUMES) LOADS=$(LOADS) ITERATIONS=$(ITERATIONS) $(CARGO) run --locked --release --package cofferdam-conformance -- bench-peers

# Before anything is built for half an hour.
.PHONY: need-root
need-root:
	@test "$$(id -u)" -eq 0 || { echo "make conformance: not root: kubelet, mounts and namespaces need it" >&2; exit 1; }

.PHONY: bench-report
bench-report: toolchain ## write docs/benchmarks.md, its charts and the figures of README.md from docs/benchmarks.json, as bench-peers does
	$(CARGO) run --locked --bin conformance -- bench-report docs

.PHONY: bench
bench: toolchain ## measure: calls into the sandbox, neighbours, claims per second, dev mode (an optimised build)
	$(CARGO) bench --locked --package cofferdam-wasm --bench create_call
	$(CARGO) bench --locked --package cofferdam-wasm --bench calls
	$(CARGO) bench --locked --package cofferdam-wasm --bench neighbours
	$(CARGO) bench --locked --package cofferdam-sim --bench claims
	$(CARGO) bench --locked --package cofferdam --bench dev

# What a run finds stays in target/fuzz; an input that breaks a property is written to host/testing/fuzz/fuzz/artifacts. Without a
# sanitizer, the stable toolchain suffices: no crate has unsafe code of its own.
FUZZ_TARGETS := component connection_info http node node_record origins values
FUZZ_SECONDS ?= 600
FUZZ_FLAGS := --fuzz-dir host/testing/fuzz/fuzz --target-dir $(CURDIR)/target/fuzz --sanitizer none

.PHONY: fuzz
fuzz: toolchain $(FUZZ) ## search for inputs that break the host, or one target by FUZZ_TARGETS=http; FUZZ_SECONDS=600 for each: libFuzzer, 10 minutes to build
	for target in $(FUZZ_TARGETS); do \
		mkdir -p target/fuzz/corpus/$$target && $(FUZZ) run $(FUZZ_FLAGS) $$target target/fuzz/corpus/$$target \
			host/testing/fuzz/corpus/$$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

.PHONY: chart
chart: toolchain ## write the generated files of the chart: RBAC rules, admission policies, schema of the values
	UPDATE_CHART=1 $(CARGO) test --locked --package cofferdam --bin cofferdam chart_tests

.PHONY: samples
samples: ## build the drivers in other languages, or the one of SAMPLE=c, go, python or javascript
	$(MAKE) --directory samples $(or $(SAMPLE),all)

.PHONY: install-tools
install-tools: toolchain $(DENY) ## install what the other targets need, as they do by themselves

# rustup installs nothing by itself where that is switched off, so the toolchain of rust-toolchain.toml is asked for by name.
.PHONY: toolchain
toolchain:
	@if ! { $(CARGO) --version && $(CARGO) clippy --version && $(CARGO) fmt --version \
		&& test -d "$$(rustc --print sysroot)/lib/rustlib/$(WASM_TARGET)"; } >/dev/null 2>&1; then \
		echo "installing Rust $(RUST_VERSION) with clippy, rustfmt and $(WASM_TARGET)"; \
		rustup toolchain install $(RUST_VERSION) --profile minimal \
			--component clippy --component rustfmt --target $(WASM_TARGET); \
	fi

# Built in a directory of its own, so that neither its profile nor its target directory is ours; without optimisation, for it is
# built much longer than it ever runs.
$(DENY):
	$(CARGO) install --debug --locked cargo-deny --version $(CARGO_DENY_VERSION) --root $(TOOLS)/cargo-deny-$(CARGO_DENY_VERSION)

$(AUDITABLE)/cargo-auditable:
	$(CARGO) install --debug --locked cargo-auditable --version $(CARGO_AUDITABLE_VERSION) --root $(dir $(AUDITABLE))

$(FUZZ):
	$(CARGO) install --debug --locked cargo-fuzz --version $(CARGO_FUZZ_VERSION) --root $(TOOLS)/cargo-fuzz-$(CARGO_FUZZ_VERSION)
