# make demo: train and prove an embedding on a small real data set. make test: the whole test suite.
# Both set up .venv first. make test-browser: the web page in a real browser (installs Debian's chromium if there is none).
# make book: every study behind the book of results (hours; finished cells are kept), and its pages.
# make book-quick: some of their cells from nothing, in less than 20 minutes, beside what the book has.
# make house: how large the tree is and how many files a command enters; AGAINST=commit puts another commit beside it.
# NEARKIN_DATA names the directory with real data; without it the tests that need it skip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHARED := $(abspath ../shared/data)
export NEARKIN_DATA ?= $(if $(wildcard $(SHARED)),$(SHARED),)

.PHONY: setup demo test test-browser lint types layers docs bench book book-quick house clean

# Each target installs only the extras it needs, once: $(HAS)extras marks that they are there.
HAS := $(VENV)/.has-

$(HAS)%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch '$@'

setup: $(HAS)all,dev,docs

demo: $(HAS)train,serve
	rm -rf runs/demo
	$(BIN)/nearkin demo --out runs/demo

# Compiled files are kept, also where the environment says otherwise: the tests start many processes.
test: $(HAS)all,test
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 --dist worksteal

test-browser: $(HAS)all,test,browser
	command -v chromium > /dev/null || (apt-get update -qq && apt-get install -qq -y chromium > /dev/null)
	$(BIN)/pytest -n0 -m browser tests/browser

lint: $(HAS)checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(HAS)all,checks
	$(BIN)/mypy

layers: $(HAS)checks
	$(BIN)/lint-imports

docs: $(HAS)all,docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(HAS)all
	$(BIN)/python benchmarks/overhead.py --check

book: $(HAS)all
	$(BIN)/python studies/book/run.py

book-quick: $(HAS)all
	$(BIN)/python studies/book/run.py --quick

house: $(HAS)all,test
	$(BIN)/python tools/house.py $(if $(AGAINST),--against $(AGAINST))

clean:
	rm -rf $(VENV) build dist site
