# All commands for people, hooks and CI. `make run` and `make test` need only git, make and Python 3.11 or newer. Everything
# else is installed into .venv from requirements files with hashes.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$name; break; }; done)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CODE := gateway platforms agent hermes_state release tests bench examples
ARGS ?=
# Optional packages that were installed once are kept up to date.
EXTRAS = $(wildcard $(VENV)/.installed-anthropic $(VENV)/.installed-cluster $(VENV)/.installed-documents $(VENV)/.installed-mcp)

.PHONY: help install setup run anthropic cluster documents mcp test test-browser test-proxies test-cluster test-cluster-all check fmt lint type unit bench bench-cluster soak scale quality figures texts walk screenshots catalog crash chaos months protocols fuzz upgrade-test dist test-dist lock clean

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

$(VENV)/.installed-documents: $(VENV)/.installed requirements/documents.txt
	@echo "installing the PDF reader"
	@$(PIP_INSTALL) --require-hashes -r requirements/documents.txt
	@touch $@

$(VENV)/.installed-mcp: $(VENV)/.installed requirements/mcp.txt
	@echo "installing the MCP SDK"
	@$(PIP_INSTALL) --require-hashes -r requirements/mcp.txt
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements/dev.txt
	@echo "installing what development needs"
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

install: $(VENV)/.installed $(EXTRAS) ## create .venv with everything that a server needs
	@$(BIN)/python -m compileall -q $(filter-out release tests bench examples,$(CODE))

setup: $(VENV)/.installed-dev ## create .venv with everything for development

anthropic: $(VENV)/.installed-anthropic ## install the SDK for `model.protocol: anthropic`

cluster: $(VENV)/.installed-cluster ## install the drivers for `store.url: postgresql://…` and `attachments.url: s3://…`

documents: $(VENV)/.installed-documents ## install the reader for PDF files that people send

mcp: $(VENV)/.installed-mcp ## install the SDK for `mcp.servers`

run: $(VENV)/.installed $(EXTRAS) ## start the gateway; ARGS="--help" shows its options
	@exec $(BIN)/hermes-gateway run $(ARGS)

# Always write bytecode, because test workers and the next run read it.
test test-browser test-cluster test-cluster-all crash chaos months protocols fuzz: export PYTHONDONTWRITEBYTECODE :=

# Tests that also run on PostgreSQL: the store's tests, except those of SQLite's files, and the end-to-end tests over one
# protocol. `make test-cluster-all` adds the other protocols and the rest of the gateway's tests.
STORE_ON_POSTGRES := tests/hermes_state --ignore=tests/hermes_state/engines \
	--ignore=tests/hermes_state/search/test_index.py \
	--ignore=tests/hermes_state/admin/test_repair.py --ignore=tests/hermes_state/admin/test_overview.py \
	--ignore=tests/hermes_state/admin/test_copy.py
GATEWAY_ON_POSTGRES := tests/gateway/turns/test_lanes.py tests/gateway/turns/test_statements.py \
	tests/gateway/operator/test_spending.py tests/e2e

PLAIN := not browser and not cluster and not crash and not mcp and not months and not proxies

# Five workers even on two processors, because tests spend half of their time waiting.
test: setup ## run every test that needs no browser; ARGS="-k name" selects some
	@echo "This run leaves out browser tests (make test-browser), proxy programs (make test-proxies) and PostgreSQL"
	@echo "(make test-cluster). It runs samples of the kill points (make crash), long conversations (make months), model"
	@echo "protocols (make protocols), and random cases and fault tables (make fuzz)."
	@$(BIN)/python -m pytest -n 5 --dist worksteal -m "$(PLAIN)" $(ARGS)

# One of these tests also needs PostgreSQL and runs with `make test-cluster` too. Each target skips it if the other program is
# not installed.
test-browser: setup ## test the web chat in a headless Chromium
	@command -v chromedriver >/dev/null || { echo "chromedriver is needed; on Debian: apt install chromium chromium-driver" >&2; exit 1; }
	@$(BIN)/python -m pytest -m browser $(ARGS)

test-proxies: setup ## test the web chat behind nginx and Caddy, and every service through tinyproxy and microsocks
	@for name in nginx caddy openssl tinyproxy microsocks; do PATH=$$PATH:/usr/sbin command -v $$name >/dev/null || \
		{ echo "$$name is needed; on Debian: apt install nginx caddy openssl tinyproxy microsocks" >&2; exit 1; }; done
	@PATH=$$PATH:/usr/sbin $(BIN)/python -m pytest -m proxies tests/e2e/test_proxies.py tests/e2e/test_proxy_programs.py $(ARGS)

test-cluster: setup ## run every test that needs PostgreSQL, on a server that it starts
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "PostgreSQL is needed; on Debian: apt install postgresql" >&2; exit 1; }
	@$(BIN)/python -m pytest -n 3 --dist worksteal -m cluster $(ARGS)
	@HERMES_TEST_ENGINE=postgres $(BIN)/python -m pytest -n 5 --dist worksteal \
		-m "$(PLAIN)" \
		--protocol chat_completions $(STORE_ON_POSTGRES) $(GATEWAY_ON_POSTGRES) $(ARGS)

test-cluster-all: setup ## run all gateway and end-to-end tests on PostgreSQL; takes ten minutes
	@HERMES_TEST_ENGINE=postgres $(BIN)/python -m pytest -n 5 --dist worksteal \
		-m "$(PLAIN)" \
		tests/gateway tests/platforms/local tests/e2e $(ARGS)

MCP_SERVERS := @modelcontextprotocol/server-everything @modelcontextprotocol/server-filesystem \
	@modelcontextprotocol/server-memory
build/mcp/.made:
	@command -v npm >/dev/null || { echo "npm is needed; on Debian: apt install npm" >&2; exit 1; }
	@$(PYTHON) -m venv build/mcp/venv && build/mcp/venv/bin/pip install -q mcp-server-time mcp-server-git mcp-server-fetch
	@$(PYTHON) -m venv build/mcp/old && build/mcp/old/bin/pip install -q mcp-server-sqlite 'mcp<2'
	@npm install --silent --no-audit --no-fund --prefix build/mcp $(MCP_SERVERS)
	@touch $@

test-mcp: setup build/mcp/.made ## test MCP servers from PyPI and npm, which it installs
	@$(BIN)/python -m pytest -m mcp tests/agent/tools/test_real_mcp_servers.py $(ARGS)

test-image: ## build as the Dockerfile does, boot it with systemd and check the service; needs root
	@for name in mmdebstrap systemd-nspawn; do command -v $$name >/dev/null || \
		{ echo "$$name is needed; on Debian: apt install mmdebstrap systemd-container" >&2; exit 1; }; done
	@sh docker/test.sh

crash: setup ## kill the gateway at every kill point in turn; takes hours
	@$(BIN)/python -m pytest -m crash $(ARGS)

chaos: setup ## run 200 random fault schedules on a cluster; RUNS=20 runs fewer, ARGS="-k [7]" one
	@HERMES_CHAOS_RUNS=$(or $(RUNS),200) $(BIN)/python -m pytest -n 2 -m cluster tests/cluster/test_chaos.py $(ARGS)

months: setup ## run 400 turns of a chat on each platform, with three window sizes and two context engines
	@$(BIN)/python -m pytest -m months $(ARGS)

protocols: setup ## run the end-to-end tests over each model protocol, on asyncio's event loop
	@failed=; for protocol in chat_completions responses anthropic; do \
		HERMES_EVENT_LOOP=asyncio $(BIN)/python -m pytest -n 3 --dist worksteal --protocol $$protocol \
			-m "$(PLAIN)" tests/e2e tests/crash \
			tests/agent/model/test_provider_errors.py tests/agent/images/test_refusals.py $(ARGS) || failed="$$failed $$protocol"; \
	done; test -z "$$failed" || { echo "failed over:$$failed" >&2; exit 1; }

fuzz: setup ## run the property tests with far more random cases, and whole tables of faults; takes hours
	@$(BIN)/python -m pytest -q -n 2 --timeout 0 --hypothesis-profile fuzz -m fuzz $(ARGS)

upgrade-test: setup ## upgrade a database of every earlier version, kill migrations, and return to an earlier gateway
	@$(BIN)/python -m pytest -n 2 --hypothesis-profile fuzz tests/hermes_state/engines/test_shipped.py \
		tests/e2e/test_versions.py tests/e2e/test_upgrade.py $(ARGS)

dist: setup ## build a wheel and an sdist in dist/ that can be installed next to hermes-agent
	@rm -rf build/stage dist && mkdir -p build dist
	@$(BIN)/python release/stage.py build/stage
	@cd build/stage && PYTHONDONTWRITEBYTECODE=1 ../../$(BIN)/python -c "import setuptools.build_meta as build; \
		print(*(make('../../dist') for make in (build.build_sdist, build.build_wheel)), sep='\n')" \
		> ../build.log 2>&1 || { cat ../build.log >&2; exit 1; }
	@ls -l dist

test-dist: dist ## install the wheel and hermes-agent into one environment, and run both; downloads from PyPI
	@$(BIN)/python -m pytest tests/installed.py $(ARGS)

check: setup ## check formatting, lint, layers, types, unit files and documentation
	@$(BIN)/ruff format --check $(CODE)
	@$(MAKE) --no-print-directory lint type unit

fmt: setup ## format the code
	@$(BIN)/ruff check --select I --fix --quiet $(CODE)
	@$(BIN)/ruff format $(CODE)

lint: setup ## run ruff and check the import layers
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/lint-imports

type: setup ## run mypy in strict mode
	@$(BIN)/python -m mypy

unit: setup ## compare the systemd units and the documentation with the code
	@$(BIN)/python -m pytest -q -rs tests/gateway/test_unit.py tests/gateway/test_docs.py

bench: setup ## measure speed and memory, compared with a minimal bot in the same run; ARGS="chats start" selects groups
	@$(BIN)/python -m bench $(ARGS)

bench-cluster: setup ## measure PostgreSQL and several nodes, on a server that it starts; ARGS="--quick nodes" shortens one group
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "PostgreSQL is needed; on Debian: apt install postgresql" >&2; exit 1; }
	@$(BIN)/python -m bench.cluster_bench $(ARGS)

soak: setup ## run 200 chats for two hours with tools, compressions and restarts; ARGS="--minutes 3" is shorter
	@$(BIN)/python -m bench.soak $(ARGS)

scale: setup ## measure messages per second with one, two and three nodes in ten minutes; ARGS=--quick takes one minute
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "PostgreSQL is needed; on Debian: apt install postgresql" >&2; exit 1; }
	@$(BIN)/python -m bench.scale $(ARGS)

quality: setup ## measure what compressions keep, compared with other policies; ARGS="--windows 32 -- facts" selects a part, ARGS=costs shows costs
	@$(BIN)/python -m bench.quality $(ARGS)

figures: setup ## print sizes, words and imports of the code, compared with libraries; ARGS="--show headlines" lists places
	@$(BIN)/python -m bench.figures $(ARGS)

texts: setup ## list the sentences that users and operators can read; ARGS=--faults lists those that break a rule
	@$(BIN)/python -m bench.texts $(ARGS)

walk: setup ## list the modules that a Telegram message passes through; ARGS="--all" includes compression
	@$(BIN)/python -m bench.walk $(ARGS)

screenshots: setup ## record the pictures of the README from the real page; ARGS="--to FOLDER" writes them elsewhere
	@command -v chromedriver >/dev/null || { echo "chromedriver is needed; on Debian: apt install chromium chromium-driver" >&2; exit 1; }
	@$(BIN)/python -m bench.screenshots $(ARGS)

catalog: setup ## update the model prices from genai-prices
	@$(BIN)/python -m bench.make_catalog

LOCK = UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile $(LOCK_OPTIONS)
lock: ## resolve all dependencies and pin them with hashes in requirements/*.txt (needs uv)
	@command -v uv >/dev/null || { echo "uv is needed to resolve the requirements: pipx install uv" >&2; exit 1; }
	@$(LOCK) -o requirements/base.txt pyproject.toml requirements/build.in
	@for name in anthropic cluster documents mcp dev bench; do \
		$(LOCK) -o requirements/$$name.txt requirements/$$name.in || exit; done
LOCK_OPTIONS := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --strip-extras --no-annotate

clean: ## remove .venv and the caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
