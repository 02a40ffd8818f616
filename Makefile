# make bench   install what is needed, then measure two ops on this machine
# make test    install what is needed, then run the tests
# make sanitize   every op on small shapes under compute-sanitizer, on a GPU
# make lint    formatting, lint and types, with the pinned tools
# make wheel   build dist/*.whl
#
# PYTHON names the interpreter. Where its torch already sees a GPU it is used as it is: nothing is installed, no network needed.
# One process then runs the tests: it measures the GPU and fills its memory. Otherwise an environment of pinned versions is made in .venv (an open-ended torch would bring gigabytes of CUDA libraries).

PYTHON ?= python3
TEST_ARGS ?=

SEES_GPU := $(shell $(PYTHON) -c 'import torch; print("yes" if torch.cuda.is_available() else "no")' 2>/dev/null)

ifeq ($(SEES_GPU),yes)
RUN := PYTHONPATH=src $(PYTHON)
READY :=
WORKERS :=
else
RUN := .venv/bin/python
READY := .venv/ready
WORKERS := -n 2
endif

PIP := .venv/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: bench test sanitize lint wheel clean

bench: $(READY)
	$(RUN) -m rafters bench add silu_mul

test: $(READY)
	$(RUN) -m pytest $(WORKERS) $(TEST_ARGS)

sanitize: $(READY)
	$(RUN) tests/sanitize.py

lint: .venv/tools
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

wheel: .venv/tools
	rm -rf build dist
	.venv/bin/python -m build --quiet --wheel --outdir dist .

clean:
	rm -rf .venv build dist

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Rafters needs Python 3.11 or newer; name one with PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[all]'
	touch $@

.venv/tools: .venv/ready
	$(PIP) ruff mypy build
	touch $@
