# Each target creates .venv and installs what it needs; Python 3.11+ and make are enough.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt
INSTALLED := .venv/installed
INSTALLED_DEV := .venv/installed-dev
INSTALLED_DOCS := .venv/installed-docs

.NOTPARALLEL:
.PHONY: demo test test-all test-slow lint check docs fuzz soak mutants format clean

# Compares methods on 40 labelled digits, then fits a CSV file in which most labels are blank.
demo: $(INSTALLED)
	$(BIN)/l2i compare digits
	$(BIN)/l2i fit examples/breast_cancer.csv --target diagnosis --id case --out runs/demo
	@$(BIN)/l2i report runs/demo >/dev/null
	@echo "Open runs/demo/report.html in a browser to see how far to trust the imputed labels."

# The fast tests; test-all adds the slow ones: end to end, in several processes, or many cases.
test: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m 'not slow'

test-all: test test-slow

test-slow: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m slow

lint: $(INSTALLED_DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

# Builds the documentation into site/; a broken link or reference is an error (not with --quiet, which hides it).
docs: $(INSTALLED_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Reads damaged files for as long as asked; MINUTES=5 TARGETS='csv npz' for some of the loaders.
MINUTES ?= 60
fuzz: $(INSTALLED_DEV)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install -qq --disable-pip-version-check atheris
	$(BIN)/python fuzz/run.py --minutes $(MINUTES) $(TARGETS)

# Kills runs, damages their checkpoints, fills their disk: each must end as an undisturbed one.
CASES ?= 100
soak: MINUTES = 40
soak: $(INSTALLED_DEV)
	$(BIN)/python tests/soak/run.py --minutes $(MINUTES) --cases $(CASES)

# Puts faults into copies of the source, one at a time, and prints those that no test finds; ONLY='fit B1' for some.
mutants: $(INSTALLED_DEV)
	$(BIN)/python tests/mutants/run.py $(ONLY)

format: $(INSTALLED_DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch first and pinned: left to itself, pip may pick a build with gigabytes of CUDA packages.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "l2i needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Creating .venv and installing into it; this takes about a minute."
	@$(PYTHON) -m venv .venv
	@$(PIP) torch
	@$(PIP) -e .
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	@echo "Installing what the tests need."
	@$(PIP) -e '.[dev]'
	@touch $@

$(INSTALLED_DOCS): $(INSTALLED)
	@echo "Installing what the documentation needs."
	@$(PIP) -e '.[docs]'
	@touch $@

clean:
	rm -rf .venv dist site .mypy_cache .pytest_cache .ruff_cache
