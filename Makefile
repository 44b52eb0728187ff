# make demo    tune a small network on this machine and show what was gained
# make test    run all tests; `make test AS=x86-64-v3` runs them as on a CPU with fewer arithmetic units (CONTRIBUTING.md
#              lists the names), `make test TESTS=tests/ir` a part of them
# make fast    run the tests that compile no kernels and take no seconds
# make campaign  disturb the program on purpose, for hours: it goes on where it was ended (tests/campaign)
# make pages   look at the pages in Chromium, with the accessibility rules of axe-core (needs Chromium and npm)
# make check   ruff and mypy
# make fix     let ruff repair and format what it can
# make cover   run all tests and report which lines they reach
# make docs    build the documentation site in ./site (Python 3.11 or newer); warnings are errors
# make dist    build the wheels and the source archive in ./dist
# make clean   remove everything that these commands made
#
# Each of them makes .venv and installs what it needs, once, and again when pyproject.toml has changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DOCS   := $(VENV)/.installed-docs

# Processes that run tests side by side. More of them need more memory: each loads TVM and starts workers.
JOBS   ?= 2
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal

# Only what is on the command line counts: make itself has a variable AS, its assembler, and TESTS may be another's.
ifeq ($(origin AS),command line)
export STORMDROP_CPU := $(AS)
endif
ifneq ($(origin TESTS),command line)
TESTS :=
endif

# Two files with one name are one module to mypy, which checks one of them at a time. pyproject.toml leaves these out.
NAMESAKES := tests/bench/conftest.py tests/cli/conftest.py tests/measure/conftest.py tests/model/conftest.py \
             tests/report/conftest.py benchmarks/kernels/run.py benchmarks/models/run.py benchmarks/models/transfer.py

# Tests start hundreds of processes, which would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

AXE := $(CURDIR)/build/axe/node_modules/axe-core/axe.min.js

.PHONY: demo test fast campaign pages check fix cover docs dist clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	$(PYTEST) $(TESTS)

fast: $(STAMP)
	$(PYTEST) -m 'not compiles and not long'

campaign: $(STAMP)
	$(BIN)/python tests/campaign/run.py $(CAMPAIGN)

pages: $(STAMP) $(AXE)
	AXE=$(AXE) $(BIN)/python -m pytest tests/report/test_pages_in_chromium.py tests/report/dashboard/test_dashboard_browser.py

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for file in $(NAMESAKES); do $(BIN)/mypy $$file || exit; done

fix: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cover: $(STAMP)
	$(PYTEST) --cov --cov-report=term --cov-report=xml

docs: $(DOCS)
	PYTHONPATH=docs/extensions $(BIN)/zensical build --clean --strict

dist: $(STAMP)
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist --wheel runtime

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .coverage .coverage.* coverage.xml

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "stormdrop needs Python 3.10 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing stormdrop, and what its tests need, into $(VENV): up to 350 MB to download, 1.4 GB on the disk"
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

$(AXE):
	npm install --silent --no-audit --no-fund --prefix build/axe axe-core@4

$(DOCS): $(STAMP)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "the documentation needs Python 3.11 or newer: make clean, then make PYTHON=/path/to/python3 docs" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@
