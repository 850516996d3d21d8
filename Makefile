# Every target makes its own virtual environment first; Python 3.11 or newer and make are all it takes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One shell variable for all installs, so that a slow registry is waited for and pip asks no questions.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet

TORCH ?= 2.13.0

.PHONY: fuzz demo test test-integrations check lint format bench clean help

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo: $(VENV)/.installed  ## install stepgrade and score the bundled runs
	@BIN=$(BIN) sh examples/demo.sh

test: $(VENV)/.installed-dev  ## run every test
	$(BIN)/python -m pytest

test-integrations: $(VENV)/.installed-integrations  ## the recorder in Hugging Face, Lightning, MLflow, W&B, TensorBoard
	$(BIN)/python -m pytest -q tests/record/integrations

fuzz: $(VENV)/.installed-dev  ## read a million damaged traces
	STEPGRADE_FUZZ=1000000 $(BIN)/python -m pytest -q tests/readers/kineto/test_kineto_fuzz.py tests/cli/test_trace_fuzz.py

lint: $(VENV)/.installed-dev  ## style, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# With the trackers and frameworks there, no test of the recorder is skipped; their install takes about two minutes.
check: $(VENV)/.installed-integrations lint test  ## what CI runs

format: $(VENV)/.installed-dev  ## rewrite the code in house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev  ## start-up times, the recorder, and traces of 10 MB to 4 GB beside other tools (an hour)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/recorder.py
	$(BIN)/python benchmarks/kineto/run.py --peers

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("stepgrade needs Python 3.11 or newer; set PYTHON=/path/to/it" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable .
	@$(BIN)/python -m compileall -q src  # some environments never write byte code by themselves
	@touch $@

# The recorder's tests need torch, in this one version: others are not asked for, so none is fetched.
$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) install torch==$(TORCH)
	$(PIP) install --editable '.[dev,torch]'
	@$(BIN)/python -m compileall -q src
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-integrations: $(VENV)/.installed-dev
	$(PIP) install torch==$(TORCH) --editable '.[dev,integrations]'
	@touch $@
