.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help
help:  ## Show what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml provider/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e ./provider
	@touch $@

.PHONY: install
install: $(VENV)/.installed  ## Create the environment in .venv with pinned dependencies

.PHONY: demo
demo: install  ## Archive, prove, clean and validate a sample store in real Airflow, then sum it up
	@$(BIN)/python -m demo cycle

.PHONY: demo-live
demo-live: install  ## The same beside a real broker that serves producers and consumers; needs a JDK and Maven
	@$(BIN)/python -m demo live

.PHONY: demo-kafka
demo-kafka: install  ## Say why a Kafka node's segments stay, archive with proof, restore a lost log, and serve it
	@$(BIN)/python -m demo kafka

.PHONY: demo-kafka-live
demo-kafka-live: install  ## Delete from a Kafka broker under load what is proven, and restore it elsewhere
	@$(BIN)/python -m demo kafka-live

.PHONY: demo-read-on
demo-read-on: install  ## Let a stopped group read what its Kafka broker deleted meanwhile, on to the live end
	@$(BIN)/python -m demo read-on

.PHONY: up
up: install  ## Start Airflow on loopback with the DAGs and the sample store; Ctrl-C stops it
	@$(BIN)/storage-engine up .demo/up

# Half of the tests wait for brokers and object stores, so there are more workers than processors.
WORKERS ?= 4
# No kill takes away what the kernel has, and where a test cuts the power it does so in a simulation of its own.
# So tests wait for no disk where there is a compiler: to wait takes a third of their time.
NO_DISK_WAITS := $(if $(shell command -v cc),$(VENV)/no_disk_waits.so)
$(VENV)/no_disk_waits.so: tests/services/no_disk_waits.c | install
	cc -shared -fPIC -O2 -o $@ $<

# Each test may start processes; what one of them has compiled no other compiles again.
PYTEST = PYTHONDONTWRITEBYTECODE= LD_PRELOAD=$(addprefix $(CURDIR)/,$(NO_DISK_WAITS)) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Each test there needs one, or is slow, and collecting them takes seconds of each worker.
NOT_QUICK := integration compatibility histories

.PHONY: test
test: install $(NO_DISK_WAITS)  ## Run the test suite: every claim, with a few rounds of what chance decides
	$(PYTEST)

.PHONY: test-quick
test-quick: WORKERS = 2
test-quick: install $(NO_DISK_WAITS)  ## Run what needs no broker, Spark, Airflow or object store and ends within 2 minutes
	$(PYTEST) -m "not integration and not slow" $(addprefix --ignore=tests/,$(NOT_QUICK))

.PHONY: test-all
test-all: install $(NO_DISK_WAITS)  ## Run the test suite with all rounds, kills and faults at every place; takes hours
	STORAGE_ENGINE_ALL_ROUNDS=1 $(PYTEST)

.PHONY: lint
lint: install  ## Check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: shape
shape: install  ## Print how large the tree, its folders and circles are, with the limit of each
	@$(BIN)/python -m tests.project.shape

.PHONY: docs
docs: install  ## Build the documentation for a browser; storage-engine docs says where it is
	$(BIN)/mkdocs build --quiet --strict --site-dir storage_engine/site

.PHONY: reference
reference: install  ## Write the tables of docs that come from the code
	$(BIN)/python docs/write_reference.py

.PHONY: picture
picture: install  ## Draw the pictures of the docs that come from the code
	$(BIN)/python docs/draw_rooms.py
	$(BIN)/python docs/draw_what_if.py
	$(BIN)/python -m docs.draw_broker_courses

# The chart's library lies in the repository, since a page in Airflow may not fetch anything from elsewhere.
UPLOT_DIR := storage_engine/plugins/static/uplot
UPLOT ?= $(shell cat $(UPLOT_DIR)/VERSION)

.PHONY: vendor
vendor:  ## Fetch uPlot from npm again and check its hashes; UPLOT=VERSION renews it
	set -euo pipefail; made=$$(mktemp -d); trap 'rm -rf $$made' EXIT; (cd $$made && npm pack --silent uplot@$(UPLOT) | xargs tar xzf); \
	cd $$made/package && cp LICENSE dist/uPlot.iife.min.js dist/uPlot.min.css $$made; cd $(CURDIR)/$(UPLOT_DIR); \
	if [ "$(UPLOT)" = "$$(cat VERSION)" ]; then (cd $$made && sha256sum --check --quiet $(CURDIR)/$(UPLOT_DIR)/SHA256SUMS); fi; \
	cp $$made/{LICENSE,uPlot.iife.min.js,uPlot.min.css} .; echo $(UPLOT) > VERSION; \
	sha256sum LICENSE uPlot.iife.min.js uPlot.min.css > SHA256SUMS

.PHONY: bench
bench: install  ## Run the benchmarks; prints ratios and writes benchmarks/results/*.json
	$(BIN)/python -m benchmarks

.PHONY: matrix
matrix: install  ## Run the DAGs with each Python and Airflow, and print the table of docs/upgrade.md; needs uv
	$(BIN)/python -m tests.integration.airflow_matrix $(PAIRS)

.PHONY: matrix-spark
matrix-spark: install  ## Run both jobs on a local cluster of every Spark line, and print the table of docs/upgrade.md
	$(BIN)/python -m tests.integration.spark_matrix

.PHONY: matrix-rocketmq
matrix-rocketmq: install  ## A round with each version and layout of RocketMQ's broker, or ROWS=5.5.1; the table of docs/upgrade.md
	$(BIN)/python -m tests.integration.rocketmq_matrix $(ROWS)

.PHONY: fuzz
fuzz: install  ## Decode FUZZ_INPUTS mutated frames (default 10 million): no crash, hang, leak or misread
	$(BIN)/python tests/fuzz_codec.py --inputs $(or $(FUZZ_INPUTS),10000000) --seed $(or $(SEED),1)

.PHONY: stress
stress: install  ## Histories for SECONDS (default: 3600); then kills at every place, power cuts, faults; hours
	$(BIN)/python -m tests.histories --seconds $(or $(SECONDS),3600) --seed $(or $(SEED),1)
	STORAGE_ENGINE_KILLS=1000000 $(BIN)/python -m pytest tests/retention/test_kill.py
	$(BIN)/python -m tests.rocketmq.engine.killing --runs 500 --seed $(or $(SEED),1)
	$(BIN)/python -m tests.rocketmq.engine.crowding --seconds 600 --seed $(or $(SEED),1)
	$(BIN)/python -m tests.rocketmq.engine.killing_cleanup --runs 200 --seed $(or $(SEED),1)
	$(BIN)/python -m tests.rocketmq.engine.killing_cleanup --runs 30 --seed $(or $(SEED),1) --proven
	$(BIN)/python -m tests.rocketmq.engine.power_cuts --cuts 300 --seed $(or $(SEED),1)
	STORAGE_ENGINE_SHIELD_KILLS=1000000 $(BIN)/python -m pytest tests/retention/test_shield_kill.py
	STORAGE_ENGINE_KILL_ROUNDS=200 STORAGE_ENGINE_SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/lake/test_random_kills.py
	STORAGE_ENGINE_COMMAND_KILLS=1000000 $(BIN)/python -m pytest tests/lake/test_command_kills.py
	STORAGE_ENGINE_POWER_CUTS=1000000 $(BIN)/python -m pytest tests/retention/test_power_loss.py
	STORAGE_ENGINE_ALL_ROUNDS=1 STORAGE_ENGINE_CLUSTER_ROUNDS=50 $(BIN)/python -m pytest tests/integration/test_spark_clusters.py
	STORAGE_ENGINE_BESIDE_KILLS=150 STORAGE_ENGINE_SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/integration/test_live_kill.py
	STORAGE_ENGINE_ALL_ROUNDS=1 STORAGE_ENGINE_BESIDE_FAULTS=1 $(BIN)/python -m pytest tests/integration/test_live_faults.py
	STORAGE_ENGINE_LIVE_ROUNDS=20 STORAGE_ENGINE_VALIDATION_ROUNDS=20 $(BIN)/python -m pytest tests/integration/test_release_live.py

.PHONY: clean
clean:  ## Remove the environment and everything the demo made
	rm -rf $(VENV) .demo build dist storage_engine/site
