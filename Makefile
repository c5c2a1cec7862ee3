# Every target first installs what it needs into .venv.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   ?= demo

.PHONY: help install demo test lint coverage mutants trust docs bench dist lock sbom audit clean

help:
	@echo "make install   the package and its tools into .venv; demo, test and others do it first"
	@echo "make demo      train an NVDP for about a minute, score it beside the exact GP and the paper, draw it"
	@echo "make test      linter, type check and all tests"
	@echo "make lint      linter and type check"
	@echo "make coverage  all tests, with line coverage"
	@echo "make mutants   mutation tests of objectives, posteriors and metrics"
	@echo "make trust     long fault tests; updates docs/trust.md"
	@echo "make bench     speed of training steps and adaptation, with baselines"
	@echo "make docs      build the documentation into site/"
	@echo "make dist      wheel and source archive into dist/, the same bytes for the same commit"
	@echo "make lock      requirements.lock: the versions of a service, with hashes"
	@echo "make sbom      dist/sbom.json: the locked packages as CycloneDX"
	@echo "make audit     known vulnerabilities of the locked packages"
	@echo "make clean     remove .venv and generated files"

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,docs,tensorboard,bench,botorch,web,tables,excel,examples,export,postgres]'
	touch $@

install: $(VENV)/installed

demo: install
	rm -rf $(DEMO)
	$(BIN)/nvdp train gp --model nvdp-conv --preset quick --out $(DEMO)/run
	$(BIN)/nvdp eval $(DEMO)/run --tasks 256
	$(BIN)/nvdp plot $(DEMO)/run --out $(DEMO)/functions.png

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

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
	  $(BIN)/nvdp bench --suite $$suite --json results/bench/$$suite.json --plot results/bench/$$suite.png --force; \
	done

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

dist: install
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist
	cd dist && sha256sum nvdp-* | tee SHA256SUMS

$(VENV)/release: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[release]'
	touch $@

# PIP_FIND_LINKS or PyTorch's own index must offer the CPU build of PyTorch, whose hash is locked.
lock: $(VENV)/release
	$(BIN)/uv pip compile pyproject.toml --extra web --extra tables --extra postgres --constraint constraints.txt \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_28 --find-links "$${PIP_FIND_LINKS:-https://download.pytorch.org/whl/cpu/torch/}" \
	  --generate-hashes --no-header --no-annotate --quiet --output-file requirements.lock

sbom: $(VENV)/release
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.json

audit: $(VENV)/release
	sed 's/+cpu//' requirements.lock > $(VENV)/audited.txt # advisories name PyTorch without its build
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement $(VENV)/audited.txt

clean:
	rm -rf $(VENV) $(DEMO) site dist .mypy_cache .ruff_cache .pytest_cache
