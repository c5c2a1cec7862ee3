# `make demo` runs the main job, `make test` passes the tests; each installs what it needs into .venv first.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   ?= demo

.PHONY: help install demo test lint coverage mutants trust docs bench clean

help:
	@echo "make demo   train an NVDP for two minutes, score it beside the exact GP, draw it"
	@echo "make test   ruff, type check and all tests"
	@echo "make lint   ruff and type check alone"
	@echo "make coverage  all tests, and which lines of the package they reach"
	@echo "make mutants  change objectives, posteriors and metrics in one place at a time: do the tests notice?"
	@echo "make trust  faults and hostile input at length; renews docs/trust.md"
	@echo "make bench  time training steps and adaptation beside their rivals and the matrix products alone"
	@echo "make docs   build the documentation into site/"
	@echo "make clean  remove .venv and what the other commands made"

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,docs,tensorboard,bench,botorch,web,tables,examples]'
	touch $@

install: $(VENV)/installed

demo: install
	rm -rf $(DEMO)
	$(BIN)/nvdp train gp --model nvdp --preset quick --out $(DEMO)/run
	$(BIN)/nvdp eval $(DEMO)/run --tasks 256
	$(BIN)/nvdp plot $(DEMO)/run --out $(DEMO)/functions.png

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

coverage: install
	$(BIN)/python -m faults.coverage
	$(BIN)/python -m faults page

mutants: install
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[mutants]'
	$(BIN)/python -m faults.mutants
	$(BIN)/python -m faults page

trust: install
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[cluster]'
	$(BIN)/python -m faults

bench: install
	for suite in step adapt fewshot growth; do \
	  $(BIN)/nvdp bench --suite $$suite --json results/bench/$$suite.json --plot results/bench/$$suite.png; \
	done

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) $(DEMO) site .mypy_cache .ruff_cache .pytest_cache
