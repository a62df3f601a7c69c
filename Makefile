# Two commands matter: `make demo` and `make test`. Each installs what it needs, once, at the versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compiled files spare every process that tests start a second or two.
unexport PYTHONDONTWRITEBYTECODE
# One process for each core, one thread for each process: two threads in one process lose to a busy neighbour.
# Which of them runs which files is decided in tests/scheduling.py.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: setup setup-dev demo lint style types test tests test-all test-wheel test-lowest coverage docs bench lock clean

setup: $(VENV)/.ready
setup-dev: $(VENV)/.ready-dev

# Installed again only when the project's dependencies change.
$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: setup
	$(BIN)/fedstill demo

lint: style types

style: setup-dev
	$(BIN)/ruff check src tests benchmarks tools examples
	$(BIN)/ruff format --check src tests benchmarks tools examples

types: setup-dev
	$(BIN)/mypy

# Types are checked, by one process, while those of the tests begin; if either fails, so does this.
test: style
	@$(MAKE) --no-print-directory --jobs=2 types tests

tests: setup-dev
	$(PYTEST)

test-all: lint
	$(PYTEST) -m ""

# The package as users get it: built, and installed into an empty environment with the newest versions it allows.
test-wheel: setup-dev
	$(PYTEST) -n 0 -m "" tests/test_distribution.py

# All tests with the lowest versions that pyproject.toml allows, in an environment of their own. torch stays pinned.
test-lowest:
	$(PYTHON) -m venv --clear $(VENV)-lowest
	$(PYTHON) tools/lowest.py > $(VENV)-lowest/lowest.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --constraint $(VENV)-lowest/lowest.txt --editable ".[dev]"
	OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python -m pytest -n 2

# The tests with a report of covered lines in htmlcov/.
coverage: setup-dev
	$(PYTEST) --cov=fedstill --cov-report=html --cov-report=term:skip-covered

# The documentation site, in site/. A broken link or reference is an error.
docs: setup-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup-dev
	$(BIN)/python -m benchmarks

# Writes constraints.txt: the newest versions that go together today.
lock:
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(PYTHON) tools/lock.py $(VENV)-lock/bin/python > $(VENV)-lock/constraints.txt
	mv $(VENV)-lock/constraints.txt constraints.txt

clean:
	rm -rf demo runs dist site htmlcov .pytest_cache .mypy_cache .ruff_cache
