# Every target that runs something sets up what it needs in .venv first, and only once:
# the stamp files are rebuilt when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
ARGS   ?=

READY_DEMO := $(VENV)/.ready-demo
READY_DEV  := $(VENV)/.ready-dev
READY_DOCS := $(VENV)/.ready-docs
READY_BENCH := $(VENV)/.ready-bench

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
EXPERIMENTS := spectr_acceptance spectr_floor draft_quality spechub_toy real_positions draft_laws invariance \
  lossy_rules lossy_texts spectr_paths spechub_depths sequence_optimum layerwise_optimum \
  eagle4_trees

.PHONY: help setup demo test test-slow bench experiments figures lint format docs paper clean clean-all

help:  ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12 make demo    another interpreter (3.11 or newer)"
	@echo "  ARGS='-k curve -x' make test   arguments for pytest, otmd demo or sphinx-build"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "otmd needs Python 3.11 or newer; PYTHON=$(PYTHON) is" \
	    "$$($(PYTHON) --version 2>&1 || echo missing). Try: PYTHON=python3.11 make $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

$(READY_DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt -e ".[llm,experiments]"
	@touch $@

$(READY_DEV): $(READY_DEMO)
	$(PIP) install --quiet -c constraints.txt -e ".[llm,experiments,exact,modeling,engines,dev]"
	@touch $@

$(READY_DOCS): $(READY_DEMO)
	$(PIP) install --quiet -c constraints.txt -e ".[llm,experiments,docs]"
	@touch $@

$(READY_BENCH): $(READY_DEMO)
	$(PIP) install --quiet -c constraints.txt -e ".[llm,experiments,modeling,bench]"
	@touch $@

setup: $(READY_DEV)  ## create .venv with everything that demo, test and lint need

demo: $(READY_DEMO)  ## measure every verifier against the optimum on a real model pair
	$(BIN)/otmd demo $(ARGS)

test: $(READY_DEV)  ## run the test suite, tests on the real model included
	$(BIN)/python -m pytest -n auto -m "not slow" $(ARGS)

test-slow: $(READY_DEV)  ## run the tests that take long
	$(BIN)/python -m pytest -n auto -m slow $(ARGS)

bench: $(READY_BENCH)  ## time otmd compared with its peers, redraw docs/images/peers.svg (about ten minutes)
	$(BIN)/python -m experiments peers $(ARGS)
	$(BIN)/python -m experiments optimal_plan
	$(BIN)/python -m experiments decoding
	$(BIN)/python -m paper_figures peers

experiments: $(READY_BENCH)  ## measure the papers' claims again, continuing where it was stopped
	@set -e; for name in $(EXPERIMENTS); do $(BIN)/python -m experiments $$name $(ARGS); done
	$(BIN)/python -m experiments law_choice
	$(BIN)/python -m experiments resolution_grid --workers 1
	@if [ -d runs/models ]; then $(BIN)/python -m experiments whole_trees ; \
	  else echo "whole_trees needs the GGUF files that docs/claims.md names" >&2; fi

figures: $(READY_DEMO)  ## draw every figure and fill in the tables of claims, from stored results
	$(BIN)/python -m paper_figures $(ARGS)

lint: $(READY_DEV)  ## ruff, pyright and the layering contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(READY_DEV)  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY_DOCS)  ## build the documentation into docs/_build/html, warnings as errors
	$(BIN)/python -m sphinx -W --keep-going -b html $(ARGS) docs docs/_build/html

paper: $(READY_DOCS)  ## the theory pages as one PDF, docs/_build/theory.pdf
	$(BIN)/python docs/make_paper.py

clean:  ## remove caches and built files, keep .venv
	rm -rf build dist docs/_build docs/reference/generated .benchmarks .hypothesis \
	  .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

clean-all: clean  ## remove .venv too
	rm -rf $(VENV)
