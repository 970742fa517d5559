# Every target sets up what it needs in .venv: the demo the package and what trains and shows a model, all others the
# tools for development too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.dev-ready
ARGS ?=
TODAY := $(shell date +%F)
INSTALL := $(BIN)/python tools/install.py -c constraints.txt
GET_PEERS := $(INSTALL) -e '.[peers]'

.PHONY: demo test check format docs bench bench-peers paper soak images test-containers package clean

demo: $(READY)
	@$(BIN)/hubbub demo $(ARGS)

test: $(DEV_READY)
	$(BIN)/python -m pytest -n 4 --dist loadfile $(ARGS)

check: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV_READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The protocol's tables, drawn in docs/states.md; and the site, in build/site.
docs: $(DEV_READY)
	$(BIN)/python tools/draw_states.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "wrote build/site: open build/site/index.html"

# All of it takes about half an hour; ARGS=--quick half a minute. Peers that cannot be installed are left out.
bench: $(DEV_READY)
	$(if $(findstring --quick,$(ARGS)),,@$(GET_PEERS) || echo "The peers' packages could not be installed; those are left out.")
	$(BIN)/python -m benchmarks $(ARGS)

# A round beside other systems' on the same vectors; their packages are an extra.
bench-peers: $(DEV_READY)
	@$(GET_PEERS)
	$(BIN)/python -m benchmarks.peers $(ARGS)

# The paper's experiments, kept in docs/results: MNIST to 98 % for every strategy (about an hour), and the first five
# rounds of CIFAR-10 (40 minutes; without eastly-he, which takes a quarter of an hour for each). Whatever was stopped
# goes on when this is called again, on another day with TODAY=2026-11-18, or whichever it was begun on.
PAPER_CIFAR10 := fedavg,topbinary-direct,topbinary-sep,no-union,sec-union-letter,sec-union,sec-union-q5-letter,$(\
	)partial-sec-union,plaintext-union,shared-mask,secure-fedavg,bonawitz,eastly-tss
paper: $(DEV_READY)
	$(BIN)/hubbub reproduce mnist --seeds 0,1,2 --out docs/results/$(TODAY)-mnist --resume $(ARGS)
	$(BIN)/hubbub reproduce cifar10 --max-rounds 5 --strategies $(PAPER_CIFAR10) --out docs/results/$(TODAY)-cifar10 \
		--resume $(ARGS)

LONGEST := benchmarked_processes broker_outages compose kills processes strategies tls_federation wheel
# A million mutated messages at the codec and at every service (about a quarter of an hour), what `make test` takes a
# part of, phases longer than a broker's patience of a minute, ten thousand simulated histories with faults (about half
# an hour), every party killed at every transition, and two hundred rounds with random kills, drawn in docs/results
# (another half hour).
soak: $(DEV_READY)
	HUBBUB_FUZZ_MESSAGES=1000000 $(BIN)/python -m pytest tests/fuzz --show-capture=no $(ARGS)
	HUBBUB_API_EXAMPLES=500 $(BIN)/python -m pytest tests/integration/test_openapi.py --show-capture=no $(ARGS)
	HUBBUB_THOROUGH=1 $(BIN)/python -m pytest tests/adversary/test_recording.py tests/adversary/test_compact_recording.py \
		tests/simulation/test_against_plaintext.py tests/examples/test_tutorial.py tests/examples/test_pages.py \
		$(LONGEST:%=tests/integration/test_%.py) $(ARGS)
	HUBBUB_CONSUMER_TIMEOUT_S=60 $(BIN)/python -m pytest tests/integration/test_consumer_timeout.py $(ARGS)
	HUBBUB_SIMULATIONS=10000 $(BIN)/python -m pytest tests/simulation/test_faults.py --show-capture=no $(ARGS)
	HUBBUB_SOAK=.soak.json $(BIN)/python -m pytest tests/soak $(ARGS)
	$(BIN)/python tools/plot_soak.py .soak.json
	rm .soak.json

# The three services' images, wherever a Docker API answers.
images:
	@tools/containers/build.sh $(ARGS)

# The images, and docker-compose.yml for real: a run from its start to its end. Minutes.
test-containers: $(DEV_READY) images
	HUBBUB_CONTAINERS=1 $(BIN)/python -m pytest tests/containers $(ARGS)

# What is released of the last commit, in dist: wheel, sdist, SBOM, checksums. The same commit gives the same bytes.
package: $(DEV_READY)
	$(BIN)/python tools/package.py $(ARGS)

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Without compiled modules, of which the demo uses few.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Hubbub needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	@echo "Setting up $(VENV), once: 1.1 GB, under a minute if downloads are fast ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) --no-compile -e '.[demo]'
	@touch $@

# With all of them: a module that Python compiles may warn, and tests take a warning for an error.
$(DEV_READY): $(READY)
	@echo "Adding the tools for development, once: another 1.2 GB ..."
	@$(INSTALL) -e '.[demo,dev]'
	@$(INSTALL) --no-deps flwr
	@$(BIN)/python -W ignore -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@
