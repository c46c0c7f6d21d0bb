# Two commands do everything on a fresh machine with Python 3.11 and make: `make book` and `make test`.
PYTHON ?= python3.11
VENV ?= .venv
ENGINES ?= .engines
# PyTorch's own index of small CPU builds, for machines whose package index serves the CUDA build:
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# How `make matrix` measures: make matrix WAYS="--way reference --way server"
WAYS ?= --way reference
# Chapters to run, all by default: make book CHAPTERS="02 03"
CHAPTERS ?=

# Folders of the tests that `make check` runs.
FAST := $(addprefix tests/,acceptance arguments capture checkpoint cli figures repository runs vocabulary)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
STAMP := $(VENV)/.setup-done

.DEFAULT_GOAL := help
.PHONY: help setup engines book test check lint lab specimen matrix atlas atlas-check cases bench lock clean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## the environment: pinned packages, real SGLang in two releases, this library

$(STAMP): requirements/torch.txt requirements/lock.txt requirements/engines.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is not Python 3.11, for which the lock is made"; exit 1; }
	@echo "setup: creating $(VENV) (about two minutes)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r requirements/torch.txt
	$(PIP) install --no-deps -r requirements/lock.txt
	@grep -v '^#' requirements/engines.txt | while read -r pin; do \
	  dir="$(ENGINES)/$$(echo "$$pin" | sed 's/==/-/')"; \
	  [ -d "$$dir" ] || { echo "setup: $$pin into $$dir"; $(PIP) install --no-deps --target "$$dir" "$$pin" || exit 1; }; \
	done
	$(PIP) install --no-deps --no-build-isolation --editable .
	$(PIP) install --no-deps --no-build-isolation --editable lab
	@$(BIN)/python -m eagle3lab.engines.atlas.sdists 0.11.2 0.32.0 || echo "setup: vLLM's source distributions cannot be fetched; tests that read them are left out"
	@touch $(STAMP)

engines: $(STAMP)  ## more engines: SGLang releases, and vLLM in an environment of its own (3.4 GB; resumable, optional)
	@grep -v '^#' requirements/more-engines.txt | while read -r pin; do \
	  dir="$(ENGINES)/$$(echo "$$pin" | sed 's/==/-/')"; \
	  [ -d "$$dir" ] || $(PIP) install --no-deps --target "$$dir" "$$pin" || exit 1; \
	done
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) ENGINES=$(ENGINES) sh requirements/make-vllm.sh

book: $(STAMP)  ## run the chapters, check their claims, render the book
	$(BIN)/python -m eagle3lab.book $(CHAPTERS)
	$(BIN)/python -m eagle3lab.book.render

# Two workers: real servers one after the other in the first, everything else in the second.
test: $(STAMP) lint  ## lint, types and all tests, in two processes
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder --durations=20

check: $(STAMP) lint  ## before a commit, under a minute: lint, types, import contracts, the fast tests
	$(BIN)/python -m pytest -q -n 2 --dist loadscope --no-loadscope-reorder -m "not (engine or server or browser or train or slow)" $(FAST)

lint: $(STAMP)  ## ruff, mypy and the import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

lab: $(STAMP)  ## JupyterLab on the notebooks
	$(BIN)/jupyter lab --notebook-dir=. notebooks

specimen: $(STAMP)  ## train the specimen's target and drafter again
	$(BIN)/python -m lab.specimen

matrix: $(STAMP)  ## measure every fault in both releases: the reference, and WAYS="--way server" for real servers
	$(BIN)/python -m lab.faults
	$(BIN)/python -m lab.matrix $(WAYS)

atlas: $(STAMP)  ## read every SGLang release and vLLM's minor ones again, from the package index (resumable)
	$(BIN)/python -m eagle3lab.engines.atlas
	$(BIN)/python -m eagle3lab.engines.arguments
	$(BIN)/python -m eagle3lab.engines.messages

atlas-check: $(STAMP)  ## hold the simulator against every release's own load_weights
	$(BIN)/python -m eagle3lab.engines.atlas.check

cases: $(STAMP)  ## diagnose the case corpus: confusion of faults, and the book's record of it
	$(BIN)/python benchmarks/case_corpus.py --write

bench: $(STAMP)  ## the README's figures, as ratios; ends with an error if one misses its aim
	@status=0; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" || status=1; done; exit $$status

lock:  ## remake requirements/lock.txt from requirements/*.in and pyproject.toml
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) sh requirements/make-lock.sh

clean:  ## remove what the commands made, the environment excepted
	rm -rf _build .grimp_cache .import_linter_cache .mypy_cache .ruff_cache .pytest_cache
