.PHONY: test test-gpu lint types bench
PYTHON ?= python

test:            ## the whole test suite, with the doctests of rop/
	$(PYTHON) -m pytest -q

test-gpu:        ## the whole suite with device="cuda" wherever a test does not say otherwise; needs an NVIDIA GPU
	ROP_TEST_DEVICE=cuda $(PYTHON) -m pytest -q

lint:
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy

bench:           ## about two minutes; `rop bench --help` has the full run
	$(PYTHON) -m rop bench --quick
