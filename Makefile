# qwenlab: everything starts here. `make` alone lists the targets.
# A machine needs Python 3.11 and make; the rest is installed into .venv, once.

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check
SITE := _build/html/index.html
FIRST := notebooks/01-why-batch.ipynb

# ipywidgets 7.7 is what Colab ships. For `make test-all` it gets an environment of its own, which sees all of .venv
# beneath it.
WIDGETS7 := .venv-widgets7
WIDGETS7_PINS := ipywidgets==7.7.5 ipython-genutils==0.2.0

# Ray is large, so it gets an environment of its own in the same way, for `make test-scale`.
SCALE := .venv-scale
SCALE_PINS := 'ray[data]==2.60.0'

# Threads that wait for each other sleep: on a busy machine spinning threads make small models many times slower.
OMP_WAIT_POLICY ?= PASSIVE
export OMP_WAIT_POLICY

# Compiled modules are kept, as Python does by default: a book and the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

# Tests run in as many processes as there are cores (at most four), each with one thread. A file stays in
# one of them, but for those whose tests share nothing, and the longest come first (tests/conftest.py).
TESTS := OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help book test test-all test-other test-scale lab read new-lesson repository clean distclean

help: ## list the targets
	@echo "qwenlab: the targets of this Makefile"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

book: $(VENV)/book.stamp ## build the site into _build/html (warnings are errors)
	@echo "==> Building the site"
	@# Sphinx skips the warnings of pages that it read before, so a build starts clean. Executed cells are kept in
	@# _build/.jupyter_cache, which qwenlab.teach.sphinx_page drops when the library has changed.
	@rm -rf _build/html _build/.doctrees _build/jupyter_execute
	@$(VENV)/bin/jupyter-book build . -W -n --keep-going
	@test -f $(SITE) || { echo "The build ended without $(SITE)." >&2; exit 1; }
	@echo "==> The site is here: file://$(CURDIR)/$(SITE)"

test: $(VENV)/test.stamp ## run the tests with reduced counts (ARGS="-k name" selects)
	@echo "==> Running the tests"
	@test -f $(SITE) || echo "    (no site yet: its tests are skipped and the lessons run here; 'make book' first helps)"
	@$(TESTS) $(ARGS)

test-all: $(VENV)/test.stamp $(WIDGETS7)/stamp ## run the tests with every property at full count
	@echo "==> Running the tests at full count"
	@QWENLAB_FULL=1 $(TESTS) $(ARGS)

test-other: $(VENV)/test.stamp ## run the tests without what Windows lacks, and without float64 as on Apple's GPUs
	@echo "==> Running the tests as on other systems (tests/without/simulated.py)"
	@QWENLAB_WITHOUT=posix,float64 $(TESTS) $(ARGS)

test-scale: $(SCALE)/stamp ## run the tests of several processes, with torchrun and Ray too
	@echo "==> Running the tests of several processes"
	@QWENLAB_SCALE=1 $(subst $(PYTHON),$(SCALE)/bin/python,$(TESTS)) tests/scale $(ARGS)

lab: $(VENV)/book.stamp ## open JupyterLab on the first lesson (ARGS="--no-browser --port 8889")
	@# It serves this whole folder: lessons link to pages in book/.
	@$(PYTHON) -m jupyterlab --LabApp.default_url=/lab/tree/$(FIRST) $(ARGS)

read: $(VENV)/created ## print the order in which to read the library
	@$(PYTHON) scripts/reading_order.py

new-lesson: $(VENV)/book.stamp ## start a lesson of your own: NAME=18-my-lesson TITLE="My lesson"
	@$(PYTHON) scripts/new_lesson.py "$$NAME" "$$TITLE"

repository: $(VENV)/created ## set the course's address: URL=https://host/owner/repo BRANCH=main (URL= removes it)
	@$(if $(filter undefined,$(origin URL)),echo "Say which address: make repository URL=https://host/owner/repo BRANCH=main" >&2; exit 2)
	@$(PYTHON) scripts/set_repository.py --url "$(URL)" --branch "$(or $(BRANCH),main)" --pages "$(PAGES)"

clean: ## remove what was built; the environments stay
	rm -rf _build .pytest_cache .ruff_cache .hypothesis

distclean: clean ## remove the environments too
	rm -rf $(VENV) $(WIDGETS7) $(SCALE)

# --- Set-up. A stamp is written last, so an interrupted installation is taken up again. -----------------------------

# Scripts in an environment hold its path: after the checkout has moved, all environments are made anew.
ifneq ($(wildcard $(VENV)/created),)
ifneq ($(shell cat $(VENV)/created),$(CURDIR))
$(info ==> This checkout has moved: its environments are made anew)
$(shell rm -rf $(VENV) $(WIDGETS7) $(SCALE))
endif
endif

$(VENV)/created:
	@python=; \
	for name in python3.11 python3; do \
	    if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "qwenlab needs Python 3.11: neither python3.11 nor a new enough python3 was found." >&2; exit 1; \
	fi; \
	if ! $(PYTHON) -m pip --version >/dev/null 2>&1; then \
	    echo "==> Creating $(VENV) with $$python"; \
	    $$python -m venv --clear $(VENV) || \
	        { echo "$$python could not create $(VENV): is its venv module installed (python3-venv)?" >&2; exit 1; }; \
	fi
	@echo "$(CURDIR)" > $@

$(VENV)/book.stamp: $(VENV)/created requirements.txt pyproject.toml
	@echo "==> Installing requirements.txt into $(VENV) (once; a few minutes)"
	@$(PIP) install -r requirements.txt
	@echo "==> Installing qwenlab itself, editable"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/test.stamp: $(VENV)/book.stamp requirements-test.txt
	@echo "==> Installing requirements-test.txt into $(VENV)"
	@$(PIP) install -r requirements-test.txt
	@touch $@

$(WIDGETS7)/stamp: $(VENV)/test.stamp Makefile
	@echo "==> Creating $(WIDGETS7): $(WIDGETS7_PINS) on top of $(VENV)"
	@$(PYTHON) -m venv --clear --without-pip $(WIDGETS7)
	@$(PIP) --python $(WIDGETS7)/bin/python install --no-deps $(WIDGETS7_PINS)
	@below=$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	above=$$($(WIDGETS7)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	echo "import site; site.addsitedir('$$below')" > "$$above/below.pth"
	@touch $@

$(SCALE)/stamp: $(VENV)/test.stamp Makefile
	@echo "==> Creating $(SCALE): $(SCALE_PINS) on top of $(VENV)"
	@$(PYTHON) -m venv --clear --without-pip $(SCALE)
	@below=$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	above=$$($(SCALE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	echo "import site; site.addsitedir('$$below')" > "$$above/below.pth"
	@$(PIP) --python $(SCALE)/bin/python install $(SCALE_PINS)
	@touch $@
