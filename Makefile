# `make run` and `make test` need nothing but Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: help run test test-slow check format dev clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

run: $(VENV)/user  ## set up .venv, then run FedDM on the embedded digits
	$(BIN)/feddm run

test: dev check  ## set up .venv with the dev tools, then the checks and the test suite
	BIN=$(BIN) scripts/test -m "not slow"

test-slow: dev  ## the tests that are worth it but long
	BIN=$(BIN) scripts/test -m slow --no-cov

check: dev  ## format, lint, types and the direction of imports
	BIN=$(BIN) scripts/check

format: dev  ## put the code into its form
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests

dev: $(VENV)/dev  ## set up .venv with the dev tools

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "feddm needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/user: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[figures]'
	@touch $@

$(VENV)/dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/user
