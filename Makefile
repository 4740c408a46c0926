# Needs Python >= 3.11 with venv and pip, git and make; everything else goes into .venv.
.DEFAULT_GOAL := help
.PHONY: help venv quickstart test test-all lint format clean

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-dev

# Tests run one thread a rank, offline, and may not skip what this machine can run.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 SHARDWISE_FORBID_SKIPS=1

help:
	@echo "make quickstart   install, measure lengths, plan, and train a tiny Llama on 2 local ranks"
	@echo "make test         install, lint, type-check, and run the tests (about what CI runs)"
	@echo "make test-all     the same with the exhaustive tests and fresh random examples"
	@echo "make format       let ruff format and fix what it can"
	@echo "make clean        remove caches and build outputs; $(VENV) stays"

venv: $(INSTALLED)

# The first interpreter that is new enough. One pip command, so that the pinned torch is the only one resolved.
$(INSTALLED): pyproject.toml setup.cfg constraints.txt
	@test -x $(BIN)/python || { \
	  for python in python3.11 python3 python; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	      "$$python" -m venv $(VENV) && exit 0; rm -rf $(VENV); exit 1; \
	    fi; \
	  done; \
	  echo "shardwise needs Python >= 3.11 as python3.11 or python3 on PATH; found: $$(python3 --version 2>&1)" >&2; \
	  exit 1; \
	}
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# malloc gives memory back, so that the measured peak is what the program needs (docs/run.md).
quickstart: venv
	mkdir -p out/quickstart
	$(BIN)/shardwise lengths stdlib -o out/quickstart/lengths.csv
	$(BIN)/shardwise plan --job configs/jobs/quickstart.toml --cluster configs/clusters/local-2.toml \
	  --lengths out/quickstart/lengths.csv -o out/quickstart/plan.json
	OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=65536 MALLOC_TRIM_THRESHOLD_=65536 \
	  $(BIN)/torchrun --nproc-per-node 2 -m shardwise train configs/jobs/quickstart.toml \
	  --plan out/quickstart/plan.json

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q

test-all: lint
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q -m "" --hypothesis-profile=explore

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +
