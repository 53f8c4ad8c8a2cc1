# What a fresh machine needs is installed here, never by hand. Needs Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip resolves torch first and pinned, so that no newer build with CUDA packages is fetched.
INSTALLED := $(VENV)/.installed

.PHONY: install run test lint format results assets app-config benchmarks vllm clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all]"
	touch $@

run: install  ## the main job: PrE-Text on a thousand users, one seed, epsilon 7.58
	$(BIN)/privsyn run configs/demo.toml $(if $(SET),--set $(SET))

test: install  ## the whole suite
	$(BIN)/python -m pytest -q

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

results: install  ## the README's table: seeds and noise repeated at both epsilons
	$(BIN)/python scripts/results.py

assets: install  ## the shipped tiny models, trained on public packages only (about an hour)
	$(BIN)/python scripts/make_assets.py

app-config: install  ## what is generated from config.py: keys in pyproject.toml and in the docs
	$(BIN)/python scripts/update_app_config.py
	$(BIN)/python scripts/update_docs.py

benchmarks: install
	$(BIN)/python benchmarks/vote_round.py
	$(BIN)/python benchmarks/secure_round.py
	$(BIN)/python benchmarks/secure_sum.py

vllm: .venv-vllm/.installed  ## vLLM cannot share an environment with Flower; it runs as a server

.venv-vllm/.installed: requirements-vllm.txt
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-vllm.txt
	touch $@

clean:
	rm -rf $(VENV) .venv-vllm build dist *.egg-info
