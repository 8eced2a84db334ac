# `make run` and `make test` need nothing but Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
FAST := not slow and (smoke or not deployment)

.PHONY: help run run-private test test-slow coverage check format dev clean docs

help:  ## show this list
	@grep -E '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 26

run: $(VENV)/user  ## set up .venv, then run FedDM on the embedded digits
	$(BIN)/feddm run

run-private: $(VENV)/user  ## the same with privacy, epsilon 4 in all
	$(BIN)/feddm run --preset private --ledger new

test: dev check  ## set up .venv with the dev tools, then the checks and the test suite
	BIN=$(BIN) scripts/test -m "$(FAST)"

test-slow: dev  ## the long tests, and those that start a whole deployment
	BIN=$(BIN) scripts/test -m "not ($(FAST))"

coverage: dev  ## the test suite, and which lines it runs
	BIN=$(BIN) scripts/test -m "$(FAST)" --cov --cov-report=term

check: dev  ## format, lint, types and the direction of imports
	BIN=$(BIN) scripts/check

format: dev  ## put the code into its form
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests

dev: $(VENV)/dev  ## set up .venv with the dev tools

docs: dev  ## fill the generated parts of the docs
	$(BIN)/python scripts/docs

# Studies: long, resumable, kept as small files in docs/studies. They need FEDDM_DATA or `feddm
# data fetch`, and an hour or two on two cores.
COMPARE = $(BIN)/feddm compare --dataset mnist --width 32

study-mnist-six: dev  ## all six algorithms on skewed data
	$(COMPARE) --alpha 0.1 --rounds 5 --seeds 0,1 --with feddm=docs/studies/first-feddm-mnist.toml --with real=docs/studies/first-real-mnist.toml --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-mnist-fedavg: dev  ## does the baseline converge?
	$(COMPARE) --algorithms fedavg --set local.lr=0.05 --set local.batch_size=64 --alpha 0.5 --rounds 5 --seeds 0 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

# Do learned images stay ahead of as many real ones, round after round? Hours.
AHEAD = $(BIN)/feddm compare --algorithms feddm,real --against real --compile on

study-ahead-even: dev  ## learned and real images over ten rounds, Dir(0.5)
	$(AHEAD) --dataset cifar10 --alpha 0.5 --rounds 10 --seeds 0,1 --targets 0.55,0.6 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-ahead-skewed: dev  ## the same with more skewed clients, Dir(0.1)
	$(AHEAD) --dataset cifar10 --alpha 0.1 --rounds 10 --seeds 0,1 --targets 0.5,0.55 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-ahead-mnist: dev  ## the same on MNIST, five rounds
	$(AHEAD) --dataset mnist --alpha 0.1 --rounds 5 --seeds 0 --targets 0.95,0.97 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-ahead-cifar100: dev  ## the same on CIFAR100, five rounds
	$(AHEAD) --dataset cifar100 --alpha 0.1 --rounds 5 --seeds 0 --targets 0.2,0.3 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

# Tuned baselines.
TUNE = $(BIN)/feddm tune --dataset cifar10 --alpha 0.5 --compile on --width 32 --rounds 2 --set local.epochs=5 --set local.batch_size=64

study-tune-fedavg: dev  ## the learning rate of FedAvg
	$(TUNE) --algorithm fedavg --grid local.lr=0.01,0.03,0.1 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-tune-fedavg-augment: dev  ## does augmentation on clients help FedAvg?
	$(TUNE) --algorithm fedavg --set local.lr=0.03 --grid local.augment=true --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-tune-scaffold: dev  ## the learning rate of SCAFFOLD
	$(TUNE) --algorithm scaffold --grid local.lr=0.05,0.1,0.3 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

# The paper's tables and figures for docs/results.md, as `make study-paper-ipc`: docs/paper.md says
# which there are and how long they take; ARGS="--seeds 1" and the like go to the command. Then
# `make docs`.
study-paper-%: dev  ## a table or figure of the paper, as study-paper-ipc
	$(BIN)/feddm paper $* --scale small $(ARGS)
	$(BIN)/python scripts/record paper-$* runs/paper/small/$*

# Privacy: accuracy at a total epsilon, as study-private-mnist-1 and study-private-cifar10-8, and DP-FedAvg
# on the same public features. About ten minutes for each run.
PRIVATE = $(BIN)/feddm compare --alpha 0.5 --seeds 0,1,2 --ledger new

study-private-%: dev  ## private FedDM on a data set at an epsilon, as study-private-mnist-1
	$(PRIVATE) --algorithms feddm --dataset $(firstword $(subst :, ,$(shell echo $* | sed 's/-\([0-9.]*\)$$/:\1/'))) --epsilon $(lastword $(subst -, ,$*)) --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-flower: dev  ## what a deployment costs, and many nodes
	$(BIN)/python scripts/measure-flower runs/flower.json
	$(BIN)/python scripts/record flower runs/flower.json

study-bench: dev  ## how fast it is
	$(BIN)/feddm bench --out runs/bench.json
	$(BIN)/python scripts/record bench runs/bench.json

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "feddm needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/user: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV): PyTorch is large, this takes some minutes the first time"
	$(PIP) -e '.[figures]'
	@touch $@

$(VENV)/dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV): PyTorch is large, this takes some minutes the first time"
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/user
