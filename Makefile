# Two commands to know: `make demo` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEV := .venv/.ready-dev

FLOWER := .venv/.ready-flower
DOCS := .venv/.ready-docs

.PHONY: demo federation bench test prove fuzz federation-test ray-test package check format docs clean

demo: $(READY)  ## Ten methods on the embedded digits, and a page that says who gains
	$(BIN)/fedloom compare --fresh --out runs/demo

federation: $(FLOWER)  ## A server and five clients on this machine, with TLS and keys
	rm -rf runs/federation
	$(BIN)/python examples/federation.py

bench: $(READY)  ## A few ratios of speed, against the stored ones: on a quiet machine
	$(BIN)/fedloom bench ratios --stored benchmarks/ratios-2-cores.json

test: $(DEV)  ## The suite, in minutes
	$(BIN)/pytest -n auto

prove: $(DEV)  ## The slow proofs: compiled equals loop, killed at any write, compare equals run
	$(BIN)/pytest -n auto --dist worksteal -m "slow and not gpu and not network" --durations 20
	$(BIN)/pytest -m timing

fuzz: $(DEV)  ## Odd input: a sample, or as many of each kind as FEDLOOM_FUZZ_CASES says
	$(BIN)/pytest -n auto -m fuzz tests/fuzz --durations 10

federation-test: $(DEV)  ## Federations over Flower on this machine: TLS, keys, kills
	$(BIN)/pytest -n 2 --dist loadfile -m flower tests/flower --durations 10

ray-test: $(DEV)  ## Ray on this machine: several machines emulated, workers and machines that die
	$(BIN)/pytest -m ray tests/ray --durations 10

package: $(DEV)  ## Wheel and sdist in dist/, checked, and used by a newcomer in an empty environment
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/twine check --strict dist/*
	$(BIN)/pytest -m package tests/packaging --durations 5

check: $(DEV)  ## Format, lint, types, import layers, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests docs examples configs *.md .github CITATION.cff

format: $(DEV)  ## Put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DEV) $(DOCS)  ## The docs site, in site/: notebooks run, and every link and entry is checked
	$(BIN)/python docs/algorithms/make_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/pytest -m docs tests/docs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), sys.exit("Fedloom needs Python 3.11 or newer; found " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	@echo "Setting up .venv (once; about a minute)..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torch hatchling editables
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable .
	@touch $(READY)

$(FLOWER): $(READY)
	@echo "Adding Flower (once; about a minute)..."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[flower]'
	@touch $(FLOWER)

$(DEV): $(READY)
	@echo "Adding the tools for development (once; about a minute)..."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $(DEV)

$(DOCS): $(READY)
	@echo "Adding what builds the docs site (once; about a minute)..."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[docs]'
	@touch $(DOCS)

clean:  ## Remove everything that make built
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site
