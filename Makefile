.PHONY: test lint types bench
PYTHON ?= python

test:            ## the whole test suite, with the doctests of rop/
	$(PYTHON) -m pytest -q

lint:
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy

bench:           ## about two minutes; `rop bench --help` has the full run
	$(PYTHON) -m rop bench --quick
