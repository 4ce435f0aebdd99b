# Five words: setup · run · test · dev · bench; and lint, clean.
# Each sets up .venv first; where it is current that takes no time.

# The data that `make run` and `make dev` work on: open-bandit (real) or synthetic (planted truth).
DATA ?= open-bandit
PORT ?= 3000

HOME_DIR := $(CURDIR)/.mlp/$(DATA)
PYTHON := .venv/bin/python
STAMP := .venv/.ready
# What .venv was made from: this folder (a virtual environment can't be moved) and these two files.
KEY := $(shell { pwd; cat pyproject.toml constraints.txt; } | cksum | tr ' ' -)

HOMES := MLP_HOME="$(HOME_DIR)" DAGSTER_HOME="$(HOME_DIR)/dagster"

.DEFAULT_GOAL := help
.PHONY: help setup data-name dagster-home run test dev bench lint clean
MAKEFLAGS += --no-print-directory

help:
	@echo "make setup                   make .venv with the pinned versions (nothing to do when current)"
	@echo "make run [DATA=synthetic]    import the data and run the daily retrain for one day"
	@echo "make test [ARGS='-k name']   the whole default test suite"
	@echo "make dev [DATA=..] [PORT=..] the Dagster UI on http://127.0.0.1:3000"
	@echo "make bench                   the measurements, as a table and JSON"
	@echo "make lint                    formatter, linter, type checker, import rules"
	@echo "make clean                   remove .venv and caches; data and runs in .mlp stay"

setup:
	@if [ "$$(cat $(STAMP) 2>/dev/null)" != "$(KEY)" ]; then \
	  set -e; rm -f $(STAMP); python=; \
	  for candidate in python3.11 python3 python; do \
	    if $$candidate -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then \
	      python=$$candidate; break; \
	    fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "Python 3.11 is needed and none was found as python3.11, python3 or python: install it (for example 'uv python install 3.11' or 'apt install python3.11-venv') and put it on PATH." >&2; \
	    exit 1; \
	  fi; \
	  echo "Making .venv with $$($$python --version) (a few minutes the first time)"; \
	  $$python -m venv .venv; \
	  echo "torch, by pip, which picks the build that fits this machine"; \
	  $(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt torch uv; \
	  echo "everything else, by uv"; \
	  .venv/bin/uv pip install --quiet --python $(PYTHON) --compile-bytecode -c constraints.txt -e '.[dev]'; \
	  echo "the Open Bandit sample data (package obp, read by path, never imported)"; \
	  .venv/bin/uv pip install --quiet --python $(PYTHON) --no-deps -c constraints.txt obp; \
	  echo "$(KEY)" > $(STAMP); \
	  echo "Ready."; \
	fi

data-name:
	@case "$(DATA)" in open-bandit|synthetic) ;; \
	  *) echo "DATA: '$(DATA)' is no data set; write DATA=open-bandit or DATA=synthetic." >&2; exit 2;; esac

dagster-home: data-name
	@mkdir -p "$(HOME_DIR)/dagster" && cp dagster.yaml "$(HOME_DIR)/dagster/dagster.yaml"

# `exec`: Ctrl-C reaches Python once, and make waits for it to cancel the job.
run: data-name setup dagster-home
	@exec env $(HOMES) $(PYTHON) -m ml_pipelines.defs.ads_ranking.run_day --data $(DATA)

# From the home folder, or Dagster warns that the dagster.yaml here is not the one it uses.
# `dg dev`, which it recommends, is a package of its own that does no more for one code location.
dev: data-name setup dagster-home
	@cd "$(HOME_DIR)" && exec env $(HOMES) PYTHONWARNINGS='ignore:Function `dev_command`' \
	  $(CURDIR)/.venv/bin/dagster dev -w $(CURDIR)/workspace.yaml -h 127.0.0.1 -p $(PORT)

test: setup
	@exec $(PYTHON) -m pytest $(ARGS)

bench: setup
	@exec $(PYTHON) -m benchmarks $(ARGS)

lint: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache \
	  .hypothesis .tmp_dagster_home_*
	find . -name __pycache__ -type d -not -path './.mlp/*' -prune -exec rm -rf {} +
