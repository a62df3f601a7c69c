# Two commands matter: `make demo` and `make test`. Each installs what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
comma := ,
READY := $(VENV)/.ready-$(subst $(comma),-,$(EXTRAS))

.PHONY: setup demo lint test test-all bench clean

setup: $(READY)

# Reinstalled only when the project's dependencies change.
$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	@touch $@

demo: setup
	$(BIN)/fedstill demo

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

# One process for each core, one thread for each process: two threads in one process lose to a busy neighbour.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

test-all: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m ""

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf demo runs .pytest_cache .mypy_cache .ruff_cache
