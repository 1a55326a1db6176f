# Each target sets up what it needs, the first time in an environment of its own (.venv). Needed: Python 3.11 or
# newer, pip, make. Change a setting on the command line: make train NPROC=4 RUN=runs/four ARGS="--seed 1"

PYTHON ?= python3
# Another torch than the pinned one, in an environment of its own: make test-torch TORCH_VERSION=2.15.0
TORCH_VERSION ?=
VENV ?= .venv$(addprefix -torch-,$(TORCH_VERSION))
BIN := $(VENV)/bin
READY := $(VENV)/.installed
# What is installed has the version and the hash that stand in requirements/, from whatever index it comes, and none of
# its own code runs on the way. cpu: PyTorch's small build without CUDA, from its own index; pypi: what PyPI has.
TORCH ?= $(if $(filter Linux,$(shell uname)),$(if $(shell nvidia-smi -L 2>/dev/null),pypi,cpu),pypi)
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check
PINNED = install --no-deps --require-hashes --only-binary :all:
PINNED_TORCH = $(PINNED) -r requirements/$(if $(filter cpu,$(TORCH)),torch-cpu,torch).txt
CHOSEN_TORCH = install torch==$(TORCH_VERSION) $(if $(filter cpu,$(TORCH)),--index-url https://download.pytorch.org/whl/cpu)

# One process per GPU that CUDA_VISIBLE_DEVICES leaves (-1 ends its list); without a GPU, two. Processes x threads never
# exceed the cores.
GPUS := $(shell gpus=$$(nvidia-smi -L 2>/dev/null | grep -c '^GPU'); \
  if [ "$$gpus" != 0 ] && [ -n "$${CUDA_VISIBLE_DEVICES+set}" ]; \
  then printf '%s' "$$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | sed '/^-/,$$d' | grep -c .; else echo $$gpus; fi)
NPROC ?= $(patsubst 0,2,$(GPUS))
OMP_NUM_THREADS ?= $(shell threads=$$(( $$(getconf _NPROCESSORS_ONLN) / $(NPROC) )); echo $$(( threads > 1 ? threads : 1 )))
# Five on two cores, for many tests wait more than they compute.
TEST_WORKERS ?= 5
PYTEST = $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadscope
PINNED_TEST = tests/test_project_files.py::test_what_is_installed_here_is_what_is_pinned
FUZZ_SECONDS ?= 600
NOW := $(shell date +%Y%m%d-%H%M%S)
RUN ?= runs/minigpt-$(NOW)

.PHONY: help train skeleton speedrun smoke test test-weekly test-torch fuzz chaos lab notebooks exercises variant portfolio slides bench gpu gpu-required lint kill-matrix doctor-matrix site pins

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

train: $(READY)  ## pre-train MiniGPT on this machine and draw its loss curve
	OMP_NUM_THREADS=$(OMP_NUM_THREADS) $(BIN)/torchrun --standalone --nproc-per-node=$(NPROC) ddp_course/minigpt_ddp.py --run-dir $(RUN) $(ARGS)
	$(BIN)/python -m ddp_course.lab.figures $(RUN)

skeleton:  ## copy the script to start from into DIR, beside one line each for your model and your tokens
	@test -n "$(DIR)" || { echo "say where: make skeleton DIR=path/to/your/project" >&2; exit 1; }
	@for file in train.py my_model.py my_tokens.py; do test ! -e "$(DIR)/$$file" || \
	  { echo "$(DIR)/$$file is there already, and is left as it is" >&2; exit 1; }; done
	@mkdir -p "$(DIR)"
	@sed 's/ddp_course\.data\.token_file/my_tokens/; s/ddp_course\.models\.minigpt/my_model/; s/skeleton_ddp\.py/train.py/' \
	  ddp_course/skeleton_ddp.py > "$(DIR)/train.py"
	@echo 'from ddp_course.data.token_file import open_tokens, prepare  # noqa: F401  replace by your tokens' > "$(DIR)/my_tokens.py"
	@echo 'from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig  # noqa: F401  replace by your model' > "$(DIR)/my_model.py"
	@echo "wrote train.py, my_model.py and my_tokens.py into $(DIR); python train.py runs as it is"

speedrun: RUN = runs/speedrun-$(NOW)
speedrun: $(READY)  ## tokenizer, pre-training, reward model, GRPO and a report; RUN=DIR goes on with a run
	$(BIN)/python -m ddp_course.speedrun --nproc $(NPROC) --run-dir $(RUN) $(ARGS)

smoke: lint  ## three minutes: style, units, one training on two processes
	$(PYTEST) -m smoke

test: lint  ## all but what runs weekly; with ARGS whatever those choose
	$(PYTEST) $(or $(ARGS),-m "not weekly")

test-weekly: lint  ## every wrong answer, with a table; every mesh; notebooks with cold launches; 200 cases of chaos
	$(PYTEST) -m weekly
	$(BIN)/python tests/chaos.py

test-torch: $(if $(TORCH_VERSION),$(READY))  ## make test with another PyTorch in an environment of its own; TORCH_VERSION=2.15.0
	@test -n "$(TORCH_VERSION)" || { echo "say which: make test-torch TORCH_VERSION=2.15.0" >&2; exit 1; }
	@rm -f $(VENV)/report.xml
	-$(PYTEST) --junit-xml $(VENV)/report.xml --deselect $(PINNED_TEST) $(or $(ARGS),-m "not weekly")
	$(BIN)/python tests/versions.py $(VENV)/report.xml

fuzz: $(READY)  ## ten minutes of random command lines, files and environments; FUZZ_SECONDS=60 for one
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest tests/test_fuzz.py $(ARGS)

chaos: $(READY)  ## kills, freezes and damages 200 runs of the trainers, others each time
	$(BIN)/python tests/chaos.py $(ARGS)

lint: $(READY)  ## ruff's rules and format, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports --no-logo --no-cache

lab: $(READY)  ## read the course in JupyterLab, from a page that shows how far you are
	@$(BIN)/python -m ddp_course.lab.start_page progress
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/progress/start_here.ipynb $(ARGS)

notebooks: $(READY)  ## run the notebooks and store their outputs; one of them: make notebooks ARGS=04
	$(BIN)/python -m ddp_course.authoring notebooks $(ARGS)

exercises: $(READY)  ## derive exercises/ from solutions/
	$(BIN)/python -m ddp_course.authoring exercises $(ARGS)

variant: $(READY)  ## a private exercise set in variants/SEED: scripts with a fault each; SEED=17
	@test -n "$(SEED)" || { echo "say which: make variant SEED=17" >&2; exit 1; }
	$(BIN)/python -m ddp_course.authoring.variant $(SEED) $(ARGS)

portfolio: $(READY)  ## your own script on 1, 2 and 3 processes and under the doctor, as a page; SCRIPT=my_train.py
	@test -f "$(SCRIPT)" || { echo "say which: make portfolio SCRIPT=path/to/my_train.py ARGS='--steps 20'" >&2; exit 1; }
	$(BIN)/python -m ddp_course.lab.portfolio --out $(or $(DIR),portfolio) $(SCRIPT) $(ARGS)

slides: $(READY)  ## slides of notebooks 00 to 10 in build/slides, from their figures and questions
	$(BIN)/python -m ddp_course.authoring.slides $(ARGS)

bench: $(READY)  ## compare with other trainers
	$(BIN)/python benchmarks/run.py $(ARGS)

gpu: gpu-required $(READY)  ## on a machine with a GPU: its tests, trainers and figures, as records that the pages show
	$(BIN)/python benchmarks/gpu.py $(ARGS)

gpu-required:
	@test "$(GPUS)" != 0 || { echo "make gpu needs an NVIDIA GPU, and nvidia-smi lists none here" >&2; exit 1; }

kill-matrix: $(READY)  ## which check of the grader catches which wrong answer
	$(BIN)/python -m tests.grader.kill_matrix $(ARGS)

doctor-matrix: $(READY)  ## which verdict the doctor gives on which script
	$(BIN)/python doctor/tests/cases.py $(ARGS)
	$(BIN)/python doctor/tests/check_cases.py $(ARGS)

SITE_READY := $(VENV)/.installed-site
site: $(SITE_READY)  ## the course as a web site in build/site, from what is committed
	$(BIN)/python -m sphinx -q -W --keep-going -b html -c site . build/site
	@echo "built build/site/index.html"

$(SITE_READY): $(READY)
	@$(PIP) $(PINNED) -r requirements/site.txt
	@touch $@

pins: $(READY)  ## pin anew what is installed, with hashes, in requirements/
	$(PYTHON) -m venv --clear .venv-pins
	.venv-pins/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	PATH=$(CURDIR)/.venv-pins/bin:$$PATH $(BIN)/python requirements/pin.py

# The authors' extensions (nbgrader) and Jupyter's news stay off for whoever reads: .jupyter/ says which.
lab: export JUPYTER_CONFIG_PATH := $(CURDIR)/.jupyter
# What the start page shows is kept here, ignored by git. Without the variable nothing is kept.
lab: export DDP_COURSE_PROGRESS := $(CURDIR)/progress
# A solution that does not pass its check fails the run, so its outputs are not stored.
notebooks: export DDP_COURSE_STRICT := 1
# What a terminal, a cell and a test see is the same as in an activated environment.
lab notebooks portfolio variant smoke test test-weekly test-torch fuzz chaos gpu: export PATH := $(abspath $(BIN)):$(PATH)

$(READY): pyproject.toml doctor/pyproject.toml $(wildcard requirements/*.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "The course needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1). Try: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV): the first time this downloads PyTorch and takes some minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(PINNED) -r requirements/course.txt
	@$(PIP) $(if $(TORCH_VERSION),$(CHOSEN_TORCH),$(PINNED_TORCH))
	@$(PIP) install --no-deps --no-build-isolation -e ./doctor -e .
	@$(PIP) check
	@touch $@
