# `make run` and `make test` need nothing but Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
FAST := not slow and (smoke or not deployment)

.PHONY: help run test test-slow coverage check format dev clean docs

help:  ## show this list
	@grep -E '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 26

run: $(VENV)/user  ## set up .venv, then run FedDM on the embedded digits
	$(BIN)/feddm run

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

study-mnist-feddm-real: dev  ## does learning the images pay?
	$(COMPARE) --algorithms feddm,real --alpha 0.5 --rounds 3 --seeds 0,1,2 --against real --compile on --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-mnist-six: dev  ## all six algorithms on skewed data
	$(COMPARE) --alpha 0.1 --rounds 5 --seeds 0,1 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-mnist-fedavg: dev  ## does the baseline converge?
	$(COMPARE) --algorithms fedavg --set local.lr=0.05 --set local.batch_size=64 --alpha 0.5 --rounds 5 --seeds 0 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

# Quick against the paper's client, on three data sets: hours.
LITERAL = $(BIN)/feddm compare --algorithms feddm,real,literal --with literal=docs/studies/literal.toml --against literal --alpha 0.5 --width 32 --seeds 0,1,2 --compile on

study-literal-cifar10: dev  ## quick against the paper's client, CIFAR10
	$(LITERAL) --dataset cifar10 --rounds 1 --targets 0.4,0.45 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-literal-mnist: dev  ## the same, MNIST
	$(LITERAL) --dataset mnist --rounds 1 --targets 0.95,0.97 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-literal-fashion-mnist: dev  ## the same, Fashion-MNIST
	$(LITERAL) --dataset fashion-mnist --rounds 1 --targets 0.8,0.85 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-quick: dev  ## how many networks and steps, on a validation split
	$(BIN)/feddm tune --algorithm feddm --dataset cifar10 --alpha 0.5 --rounds 1 --grid synthesis.networks=4,8 --grid synthesis.steps=50,100 --compile on --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

# Beyond the paper: which settings pay, at what price, and against whom.
CIFAR = --dataset cifar10 --alpha 0.5 --compile on

# What best and small were before whole images of two bits a number.
FOUR_BITS = synthesis.formation=2,synthesis.lr=1,synthesis.networks=4,synthesis.distance=squared,synthesis.coding=uint4,synthesis.rounding=final

study-ablation: dev  ## what each setting is worth, on a validation split
	$(BIN)/feddm ablate $(CIFAR) --width 32 --rounds 2 --seeds 0,1 \
	    --change real:algorithm=real \
	    --change matching-augmented:synthesis.augment=true \
	    --change server-augmented:server.augment=true \
	    --change augmented:synthesis.augment=true,server.augment=true \
	    --change cosine:server.schedule=cosine \
	    --change small-batches:server.batch_size=64,server.lr=0.03 \
	    --change short:synthesis.lr=1,synthesis.steps=25,synthesis.networks=4 \
	    --change formation:synthesis.formation=2,synthesis.steps=25 \
	    --change uint8:synthesis.coding=uint8 \
	    --change uint4:synthesis.coding=uint4,synthesis.packed=true \
	    --change straight-through:synthesis.coding=uint4,synthesis.packed=true,synthesis.rounding=straight-through \
	    --change second-moment:synthesis.second_moment=1 \
	    --change last:synthesis.start=last \
	    --change replay:server.replay=2 \
	    --change four-bits:preset=best,synthesis.images_per_class=24,$(FOUR_BITS),server.epochs=10 \
	    --change four-bits-real:preset=best,algorithm=real,synthesis.images_per_class=24,synthesis.formation=2,synthesis.coding=uint4,server.epochs=10 \
	    --change four-bits-far:preset=best,synthesis.images_per_class=24,$(FOUR_BITS),server.epochs=10,server.radius=10 \
	    --change four-bits-small:preset=small,synthesis.images_per_class=12,$(FOUR_BITS),server.epochs=20 \
	    --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

BEST = $(BIN)/feddm compare --dataset cifar10 --compile on --width 32 --algorithms best,feddm,real --with best=docs/studies/best.toml --with real=docs/studies/best-real.toml --against best --rounds 2 --targets 0.5,0.55,0.6

study-best: dev  ## best against quick and REAL, on the test set
	$(BEST) --seeds 0,1 --alpha 0.5 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-best-skewed: dev  ## the same, with skewed clients
	$(BEST) --seeds 0,1,2 --alpha 0.1 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-small: dev  ## what the preset small uploads
	$(BIN)/feddm compare $(CIFAR) --width 32 --algorithms small --with small=docs/studies/small.toml --seeds 0 --rounds 1 --targets 0.5,0.55 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-pays: dev  ## with how many images does learning pay?
	$(BIN)/feddm ablate --dataset cifar10 --alpha 0.1 --compile on --width 32 --rounds 1 --seeds 0,1,2 --validation 0 --preset best --set synthesis.images_per_class=3 --set synthesis.lr=67 --set server.epochs=600 --change real-3:algorithm=real --change learned-10:synthesis.images_per_class=10,synthesis.lr=220,server.epochs=180 --change real-10:algorithm=real,synthesis.images_per_class=10,server.epochs=180 --change learned-30:synthesis.images_per_class=30,synthesis.lr=670,server.epochs=60 --change real-30:algorithm=real,synthesis.images_per_class=30,server.epochs=60 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-forms: dev  ## small images, four in one, against whole ones, with skewed clients
	$(BIN)/feddm compare --dataset cifar10 --alpha 0.1 --compile on --width 32 --rounds 2 --seeds 0,1,2 --algorithms learned-small,real-small,real-whole --with learned-small=docs/studies/forms-learned-small.toml --with real-small=docs/studies/forms-real-small.toml --with real-whole=docs/studies/forms-real-whole.toml --against learned-small --targets 0.5,0.55,0.6 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-whole: dev  ## whole real images of four and of two bits a number, with skewed clients
	$(BIN)/feddm ablate --dataset cifar10 --alpha 0.1 --compile on --width 32 --rounds 2 --seeds 0,1 --preset best --algorithm real --set synthesis.formation=1 --set synthesis.coding=uint4 --set synthesis.images_per_class=21 --set server.epochs=90 --change two-bits:synthesis.coding=uint2,synthesis.images_per_class=58,server.epochs=34 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-sharp: dev  ## whole against small real images, with even clients
	$(BIN)/feddm ablate $(CIFAR) --width 32 --rounds 1 --seeds 0,1 --preset best --algorithm real --change small:synthesis.formation=2,synthesis.images_per_class=70,server.epochs=6 --change small-88:synthesis.formation=2,synthesis.images_per_class=88,server.epochs=5 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-groups: dev  ## groups against whole classes and REAL at equal bytes, with skewed clients
	$(BIN)/feddm compare --dataset cifar10 --compile on --width 32 --algorithms four-bits,groups,real,real-27 --with four-bits=docs/studies/four-bits.toml --with groups=docs/studies/groups.toml --with real=docs/studies/groups-real.toml --with real-27=docs/studies/groups-real-27.toml --against four-bits --seeds 0,1,2 --rounds 2 --targets 0.5,0.55 --alpha 0.1 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-bits: dev  ## fewer bits, more images, longer training, with real images and skewed clients
	$(BIN)/feddm ablate --dataset cifar10 --alpha 0.1 --compile on --width 32 --rounds 2 --seeds 0,1 --preset best --algorithm real --set synthesis.coding=uint4 --set synthesis.images_per_class=24 --set synthesis.formation=2 --set server.epochs=10 --change two-bits:synthesis.coding=uint2 --change two-bits-48:synthesis.coding=uint2,synthesis.images_per_class=48 --change longer:server.epochs=20 --change all:synthesis.coding=uint2,synthesis.images_per_class=48,server.epochs=20 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-uint8: dev  ## are bytes as good as floats?
	$(BIN)/feddm ablate $(CIFAR) --width 32 --rounds 1 --seeds 0,1,2 --validation 0 --change uint8:synthesis.coding=uint8 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

TUNE = $(BIN)/feddm tune $(CIFAR) --width 32 --rounds 2 --set local.epochs=5 --set local.batch_size=64

study-tune-fedavg: dev  ## the learning rate of FedAvg
	$(TUNE) --algorithm fedavg --grid local.lr=0.01,0.03,0.1 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-tune-fedavg-augment: dev  ## does augmentation on clients help FedAvg?
	$(TUNE) --algorithm fedavg --set local.lr=0.03 --grid local.augment=true --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-tune-scaffold: dev  ## the learning rate of SCAFFOLD
	$(TUNE) --algorithm scaffold --grid local.lr=0.05,0.1,0.3 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

study-wide: dev  ## the paper's model: FedDM against tuned FedAvg and SCAFFOLD, a night
	$(BIN)/feddm compare $(CIFAR) --width 128 --rounds 5 --seeds 0 --set local.epochs=5 --set local.batch_size=64 --algorithms four-bits,fedavg,scaffold --with four-bits=docs/studies/four-bits.toml --with fedavg=docs/studies/tuned-fedavg.toml --with scaffold=docs/studies/tuned-scaffold.toml --targets 0.5,0.6,0.65,0.7 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@ four-bits=69.66

study-wide-best: dev  ## the preset best with the paper's model, one round
	$(BIN)/feddm compare $(CIFAR) --width 128 --rounds 1 --seeds 0 --algorithms best --with best=docs/studies/best.toml --targets 0.5,0.6,0.65 --out runs/$@
	$(BIN)/python scripts/record $(@:study-%=%) runs/$@

# The paper's tables and figures for docs/results.md, as `make study-paper-ipc`: docs/paper.md says
# which there are and how long they take; ARGS="--seeds 1" and the like go to the command. Then
# `make docs`.
study-paper-%: dev  ## a table or figure of the paper, as study-paper-ipc
	$(BIN)/feddm paper $* --scale small $(ARGS)
	$(BIN)/python scripts/record paper-$* runs/paper/small/$*

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
