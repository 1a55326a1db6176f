# Each target sets up what it needs, the first time in an environment of its own (.venv). Needed: Python 3.11 or
# newer, pip, make. Change a setting on the command line: make train NPROC=4 RUN=runs/four ARGS="--seed 1"

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
BENCH_READY := $(VENV)/.installed-bench
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# One process a GPU; without a GPU, two. Processes x threads never exceed the cores.
NPROC ?= $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU' | sed 's/^0$$/2/')
OMP_NUM_THREADS ?= $(shell threads=$$(( $$(getconf _NPROCESSORS_ONLN) / $(NPROC) )); echo $$(( threads > 1 ? threads : 1 )))
TEST_WORKERS ?= 2
NOW := $(shell date +%Y%m%d-%H%M%S)
RUN ?= runs/minigpt-$(NOW)

.PHONY: help train speedrun test lab notebooks exercises bench lint kill-matrix constraints

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

train: $(READY)  ## pre-train MiniGPT on this machine and draw its loss curve
	OMP_NUM_THREADS=$(OMP_NUM_THREADS) $(BIN)/torchrun --standalone --nproc-per-node=$(NPROC) ddp_course/minigpt_ddp.py --preset laptop --run-dir $(RUN) $(ARGS)
	$(BIN)/python -m ddp_course.lab.figures $(RUN)

speedrun: RUN = runs/speedrun-$(NOW)
speedrun: $(READY)  ## tokenizer, pre-training, reward model, GRPO and a report; RUN=DIR goes on with a run
	$(BIN)/python -m ddp_course.lab.speedrun --nproc $(NPROC) --run-dir $(RUN) $(ARGS)

test: lint  ## ruff and all tests, the notebooks among them; on two workers, for many tests wait more than they compute
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(READY)  ## ruff alone
	$(BIN)/ruff check .

lab: $(READY)  ## read the course in JupyterLab
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_your_lab.ipynb $(ARGS)

notebooks: $(READY)  ## run the notebooks and store their outputs; one of them: make notebooks ARGS=04
	$(BIN)/python -m ddp_course.lab.authoring notebooks $(ARGS)

exercises: $(READY)  ## derive exercises/ from solutions/
	$(BIN)/python -m ddp_course.lab.authoring exercises $(ARGS)

bench: $(BENCH_READY)  ## compare with other trainers
	$(BIN)/python tests/benchmarks/run.py $(ARGS)

kill-matrix: $(READY)  ## which check of the grader catches which wrong answer
	$(BIN)/python tests/kill_matrix.py $(ARGS)

constraints:  ## pin anew what pip installs today, in an environment of its own
	$(PYTHON) -m venv --clear .venv-constraints
	.venv-constraints/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dev,bench,peers]"
	( grep '^#' constraints.txt; .venv-constraints/bin/python -m pip freeze --all --exclude-editable \
	  | grep -vE '^(pip==|nvidia-|cuda-|triton)' | sed 's/+[^+]*$$//' ) > constraints.txt.new
	mv constraints.txt.new constraints.txt

# A solution that does not pass its check fails the run, so its outputs are not stored.
notebooks: export DDP_COURSE_STRICT := 1
# What a terminal, a cell and a test see is the same as in an activated environment.
lab notebooks test: export PATH := $(abspath $(BIN)):$(PATH)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "The course needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1). Try: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV): the first time this downloads PyTorch and takes some minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e ".[dev]"
	@touch $@

$(BENCH_READY): $(READY)
	@echo "Installing the trainers to compare with."
	@$(INSTALL) -e ".[dev,bench]"
	@touch $@
