# Everything a person, a hook or a machine runs has one name here. `make run` and `make test` need only git, make and
# Python 3.11 or newer; everything else goes into .venv, from requirements files with hashes.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$name; break; }; done)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CODE := gateway platforms agent hermes_state tests bench examples
ARGS ?=
# Extras that were asked for once are kept up to date with everything else.
EXTRAS = $(wildcard $(VENV)/.installed-anthropic $(VENV)/.installed-cluster $(VENV)/.installed-mcp)

.PHONY: help install setup run anthropic cluster mcp test test-browser test-proxies test-cluster test-cluster-all check fmt lint type unit bench bench-cluster scale quality figures texts walk catalog crash chaos months protocols fuzz lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; set PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { echo "The venv module of $(PYTHON) does not work here; on Debian: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.made requirements/base.txt pyproject.toml
	@echo "installing what the gateway needs"
	@$(PIP_INSTALL) --require-hashes -r requirements/base.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-anthropic: $(VENV)/.installed requirements/anthropic.txt
	@echo "installing the Anthropic SDK"
	@$(PIP_INSTALL) --require-hashes -r requirements/anthropic.txt
	@touch $@

$(VENV)/.installed-cluster: $(VENV)/.installed requirements/cluster.txt
	@echo "installing the PostgreSQL driver"
	@$(PIP_INSTALL) --require-hashes -r requirements/cluster.txt
	@touch $@

$(VENV)/.installed-mcp: $(VENV)/.installed requirements/mcp.txt
	@echo "installing the MCP SDK"
	@$(PIP_INSTALL) --require-hashes -r requirements/mcp.txt
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements/dev.txt
	@echo "installing what development needs"
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

install: $(VENV)/.installed $(EXTRAS) ## make .venv with what a server needs; with it the gateway can run
	@$(BIN)/python -m compileall -q $(filter-out tests bench examples,$(CODE))

setup: $(VENV)/.installed-dev ## make .venv with everything for development

anthropic: $(VENV)/.installed-anthropic ## add the SDK that `model.protocol: anthropic` needs

cluster: $(VENV)/.installed-cluster ## add what `store.url: postgresql://…` and `attachments.url: s3://…` need

mcp: $(VENV)/.installed-mcp ## add the SDK that `mcp.servers` needs

run: $(VENV)/.installed $(EXTRAS) ## start the gateway; ARGS="--help" shows its options
	@exec $(BIN)/hermes-gateway run $(ARGS)

# Bytecode is written whatever the environment says: workers read each other's, and the next run reads this one's.
test test-browser test-cluster test-cluster-all crash chaos months protocols fuzz: export PYTHONDONTWRITEBYTECODE :=

# What runs over PostgreSQL, too: the store's functions, but for those that look into SQLite's files, and everything end to
# end, over one protocol. `make test-cluster-all` adds the other protocols and the rest of the gateway's tests.
STORE_ON_POSTGRES := tests/hermes_state --ignore=tests/hermes_state/engines \
	--ignore=tests/hermes_state/search/test_index.py --ignore=tests/hermes_state/search/test_ranking.py \
	--ignore=tests/hermes_state/admin/test_repair.py --ignore=tests/hermes_state/admin/test_overview.py \
	--ignore=tests/hermes_state/admin/test_copy.py
GATEWAY_ON_POSTGRES := tests/gateway/turns/test_lanes.py tests/gateway/turns/test_statements.py \
	tests/gateway/operator/test_spending.py tests/e2e

PLAIN := not browser and not cluster and not crash and not months and not proxies

# Five workers, on two processors too: half of what a test takes is waiting.
test: setup ## every test that needs no browser; ARGS="-k name" picks some
	@echo "Not in this run: browser tests (make test-browser), reverse proxies (make test-proxies), PostgreSQL"
	@echo "(make test-cluster), every kill point (make crash), whole months of a chat (make months), everything over each of"
	@echo "the three protocols (make protocols), most random cases and whole tables of faults (make fuzz); samples of the"
	@echo "last four are in this run."
	@$(BIN)/python -m pytest -n 5 --dist worksteal -m "$(PLAIN)" $(ARGS)

test-browser: setup ## the web chat in a headless Chromium
	@command -v chromedriver >/dev/null || { echo "chromedriver is needed; on Debian: apt install chromium chromium-driver" >&2; exit 1; }
	@$(BIN)/python -m pytest -m browser $(ARGS)

test-proxies: setup ## the web chat behind nginx and Caddy, with TLS
	@for name in nginx caddy openssl; do PATH=$$PATH:/usr/sbin command -v $$name >/dev/null || \
		{ echo "$$name is needed; on Debian: apt install nginx caddy openssl" >&2; exit 1; }; done
	@PATH=$$PATH:/usr/sbin $(BIN)/python -m pytest -m proxies tests/e2e/test_proxies.py $(ARGS)

test-cluster: setup ## everything that needs PostgreSQL, on a server of its own
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "PostgreSQL is needed; on Debian: apt install postgresql" >&2; exit 1; }
	@$(BIN)/python -m pytest -n 3 --dist worksteal -m cluster $(ARGS)
	@HERMES_TEST_ENGINE=postgres $(BIN)/python -m pytest -n 5 --dist worksteal \
		-m "$(PLAIN)" \
		--protocol chat_completions $(STORE_ON_POSTGRES) $(GATEWAY_ON_POSTGRES) $(ARGS)

test-cluster-all: setup ## all of the gateway's and the end-to-end tests over PostgreSQL; takes ten minutes
	@HERMES_TEST_ENGINE=postgres $(BIN)/python -m pytest -n 5 --dist worksteal \
		-m "$(PLAIN)" \
		tests/gateway tests/platforms/local tests/e2e $(ARGS)

crash: setup ## every kill point, one by one; takes long
	@$(BIN)/python -m pytest -m crash $(ARGS)

chaos: setup ## 200 random schedules of faults on a cluster; RUNS=20 of them, ARGS="-k [7]" one
	@HERMES_CHAOS_RUNS=$(or $(RUNS),200) $(BIN)/python -m pytest -n 2 -m cluster tests/cluster/test_chaos.py $(ARGS)

months: setup ## 400 turns of one chat, on each platform, in three windows, with two context engines
	@$(BIN)/python -m pytest -m months $(ARGS)

protocols: setup ## the end-to-end tests, sampled kills and weeks included, over each of the three protocols, on asyncio's loop
	@failed=; for protocol in chat_completions responses anthropic; do \
		HERMES_EVENT_LOOP=asyncio $(BIN)/python -m pytest -n 3 --dist worksteal --protocol $$protocol \
			-m "$(PLAIN)" tests/e2e tests/crash \
			tests/agent/model/test_provider_errors.py tests/agent/images/test_refusals.py $(ARGS) || failed="$$failed $$protocol"; \
	done; test -z "$$failed" || { echo "failed over:$$failed" >&2; exit 1; }

fuzz: setup ## far more random cases for the tests of what must always hold, and whole tables of faults; takes long
	@$(BIN)/python -m pytest -q -n 2 --timeout 0 --hypothesis-profile fuzz -m fuzz $(ARGS)

check: setup ## formatting, lint, layers, types, unit files, documentation
	@$(BIN)/ruff format --check $(CODE)
	@$(MAKE) --no-print-directory lint type unit

fmt: setup ## format the code
	@$(BIN)/ruff check --select I --fix --quiet $(CODE)
	@$(BIN)/ruff format $(CODE)

lint: setup ## ruff and the import layers
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/lint-imports

type: setup ## mypy, strict
	@$(BIN)/python -m mypy

unit: setup ## the systemd units and the documentation against the code
	@$(BIN)/python -m pytest -q -rs tests/gateway/test_unit.py tests/gateway/test_docs.py

bench: setup ## speed and memory, beside the floor in the same run; ARGS="chats start" runs some groups
	@$(BIN)/python -m bench $(ARGS)

bench-cluster: setup ## PostgreSQL and several nodes, on a server of their own; ARGS="--quick nodes" runs a group, shorter
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "PostgreSQL is needed; on Debian: apt install postgresql" >&2; exit 1; }
	@$(BIN)/python -m bench.cluster_bench $(ARGS)

scale: setup ## messages a second that one, two and three nodes take, in ten minutes; ARGS=--quick takes one
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "PostgreSQL is needed; on Debian: apt install postgresql" >&2; exit 1; }
	@$(BIN)/python -m bench.scale $(ARGS)

quality: setup ## what compressions keep, beside other policies; ARGS="--windows 32 -- facts" runs some, ARGS=costs their costs
	@$(BIN)/python -m bench.quality $(ARGS)

figures: setup ## sizes, words and imports of the code, beside libraries'; ARGS="--show headlines" lists places
	@$(BIN)/python -m bench.figures $(ARGS)

texts: setup ## the sentences that users and operators can read, by place; ARGS=--faults lists those that break a rule
	@$(BIN)/python -m bench.texts $(ARGS)

walk: setup ## the modules that one Telegram message passes; ARGS="--all" with those that compress
	@$(BIN)/python -m bench.walk $(ARGS)

catalog: setup ## take the prices of models from genai-prices anew
	@$(BIN)/python -m bench.make_catalog

LOCK = UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile $(LOCK_OPTIONS)
lock: ## resolve every dependency and pin it with hashes in requirements/*.txt (needs uv)
	@command -v uv >/dev/null || { echo "uv is needed to resolve the requirements: pipx install uv" >&2; exit 1; }
	@$(LOCK) -o requirements/base.txt pyproject.toml requirements/build.in
	@for name in anthropic cluster mcp dev bench; do \
		$(LOCK) -o requirements/$$name.txt requirements/$$name.in || exit; done
LOCK_OPTIONS := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --strip-extras --no-annotate

clean: ## remove .venv and the caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
