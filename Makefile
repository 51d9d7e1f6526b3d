# make demo     a trained model, with and without quirks  make test   lint, types and every test
# make example  a GRPO loop on two CPU cores            make check  lint, types and the tests that start no engine
# make eval     pass@k of a tiny model                  make prove  every quirk's evidence, run anew
# make curves   a trained model learns, with a fault and without: two runs of six steps, some minutes
# make upgrade-check TO=0.33   which quirks need work on that vLLM (TO=latest: on the newest release)
# make sweep    every decoder architecture through two refits, tiny (KINDS="gemma cohere": these alone)
# make generate MODEL=FOLDER PROMPT=TEXT   a real engine, with its plan and its receipt
# make check-core   tests without an engine, with each Python that is here     make wheels  the distributions, into dist/
# All make the environment first; the second time that is instant.

VENV := .venv
STAMP := $(VENV)/.model-quirks-ready
# The demo needs a part of the environment, which is made in half the time.
DEMO := $(VENV)/.model-quirks-demo-ready
PYTEST_ARGS ?=
# Processes that run tests: one more than the cores, as tests also wait. An engine takes 2 to 3 GB.
WORKERS ?= 3
# Processes that run proofs, which wait for nothing.
JOBS ?= 2

# What upgrade-check compares: TO with FROM, or with the installed vLLM.
TO ?= latest
FROM ?=

# What check-core runs; a short selection with each Python from 3.11 on if empty.
PYTHONS ?=
TESTS ?=

# What sweep runs; all kinds if empty. Rows that these versions have are kept.
KINDS ?=

# A model's folder or hub id, and the text that generate continues.
MODEL ?=
PROMPT ?= Once upon a time

.PHONY: demo generate example curves eval test check records lint setup docs bench prove sweep upgrade-check upgrade-options check-core wheels clean
.DEFAULT_GOAL := demo

demo: $(DEMO)
	$(VENV)/bin/python scripts/demo.py

generate: $(STAMP)
	$(VENV)/bin/python scripts/generate.py --model $(MODEL) "$(PROMPT)"

example: $(STAMP)
	$(VENV)/bin/python examples/grpo_tiny.py --output grpo_tiny.png

curves: $(STAMP)
	$(VENV)/bin/python examples/learning_curves.py corrections --tiny --out build/curves

eval: $(STAMP)
	@mkdir -p build
	$(VENV)/bin/python examples/run_eval.py --config examples/eval.yaml --output build/eval.json

PYTEST := $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: lint
	$(PYTEST) $(PYTEST_ARGS)

check: lint
	$(PYTEST) -m "not engine" $(PYTEST_ARGS)

# By version of Python: PYTHONS="3.12 3.13" names them, TESTS what is run. Nothing of the environment is needed.
check-core:
	PYTHONS="$(PYTHONS)" scripts/check_core.sh $(TESTS)

# What tests compare with: messages that users see, and the plans of recorded runs. Read the diff.
records: $(STAMP)
	rm -f tests/messages.txt tests/quirks/recorded_plans.txt
	RECORD=1 $(VENV)/bin/python -m pytest -m "not engine" tests/core tests/cli tests/worker tests/quirks/test_recorded_plans.py

lint: $(STAMP)
	$(VENV)/bin/ruff check --no-cache .
	$(VENV)/bin/ruff format --no-cache --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

docs: $(STAMP)
	$(VENV)/bin/python docs/_ext/pages.py
	$(VENV)/bin/sphinx-build -W --keep-going -q -b html docs build/site
	@echo "open build/site/index.html"

# An engine without processes of its own starts in half the time, and several at once share the cores. `make prove
# PYTHON=FILE` runs what is missing or stale for the vLLM of another environment, given by its interpreter.
prove: export VLLM_ENABLE_V1_MULTIPROCESSING = 0
prove: export OMP_NUM_THREADS = 1
prove: $(STAMP)
ifeq ($(origin PYTHON),command line)
	$(PYTHON) -m quirks_core.cli prove --changed --jobs $(JOBS) --record
else
	$(VENV)/bin/quirks prove --all --jobs $(JOBS) --record
endif
	$(VENV)/bin/python docs/_ext/pages.py

sweep: $(STAMP)
	$(VENV)/bin/python scripts/sweep.py $(KINDS)

# Every option and nested key of 0.29 to 0.33 against each release's own parser; `make test` has a sample.
upgrade-options: export MODEL_QUIRKS_TESTS_OPTIONS = all
upgrade-options: $(STAMP)
	$(VENV)/bin/python -m pytest -q -s tests/core/upgrade/test_every_option.py

upgrade-check: $(STAMP)
	$(VENV)/bin/quirks upgrade --catalogue --to $(TO) $(if $(FROM),--from $(FROM))

bench: $(STAMP)
	@for script in benchmarks/*.py; do $(VENV)/bin/python $$script; done

wheels: $(STAMP)
	PYTHON=$(VENV)/bin/python scripts/wheels.sh --no-isolation

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@rm -f $@
	@scripts/setup.sh $(VENV)
	@touch $@ $(DEMO)

$(DEMO): pyproject.toml constraints.txt scripts/setup.sh
	@scripts/setup.sh $(VENV) cpu,train,demo
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
