# Every target sets itself up in .venv and touches nothing outside this directory.
# ARGS goes through to the command: make test ARGS='-k ledger', make demo ARGS='--gpus 4'.

# The supported Pythons that start here and can make .venv, newest first. A name may be a shim of one that is not chosen.
PYTHONS = $(shell sed -n 's/.*:: Python :: \(3\.[0-9]*\)".*/python\1/p' pyproject.toml | sort -rV | \
  while read -r python; do if $$python -c 'import ensurepip, venv' 2>/dev/null; then echo $$python; fi; done)
PYTHON ?= $(eval PYTHON := $(or $(firstword $(PYTHONS)),python3))$(PYTHON)
# Processes of tests: each loads all tests. A core each, and at most 4.
JOBS ?= $(or $(filter 1 2 3 4,$(shell nproc 2>/dev/null)),4)
ARGS ?=
OUT ?= .
BIN ?= .venv/bin
# The environment: what runs, for the demo; and what else the tests and all other targets need.
DEMO := .venv/.demo
READY := .venv/.ready
# The compiled kernels: not committed, needed by tests of the GPU code and by a real GPU. The last file that is written.
KERNELS := scrubber/cuda/kernels/scrub.ptx
# No package of Python carries the program itself; Go compares it with its database of checksums.
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
# The programs of a node: Kubernetes says its version, and NVIDIA's plugin finds NVML when it runs.
GO_BUILD = CGO_LDFLAGS_ALLOW='-Wl,--unresolved-symbols=ignore-in-object-files' nice -n 19 go build -p 2 -trimpath \
  -buildvcs=false -tags no_btrfs,no_devmapper,no_zfs \
  -ldflags "-s -w -extldflags=-Wl,-z,lazy -X k8s.io/component-base/version.gitVersion=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes)"
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q
# The stubs of the .proto files: their types (*.pyi), and what else the caller names. By the programs of $(1), into $(2).
protoc = PATH="$(abspath $(1)):$$PATH" $(1)/python -m grpc_tools.protoc -I. scrub_api/scrub.proto \
  plugin/kubelet_api/*.proto plugin/cluster/nvsentinel.proto --mypy_out=quiet:$(2) --mypy_grpc_out=quiet:$(2)
# uv takes a quarter of pip's time; where it finds no package index, pip may know one.
install = .venv/bin/uv pip install -q --compile-bytecode --python .venv/bin/python $(1) 2>/dev/null || \
  .venv/bin/python -m pip install -qq $(1)
# What the image is made of: the releases of requirements.lock, each by its hash.
IMAGE := --universal --python-version 3.11 --extra cluster --extra receipts --generate-hashes --constraint requirements.lock \
  --no-emit-index-url --no-emit-find-links --no-annotate --no-header

MAKEFLAGS += --no-builtin-rules
unexport PYTHONDONTWRITEBYTECODE # or each of thousands of programs that the tests start compiles itself anew
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo observe check test pythons lint format golden bench trial mutate night soak node cluster machine actionlint proto kernels docs dashboards deploy preview image release lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO) ## the whole story on simulated GPUs
	@$(BIN)/python -m demo $(ARGS)

observe: $(DEMO) ## a bad day in a loop, with metrics and a Prometheus on the loopback; Ctrl-C ends it
	@$(BIN)/python -m demo.bad_day $(ARGS)

check: $(READY) ## the tests of most changes, in a minute and a half: linters, core, observe, fence, service, ledger
	@$(PYTEST) tests/house/test_lint.py tests/house/test_contracts.py \
	  tests/core/test_acquire.py tests/core/test_start.py tests/core/test_verdict.py tests/observe tests/fence tests/service \
	  tests/ledger $(ARGS)

test: $(READY) $(KERNELS) ## all checks: linters, and every test that shows a promise
	@$(PYTEST) $(ARGS)

pythons: ## list the supported Pythons that start here; a new .venv has the first one, or PYTHON
	@echo $(PYTHONS)

lint: $(READY) ## the linters alone
	@$(BIN)/python -m pytest -q tests/house/test_lint.py $(ARGS)

format: $(READY) ## fix what the linters can fix
	@$(BIN)/ruff check -q --fix-only . && $(BIN)/ruff format -q .

golden: $(READY) ## write the words of tests/cli/golden again; exit codes stay, and are red where they differ
	@$(PYTEST) --golden tests/cli/test_golden.py $(ARGS)

bench: $(READY) $(KERNELS) ## measure, and print the figures
	@$(BIN)/python -m benchmarks $(ARGS)

trial: $(READY) $(KERNELS) ## try everything on this machine's NVIDIA GPU, in nine minutes; resets nothing, changes no setting
	@$(BIN)/python -m benchmarks.trial $(ARGS)

mutate: $(READY) $(KERNELS) ## every mutant of the core; make test runs the planted ones only
	@$(PYTEST) --night --timeout 1200 tests/house/test_mutations.py $(ARGS)

night: $(READY) $(KERNELS) ## all checks, and the tests marked night: many random examples, every mutant, a short soak
	@$(PYTEST) --night --timeout 1200 $(ARGS)

soak: $(READY) $(KERNELS) ## ten minutes of the campaign with new seeds, and 1,000 pods in a row
	@$(BIN)/python -m pytest -q --soak tests/soak $(ARGS)

node: ## build the programs of a real Kubernetes node into build/node; needs Go, takes half an hour once
	@command -v go >/dev/null || { echo "cannot build the node: Go is not installed (go.dev/dl)" >&2; exit 1; }
	@cd tests/cluster/node && for program in $$(go list tool) ./gpuapp ./pause ./devicemanager; do \
	  echo "building $${program##*/}" >&2; $(GO_BUILD) -o $(CURDIR)/build/node/ $$program || exit 1; done

# BIN: the node's programs
cluster: BIN = build/node
cluster: $(READY) $(KERNELS) ## the tests on a real Kubernetes node, as root; its programs are those of make node, or of BIN=DIR
	@.venv/bin/python -m tests.cluster.isolated .venv/bin/python -m pytest -q -m cluster $(if $(findstring tests/cluster/,$(ARGS)),,tests/cluster) \
	  --programs $(BIN) $(ARGS)

# No .venv here: the machine has its own. A campaign that needs one makes it, after what is missing was said.
machine: ## try what needs systemd and control groups v2, in a Debian as user-mode Linux, without root; ARGS='COMMAND' runs in it
	@$(PYTHON) -m tests.machine $(ARGS)

actionlint: ## build the checker of the workflows into build/tools; needs Go. Without it, one test is skipped
	@GOBIN=$(CURDIR)/build/tools nice -n 19 go install -trimpath $(ACTIONLINT)

proto: $(READY) ## regenerate the stubs from the .proto files
	@$(call protoc,$(BIN),$(OUT)) --python_out=$(OUT) --grpc_python_out=$(OUT)

# uv takes a quarter of pip's time; where it finds no package index, pip may know one.
kernels: $(READY) ## compile the GPU kernels, once; needs no GPU and no toolkit (ARGS=--accept after a change of their source)
	@test -d build/nvrtc || $(BIN)/uv pip install -q --python $(BIN)/python --target build/nvrtc --group kernels 2>/dev/null || \
	  $(BIN)/python -m pip install -qq --target build/nvrtc --group kernels
	@PYTHONPATH=build/nvrtc $(BIN)/python -m deploy.compile_kernels $(ARGS)
	@touch $(KERNELS)

$(KERNELS): scrubber/cuda/kernels/scrub.cu scrubber/cuda/kernels/machine.cuh scrubber/cuda/kernels/manifest.json
	@$(MAKE) -s kernels ARGS=

docs: $(READY) ## update the generated pages: commands (and build/autoclave.1), metrics, alerts, map of the code, policies, figures
	@$(BIN)/python -m deploy.manual docs/cli.md
	@mkdir -p build && $(BIN)/python -m deploy.manual man > build/autoclave.1
	@$(BIN)/python -m dashboards.reference > docs/metrics.md
	@$(BIN)/python -m dashboards.reference docs/alerts.md
	@$(BIN)/python -m deploy.code_map > docs/map.md
	@$(BIN)/python -m deploy.policy_schema > policies/schema.json
	@$(BIN)/python -m deploy.policy_schema page > docs/policy-fields.md
	@$(BIN)/python -m benchmarks.on_gpus > docs/measurements/gpus.md
	@$(BIN)/python -m benchmarks.service_page > docs/measurements/service.md
	@$(BIN)/python -m benchmarks.readme README.md

dashboards: $(READY) ## update the committed dashboards
	@$(BIN)/python -m dashboards

preview: $(READY) ## pictures of the dashboards, with the data of make observe; needs npm, chromium and pngquant
	@$(BIN)/python -m dashboards.preview $(or $(ARGS),build/pictures)

deploy: $(READY) ## update what is made from the chart: the table of its values, and kustomize
	@$(BIN)/python -m deploy.generate

image: $(READY) ## build the image with buildah, podman or docker (ARGS="--cuda none" for simulated GPUs)
	@$(BIN)/python -m deploy.image $(ARGS)

version: $(READY) ## set the version in every file that names it: make version VERSION=0.2.0-rc.1
	@case "$(VERSION)" in [0-9]*.[0-9]*.[0-9]*) ;; *) echo "cannot set the version to '$(VERSION)': give VERSION=0.2.0" >&2; exit 2 ;; esac
	@old=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' scrubber/__init__.py | sed 's/[.]/[.]/g') && \
	  sed -i "s/\b$$old\b/$(VERSION)/g" scrubber/__init__.py deploy/helm/autoclave/Chart.yaml \
	    $$(grep -rlE "autoclave[^ ]*:$$old|tag: $$old|\`$$old" deploy/helm deploy/examples docs --include='*.md' --include='*.yaml')
	@$(MAKE) -s docs deploy

release: $(READY) $(KERNELS) ## make all that a tag publishes into build/release, and try each part in a clean place
	@$(BIN)/python -m deploy.release $(ARGS)

rehearsal: $(READY) ## publish what make release made to a registry on the loopback, signed by a key, and verify it from there
	@$(BIN)/python -m deploy.rehearsal

lock: $(READY) ## update the pins of the dependencies (ARGS=--upgrade takes newer releases)
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --group dev --no-emit-index-url \
	  --no-emit-find-links --no-annotate --no-header $(ARGS) pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile -q $(IMAGE) $(ARGS) pyproject.toml -o deploy/requirements/none.lock
# What the images for NVIDIA GPUs have more than the image without CUDA.
	@for lock in deploy/requirements/cuda12.lock deploy/requirements/cuda13.lock; do \
	  $(BIN)/uv pip compile -q $(IMAGE) --extra $$(basename $$lock .lock) $(ARGS) pyproject.toml -o $$lock && \
	  { echo '-r none.lock'; grep -vxFf deploy/requirements/none.lock $$lock; } > $$lock.new && mv $$lock.new $$lock || exit 1; done
# What the trial takes along, in the same releases.
	@awk -F '==| ;' 'NR == FNR { release[$$1] = $$2; next } $$1 in release { $$0 = $$1 "==" release[$$1] } 1' \
	  requirements.lock benchmarks/trial/packages.txt > benchmarks/trial/packages.new && mv benchmarks/trial/packages.new benchmarks/trial/packages.txt
# What builds the image, and is not in it.
	@echo uv | $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --constraint requirements.lock \
	  --no-emit-index-url --no-emit-find-links --no-annotate --no-header $(ARGS) - -o deploy/tools.lock

outdated: $(READY) ## list which pinned packages and tools have newer releases; changes nothing
	@$(BIN)/python -m deploy.outdated

clean: ## remove the environment and everything that was made
	@rm -rf .venv build dist .*_cache .hypothesis scrubber/cuda/kernels/*.cubin scrubber/cuda/kernels/*.ptx */*/*_pb2*.pyi
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEMO): pyproject.toml deploy/requirements/none.lock
	@command -v $(PYTHON) >/dev/null || { echo "cannot set up: $(PYTHON) is not installed; set PYTHON=" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "cannot set up: $$($(PYTHON) --version) is older than 3.11; set PYTHON= to a newer one" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "cannot set up: $(PYTHON) has no ensurepip; install its venv package (Debian: python3-venv)" >&2; exit 1; }
	@echo 'setting up .venv, once: 150 MB' >&2
	@.venv/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@.venv/bin/python -m pip install -qq "$$(grep ^uv== requirements.lock)"
	@echo 'loading the packages of the service and the plugin' >&2
	@$(call install,-r deploy/requirements/none.lock)
# Makes the command autoclave of this checkout.
	@$(call install,$$(grep -E '^(hatchling|editables|packaging|pathspec|pluggy|trove-classifiers)==' requirements.lock))
	@.venv/bin/uv pip install -q --python .venv/bin/python --no-deps --no-build-isolation -e .
	@touch $@

$(READY): $(DEMO) requirements.lock
	@echo 'loading what the tests need, once: 800 MB more' >&2
	@$(call install,-r requirements.lock)
# mypy and editors need the types of the stubs. No program does, so they are not committed.
	@$(call protoc,.venv/bin,.)
	@touch $@
