# Two commands matter on a fresh machine: `make demo` and `make test`. Everything installs into .venv.
PY ?= python3
UV := $(shell command -v uv 2>/dev/null)
BIN := .venv/bin
ENGINES_HOME ?= $(HOME)/.cache/rollpin/engines
HARNESSES_HOME ?= $(HOME)/.cache/rollpin/harnesses
export ENGINES_HOME HARNESSES_HOME

.DEFAULT_GOAL := help
.PHONY: help setup demo check format test test-harnesses test-harnesses-ci test-engines test-long engines lock clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.venv/.stamp: requirements.lock pyproject.toml
	@echo "installing what requirements.lock names into .venv, once: seconds with uv, minutes without"
ifneq ($(UV),)
	$(UV) venv -q --clear --python $(PY) .venv
	$(UV) pip sync -q --require-hashes --python $(BIN)/python requirements.lock
	$(UV) pip install -q --no-deps --no-build-isolation --python $(BIN)/python -e .
else
	$(PY) -m venv --clear .venv
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r requirements.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
endif
	touch $@

setup: .venv/.stamp ## install the locked dependencies and the project into .venv

demo: setup ## the main job on a simulated engine, shown; then both stay up for your own harness
	$(BIN)/rollpin demo $(DEMO)

check: setup ## format, lint, types and import direction, in seconds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup ## every test that needs no GPU and no engine
	$(BIN)/pytest

test-harnesses: setup ## real agent harnesses, installed once into $(HARNESSES_HOME), on the simulated engine
	$(BIN)/pytest -o addopts=-ra -o timeout=600 tests/harnesses

test-harnesses-ci: setup ## those of them that CI has time for
	$(BIN)/pytest -o 'addopts=-ra -m "not long"' -o timeout=600 tests/harnesses

test-long: setup ## tests that take longer than CI has, and all harnesses
	$(BIN)/pytest -o 'addopts=-ra --ignore=tests/live --ignore=tests/harnesses -m long'
	$(MAKE) test-harnesses

engines: setup ## install real vLLM and SGLang with small models into $(ENGINES_HOME), once
	$(BIN)/python -m tests.live.engines install all
	$(BIN)/python -m tests.live.engines models

test-engines: engines ## the live suite on real vLLM and real SGLang, one at a time, on the CPU
	$(BIN)/pytest -o addopts=-ra -o timeout=900 tests/live

lock: ## compile requirements.lock anew (needs uv)
	uv pip compile -q --generate-hashes --extra dev pyproject.toml -o requirements.lock
	uv pip compile -q --universal --generate-hashes --extra postgres -c requirements.lock pyproject.toml -o deploy/requirements.lock
	uv pip compile -q --universal --generate-hashes -c requirements.lock deploy/build.in -o deploy/build.lock

clean: ## remove what the other commands made in the checkout
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
