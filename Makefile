# Every target first installs what it needs into .venv.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   ?= demo

.PHONY: help install demo test lint coverage mutants trust docs bench clean

help:
	@echo "make demo      train an NVDP for two minutes, score it beside the exact GP, draw it"
	@echo "make test      linter, type check and all tests"
	@echo "make lint      linter and type check"
	@echo "make coverage  all tests, with line coverage"
	@echo "make mutants   mutation tests of objectives, posteriors and metrics"
	@echo "make trust     long fault tests; updates docs/trust.md"
	@echo "make bench     speed of training steps and adaptation, with baselines"
	@echo "make docs      build the documentation into site/"
	@echo "make clean     remove .venv and generated files"

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
