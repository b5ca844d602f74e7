# Everything here sets itself up: Python 3.10 or later with venv, and make, are enough.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DOCS := .venv-docs
OLDEST := .venv-oldest
DIST := .venv-dist
PYTEST_ARGS ?=
# Tests start hundreds of processes: without bytecode, each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# More processes than most machines have cores, because tests of clusters wait. Each one more imports
# all tests. Those that share a server run in one of them.
PYTEST_PROCESSES ?= 4
PARALLEL := --numprocesses $(PYTEST_PROCESSES) --dist loadgroup
# What is not collected need not be imported by each process.
NO_SERVERS := -m "not backend" --ignore=tests/backends

# The oldest releases that pyproject.toml admits; the suite runs against them, too.
OLDEST_PINS := "dask==2025.1.0" "distributed==2025.1.0" "dask-expr==2.0.0" \
	"opentelemetry-api==1.28.0" "opentelemetry-sdk==1.28.0" "opentelemetry-exporter-otlp==1.28.0" \
	"bokeh==3.4.0"

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-backends test-all test-oldest backends lint format generate \
	compatibility bench bench-check chaos dist clean

help: ## Show what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.done ## Install the package and its tools into .venv

demo: $(VENV)/.done ## Run a real workflow and show where its time went
	$(BIN)/dask-otel demo $(ARGS)

test: $(VENV)/.done ## Run the tests against the newest releases, without real servers
	$(BIN)/python -m pytest $(PARALLEL) $(NO_SERVERS) $(PYTEST_ARGS)

test-backends: $(VENV)/.done ## Run the tests against the real servers (see `make backends`)
	$(BIN)/python -m pytest -m backend $(PYTEST_ARGS)

test-all: $(VENV)/.done ## Run both at once
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

test-oldest: $(OLDEST)/.done ## Run the tests against the oldest supported releases
	$(OLDEST)/bin/python -m pytest $(PARALLEL) $(NO_SERVERS) $(PYTEST_ARGS)

backends: $(VENV)/.done ## Build the real servers that the backend tests need (Go; takes minutes, once)
	$(BIN)/python tools/build_backends.py $(ARGS)

lint: $(VENV)/.done ## Check style, types and architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/scan.py

format: $(VENV)/.done ## Put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(VENV)/.done ## Write what is made of other files: settings, dashboards, Kubernetes
	$(BIN)/python tools/build_settings.py
	$(BIN)/python tools/build_dashboards.py
	$(BIN)/python tools/build_kubernetes.py

.PHONY: pictures
pictures: $(VENV)/.done ## Run the demo and a full cluster, and draw their terminals and pages into docs/images (pages: Chromium)
	$(BIN)/python -m tools.build_pictures

# For one Python: `PYTHON=python3.13 VENV=.venv-3.13 OLDEST=.venv-oldest-3.13 make compatibility`.
compatibility: ## Run the tests on both ends of the releases, and write down what ran
	-DASK_OTEL_COMPATIBILITY=$(CURDIR)/docs/compatibility.jsonl $(MAKE) test
	-DASK_OTEL_COMPATIBILITY=$(CURDIR)/docs/compatibility.jsonl $(MAKE) test-oldest
	$(BIN)/python tools/build_compatibility.py

.PHONY: docs
docs: $(DOCS)/.done ## Build the site into build/site (Python 3.11 or later); any warning is an error
	$(DOCS)/bin/sphinx-build --fail-on-warning --fresh-env --quiet --builder html \
		--doctree-dir build/doctrees docs build/site
	@echo "Built: build/site/index.html"

$(DOCS)/.done: pyproject.toml
	@echo "Setting up $(DOCS) with what the site is built with (once)"
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet "pip>=25.1"
	$(DOCS)/bin/python -m pip install --quiet --editable . --group docs
	@touch $@

bench: $(VENV)/.done ## Measure what the bridge costs (an hour; ARGS=--quick is rough)
	$(BIN)/python -m benchmarks $(ARGS)

bench-check: $(VENV)/.done ## Fail if the bridge needs more instructions than published (valgrind)
	$(BIN)/python -m benchmarks --check

# What was interrupted goes on where it stopped; `CHAOS_SECONDS=300` kills workers for longer.
chaos: $(VENV)/.done ## Run a real cluster through faults, and write docs/reliability*.md (up to two hours)
	$(BIN)/python -m chaos $(ARGS)

LAB_SEEDS ?= 20000

.PHONY: lab
lab: $(VENV)/.done ## Compare random programs in simulated time with the truth (LAB_SEEDS=20000; an hour)
	$(BIN)/python -m tests.simulated 0 $(LAB_SEEDS)

.PHONY: planted
planted: $(VENV)/.done ## Compare the report's headline with causes that were planted (ARGS=--unseen for the others)
	$(BIN)/python -m tests.planted --real $(ARGS)

DASK_TESTS := .venv-dask-tests

.PHONY: dask-tests
dask-tests: $(DASK_TESTS)/.done ## Run Dask's own tests with the bridge on and without (DASK=a checkout of distributed)
	$(DASK_TESTS)/bin/python tools/dask_tests.py $(DASK) $(ARGS)

$(DASK_TESTS)/.done: pyproject.toml
	@echo "Setting up $(DASK_TESTS) with what Dask's own tests are run with (once)"
	$(PYTHON) -m venv $(DASK_TESTS)
	$(DASK_TESTS)/bin/python -m pip install --quiet "pip>=25.1"
	$(DASK_TESTS)/bin/python -m pip install --quiet --editable ".[demo]" --group dask-tests
	@touch $@

FUZZ := .venv-fuzz
RUNS ?= 1000000

.PHONY: fuzz
fuzz: $(FUZZ)/.done ## Throw a million hostile inputs at it (half an hour; RUNS=, ARGS=)
	$(FUZZ)/bin/python -m fuzz --runs $(RUNS) $(ARGS)

$(FUZZ)/.done: pyproject.toml
	@echo "Setting up $(FUZZ) (once; Linux, Python 3.11 to 3.13)"
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/python -m pip install --quiet "pip>=25.1"
	$(FUZZ)/bin/python -m pip install --quiet --editable . --group fuzz
	@touch $@

dist: $(DIST)/.done ## Build wheel and sdist, and try them in empty environments
	$(DIST)/bin/python tools/check_dist.py

clean: ## Remove what was installed and built here
	rm -rf $(VENV) $(OLDEST) $(DIST) $(DOCS) $(FUZZ) $(DASK_TESTS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.done: pyproject.toml
	@echo "Setting up $(VENV) (once; takes a minute or two)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[demo]" --group lint --group test --group deploy
	@touch $@

$(OLDEST)/.done: pyproject.toml Makefile
	@echo "Setting up $(OLDEST) with the oldest supported releases (once)"
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet "pip>=25.1"
	$(OLDEST)/bin/python -m pip install --quiet --editable ".[demo]" --group test $(OLDEST_PINS)
	@touch $@

$(DIST)/.done: pyproject.toml
	@echo "Setting up $(DIST), which builds the package (once)"
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet "pip>=25.1"
	$(DIST)/bin/python -m pip install --quiet --group dist
	@touch $@
