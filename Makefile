.PHONY: test test-thorough test-kinds test-gpu format lint types bench
PYTHON ?= python

test:            ## the test suite but for its thorough part, with the doctests of rop/
	$(PYTHON) -m pytest -q

test-thorough:   ## the rest of it
	$(PYTHON) -m pytest -q -m thorough

test-kinds:      ## the numeric tests with kernels for AVX2, for a CPU without AVX and with the geometry of AVX-512
	$(PYTHON) -m tests.kinds

test-gpu:        ## the whole suite with device="cuda" wherever a test does not say otherwise; needs an NVIDIA GPU
	ROP_TEST_DEVICE=cuda $(PYTHON) -m pytest -q -n 0 -m "thorough or not thorough"

format:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy

bench:           ## about two minutes; `rop bench --help` has the full run
	$(PYTHON) -m rop bench --quick
