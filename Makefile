# `make run` serves a small model on this machine; `make test` runs everything that can run here. Both set up what they need.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
unexport PYTHONDONTWRITEBYTECODE # hundreds of short processes would compile everything anew

.PHONY: help run stop lab lab-down test check check-form check-types check-imports check-units-1 check-units-2 coverage soak format lock schemas docs clean system-packages

help: ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.control: requirements/control.txt requirements/build.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "sbctl needs Python 3.11 or newer (set PYTHON=)"; exit 1; }
	@test -x $(BIN)/python || { echo "setting up $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@test -x $(UV) || $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r <(awk '/^uv==/{p=1} p{print} p && !/\\$$/{exit}' requirements/control.txt)
	@$(UV) pip install --quiet --compile-bytecode --require-hashes -r requirements/control.txt
	@$(UV) pip install --quiet --require-hashes -r requirements/build.txt
	@$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.control
	@$(UV) pip install --quiet --compile-bytecode --require-hashes -r requirements/dev.txt
	@touch $@

run: $(VENV)/.control ## plan and apply examples/quickstart, ask the model one question, leave it serving
	@$(BIN)/python examples/quickstart/run.py

stop: $(VENV)/.control ## remove what `make run` made
	@$(BIN)/sbctl destroy -f examples/quickstart/sb.yml --yes

lab: HOSTS = 4
lab: system-packages ## boot three hosts behind a jump on this machine, to try a fleet on (examples/lab), or more (HOSTS=9); needs root
	@examples/lab/lab.sh up $(HOSTS)

lab-down: ## end them and leave nothing behind
	@examples/lab/lab.sh down

system-packages:
	@tests/lab/install_packages.sh

test: $(VENV)/.dev system-packages ## every test that can run on this machine; says what it left out and why
	@$(BIN)/python tests/run.py

check: $(VENV)/.dev ## format, types, imports and the short unit tests, side by side, in under a minute
	@$(MAKE) --no-print-directory --jobs 3 --keep-going --output-sync=target check-form check-types check-units-1 check-units-2 check-imports

check-form:
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .

check-types:
	@$(BIN)/mypy

check-imports:
	@$(BIN)/lint-imports --no-logo 2>&1 | tail -4

# Two halves, each of which reads its own files only: reading all of them takes as long as half of the tests.
UNITS := $(sort $(wildcard tests/unit/[a-z]*)) tests/providers
check-units-1: CHOSEN = $(wordlist 1,10,$(UNITS))
check-units-2: CHOSEN = $(wordlist 11,99,$(UNITS))
check-units-1 check-units-2:
	@$(BIN)/pytest -q -p no:cacheprovider --hypothesis-profile=brief -m "not waits and not flow" $(CHOSEN)

coverage: $(VENV)/.dev ## branch coverage of state, plan, apply, config and trust: at least 95 % each
	@$(BIN)/python tests/coverage_gate.py

soak: $(VENV)/.dev system-packages ## the long loops, with the real engine: hours; each prints its time
	@$(BIN)/pytest -v -n 0 -m soak -o timeout=7200 --durations=0 tests

format: $(VENV)/.dev ## rewrite in the project's format
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

schemas: $(VENV)/.dev ## write schemas/ and the generated reference from the models
	@$(BIN)/python -m sbctl.config.schema --write

docs: schemas ## write the generated pages of docs/reference/ from the command tree and the source
	@$(BIN)/python docs/generate.py --write

LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
lock: $(VENV)/.control ## lock dependencies again: hashed, without index addresses
	@$(LOCK) pyproject.toml --output-file requirements/control.txt
	@$(LOCK) pyproject.toml requirements/dev.in --output-file requirements/dev.txt
	@$(LOCK) requirements/build.in --output-file requirements/build.txt
	@$(LOCK) requirements/runtime.in --constraint requirements/control.txt --output-file requirements/runtime.txt

clean: ## remove the virtualenv and caches of this checkout
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
