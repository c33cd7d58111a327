# Everything lives in .venv (packages) and .run (servers, logs, state): `make clean` removes both.
# PG=debian or PG=embedded chooses the PostgreSQL; without it, Debian's with pg_cron where it can be had.
.DEFAULT_GOAL := help
.PHONY: help setup compiled demo demo-spark up down test test-fast test-clock matrix matrix-smoke mutants states chaos failover count bench bench-quick bench-airflow bench-brokers bench-spark soak sizing docs check fix golden lock dist tag clean
MAKEFLAGS += --no-print-directory
export PG
# An image may set it. Hundreds of processes of the tests would then each compile Airflow anew: half of their start.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.installed
BENCH := .run/bench-venv
BROKERS := .run/brokers-venv
SOURCES := airflow_provider_pgqueue benchmarks dags_examples tests tools
PRESENT = $(wildcard $(SOURCES))
# More processes than cores, because tests wait a lot; each has a PostgreSQL of its own. WORKERS=0 is one process.
WORKERS ?= 4
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder
FAST := tests/test_contract.py tests/test_seeds.py tests/core --ignore=tests/core/cli -m "not long"
# On the second server what a version of PostgreSQL can change: the promises, the catalog and who may what, plans and costs,
# partitions, locks, pairs of verbs, and each SQL function with hostile arguments, half as many as on the first. What our
# code decides is the same on each, as are an upgrade under a load, and what a snapshot that is held or turns of keys cost.
OF_THE_SERVER := tests/test_contract.py tests/test_seeds.py $(addprefix tests/core/,whole connection/test_connection.py \
	install/test_copies.py install/test_schema.py install/test_upgrade.py \
	roles/test_roles.py roles/test_grants.py roles/test_ways_in.py maintenance/test_health.py \
	archive/test_archive.py queues/test_drop.py lease/test_locks.py lease/test_waits.py lease/test_pairs.py \
	lease/test_isolation.py) \
	--ignore=tests/core/whole/test_state_machine.py \
	tests/test_bad_input.py -k "(not test_bad_input or function) \
		and not test_a_role_may_do_its_verbs_and_no_other and not test_an_upgrade_under_load \
		and not (test_costs and (snapshot or turns))"
# What Java knows of Spark when it starts, with which a Spark that lives for seconds needs half the CPU.
CLASSES := .run/spark-classes.jsa
OF_TIME := tests/test_contract.py tests/test_seeds.py tests/core/archive tests/core/lease/test_groups.py \
	tests/core/maintenance/test_health.py tests/core/queues/test_policy.py tests/core/publish/test_publish.py \
	tests/core/roles/test_runs.py tests/export tests/spark/test_export.py \
	tests/spark/test_progress.py

# One more process, which has nothing to do with the others: they wait a lot, and the last of them is alone for minutes.
EMBEDDED := .run/tests-embedded.log
BOTH = trap 'kill $$! 2>/dev/null' EXIT INT TERM; \
	EXAMPLES=2 $(BIN)/python -m pytest -n 0 -p no:cacheprovider --pg=embedded $(OF_THE_SERVER) >$(EMBEDDED) 2>&1 & \
	$(PYTEST) tests && status=0 || status=$$?; \
	wait $$! || status=$$?; cat $(EMBEDDED); exit $$status

help: ## Show this help
	@echo "Usage: make TARGET [PG=embedded|debian] [FLIGHTS=20000] [TESTS=tests/test_x.py]"
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  %-13s %s\n", $$1, $$2 }'

setup: $(STAMP) ## Install everything into .venv, once

$(STAMP): requirements.lock pyproject.toml tools/bootstrap.sh
	@echo "Setting up .venv from requirements.lock …"
	@tools/bootstrap.sh
	@touch $@

demo-spark: setup ## Take the real flights through the pipelines on Spark (FLIGHTS=n for fewer)
	@$(BIN)/python -m tools.demo_spark $(if $(FLIGHTS),--flights $(FLIGHTS))

demo: setup ## Run the main job on real flights, end to end (FLIGHTS=n for fewer)
	@$(BIN)/python -m tools.demo $(if $(FLIGHTS),--flights $(FLIGHTS))

up: setup ## Start PostgreSQL and Airflow with the example DAGs and leave them running
	@$(BIN)/python -m tools.airflow start

down: setup ## Stop what `make up` or an interrupted demo left running
	@echo "Stopping Airflow and PostgreSQL …"
	@$(BIN)/python -m tools.airflow stop
	@$(BIN)/python -m tools.postgres stop

test: setup $(if $(TESTS),,$(CLASSES)) ## Run all tests, and what PostgreSQL's version can change on the embedded one too (TESTS=… for some)
	@$(if $(TESTS)$(PG),$(PYTEST) $(or $(TESTS),tests),$(BOTH))

# So that the processes of the tests do not all compile the same at once.
compiled: setup
	@$(BIN)/python -m pytest -n 0 --quiet --collect-only tests >/dev/null

$(CLASSES): requirements.lock tools/java.py | setup
	@$(BIN)/python -m tools.java

test-fast: setup ## Run the tests of the contract and of core/ that are not long, in about a minute
	@$(PYTEST) $(FAST)

test-clock: setup ## Run the tests of time at awkward moments; needs a C compiler
	@$(BIN)/python -m tools.clock -- $(OF_TIME) -n $(WORKERS) --no-loadscope-reorder

matrix: setup ## Run the tests of the Airflow layer on each supported Airflow, about 15 minutes (VERSIONS="3.1")
	@$(BIN)/python -m tools.matrix $(VERSIONS)

matrix-smoke: setup ## A part of them on the oldest Airflow, and the page with FAB's users, in a minute
	@$(BIN)/python -m tools.matrix 3.1 3.3-fab --smoke

mutants: setup ## Break SQL and Python in each of many ways and see the tests notice, about 25 minutes (NAMES="lease" for some)
	@$(BIN)/python -m tools.mutants $(NAMES)

chaos: setup ## Break everything under a load, account for each message, and write a page (SECONDS=600)
	@$(BIN)/python -m tools.chaos --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

failover: setup ## Kill each of two schedulers and two triggerers of one Airflow, and count messages, in 8 minutes
	@$(BIN)/python -m tools.failover

states: setup ## Call the verbs in random orders next to a model, about 5 minutes (EXAMPLES=500)
	@EXAMPLES=$(or $(EXAMPLES),500) $(BIN)/python -m pytest -q -s -n 0 --timeout=7200 -o faulthandler_timeout=7260 tests/core/whole/test_state_machine.py

count: setup ## Count the instructions of the verbs next to raw PL/pgSQL, in a minute; needs valgrind
	@$(BIN)/python -m tools.count

bench: $(BENCH)/.installed ## Measure the queue compared with its peers, about 45 minutes (BENCH_ARGS="--only waiting")
	@PYTHONPATH=. $(BENCH)/bin/python -m benchmarks $(BENCH_ARGS)

bench-quick: $(BENCH)/.installed ## The same in under 5 minutes, less exact and without the largest queues
	@PYTHONPATH=. $(BENCH)/bin/python -m benchmarks --quick $(BENCH_ARGS)

bench-spark: setup ## Measure the pipeline compared with Spark's own JDBC source, about 20 minutes (BENCH_ARGS="--only export")
	@PYTHONPATH=. $(BIN)/python -m benchmarks.spark $(BENCH_ARGS)

sizing: setup ## Print what a message costs in disk, WAL and time, and what a million a day make of it, in two minutes
	@$(BIN)/python -m tools.sizing

bench-airflow: setup ## Measure 1,000 deferred sensors on one triggerer, and its recovery, about 10 minutes (BENCH_ARGS="--only failover")
	@$(BIN)/python -m benchmarks.triggerer $(BENCH_ARGS)

bench-brokers: $(BROKERS)/.installed ## Measure our trigger compared with those of Redis and SQS, about 8 minutes (BENCH_ARGS="--only redis")
	@PYTHONPATH=. $(BROKERS)/bin/python -m benchmarks.brokers $(BENCH_ARGS)

soak: setup ## Half load for hours: memory, tables and latency as a table and a plot (HOURS=2)
	@$(BIN)/python -m benchmarks.soak --hours $(or $(HOURS),2)

# The peers never mix with the project's own packages, which are there for the one case that needs Airflow.
$(BENCH)/.installed: pyproject.toml | setup
	@echo "Setting up $(BENCH) with the peers …"
	@.run/boot/bin/uv venv --quiet --clear --python $(BIN)/python $(BENCH)
	@.run/boot/bin/uv pip install --quiet --python $(BENCH)/bin/python --group bench
	@touch $@

$(BROKERS)/.installed: pyproject.toml | setup
	@echo "Setting up $(BROKERS) with the providers of Redis and Amazon …"
	@.run/boot/bin/uv venv --quiet --clear --python $(BIN)/python $(BROKERS)
	@.run/boot/bin/uv pip install --quiet --python $(BROKERS)/bin/python --group bench-brokers
	@touch $@

docs: setup ## Build the documentation as a site in .run/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m tools.site

check: setup ## Check style, types and layers; writes nothing
	@$(BIN)/ruff check $(PRESENT)
	@$(BIN)/ruff format --check $(PRESENT)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fix: setup ## Repair style where that can be done by machine
	@$(BIN)/ruff check --fix $(PRESENT)
	@$(BIN)/ruff format $(PRESENT)

golden: setup ## Write what is made of the code anew: schema, Airflow's classes, layers; for a review of what changed
	@$(BIN)/python -m tools.golden
	@$(BIN)/python -m tools.site.classes
	@$(BIN)/python -m tools.layers

lock: ## Resolve the dependencies again into requirements.lock (LOCK=--upgrade for newer ones)
	@tools/bootstrap.sh lock $(LOCK)

# The files depend on the sources alone, so whoever builds a tag again gets the sums of what the index has.
dist: setup ## Build the wheel and the sdist into dist/, and check and print what an index would show
	@rm -rf dist
	@$(BIN)/python -m hatchling build -d dist
	@.run/boot/bin/uv tool run --quiet twine==6.2.0 check --strict dist/*
	@cd dist && sha256sum *

tag: setup ## Tag the commit as the version of the package, with its notes from CHANGELOG.md
	@$(BIN)/python -m tools.release

clean: ## Stop the servers, then remove .venv and .run
	@if [ -e $(STAMP) ]; then $(BIN)/python -m tools.airflow stop; $(BIN)/python -m tools.postgres destroy; fi
	@rm -rf .venv .run dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
