# Each target makes the virtual environment and installs by itself; all it needs is Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test check fuzz soak format clean

demo: $(INSTALLED)
	$(BIN)/l2i compare digits

test: $(INSTALLED)
	$(BIN)/python -m pytest

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m 'not slow'

# Reads damaged files for as long as asked; MINUTES=5 TARGETS='csv npz' for some of the loaders.
MINUTES ?= 60
fuzz: $(INSTALLED)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install -qq --disable-pip-version-check atheris
	$(BIN)/python fuzz/run.py --minutes $(MINUTES) $(TARGETS)

# Kills runs, damages their checkpoints, fills their disk: each must end as an undisturbed one (docs/reliability.md).
CASES ?= 100
soak: MINUTES = 40
soak: $(INSTALLED)
	$(BIN)/python tests/soak/run.py --minutes $(MINUTES) --cases $(CASES)

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch first and pinned: left to itself, pip may pick a build with gigabytes of CUDA packages.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "l2i needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Making .venv and installing into it; this takes about a minute."
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(INSTALLED)

clean:
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache
