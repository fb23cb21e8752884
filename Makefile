# Every target installs what it needs into .venv first; see tools/bootstrap.py.
# Hand arguments on with ARGS, as in: make up ARGS="--port 9000"

PYTHON ?= python3
BOOTSTRAP := $(PYTHON) tools/bootstrap.py
MAKEFLAGS += --no-print-directory
# Without byte code, every process of the tests compiles what it imports, pytest included.
unexport PYTHONDONTWRITEBYTECODE
TESTS_OF_ROOM = $(or $(shell find tests -type d -name '$(ROOM)' -prune),$(error there is no directory '$(ROOM)' under tests))

.DEFAULT_GOAL := help
.PHONY: help setup up test test-clients check check-types check-code check-generated bench bench-check chaos docs ui ui-dev screenshots proto lock clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

setup: ## install Corral and the developers' tools into .venv
	@$(BOOTSTRAP) setup --dev

# The recipes below become their command (exec), so that Ctrl-C and SIGTERM reach it directly.
up: ## run Corral on this machine
	@exec $(BOOTSTRAP) run corral up $(ARGS)

# File by file, in as many processes and in the order that tests/conftest.py says. ARGS="-n 0 tests/gateway" runs some of them in one;
# ROOM is a directory anywhere under tests.
test: ## run the tests; with ROOM=gateway only those of one room
	@exec $(BOOTSTRAP) run --dev pytest -n auto --dist loadfile --no-loadscope-reorder $(if $(ROOM),$(TESTS_OF_ROOM)) $(ARGS)

test-clients: ## run the tests with the client packages people have: openai, anthropic, litellm, …
	@exec $(BOOTSTRAP) run --dev pytest -v tests/e2e/test_client_packages.py $(ARGS)

check: ## run the linters, the type checker and our own checks
	@$(BOOTSTRAP) run --dev ruff check
	@$(MAKE) --jobs=3 check-types check-code check-generated

# One after the other, as they share a cache.
check-types:
	@.venv/bin/mypy
	@.venv/bin/mypy tools
	@MYPYPATH=backends/sdk .venv/bin/mypy -p corral_backend_sdk
	@MYPYPATH=backends/sdk .venv/bin/mypy backends/echo/backend.py
	@MYPYPATH=backends/sdk:backends/llama_cpp .venv/bin/mypy backends/llama_cpp/backend.py backends/llama_cpp/engine.py
	@MYPYPATH=backends/sdk:backends/espeak_tts .venv/bin/mypy backends/espeak_tts/backend.py
	@MYPYPATH=backends/sdk:backends/silero_vad .venv/bin/mypy backends/silero_vad/backend.py
	@MYPYPATH=backends/sdk:backends/pocketsphinx_stt .venv/bin/mypy backends/pocketsphinx_stt/*.py
	@MYPYPATH=backends/sdk:backends/minilm_embeddings .venv/bin/mypy backends/minilm_embeddings/backend.py

check-code:
	@.venv/bin/ruff format --check
	@.venv/bin/lint-imports --no-logo
	@.venv/bin/python tools/check_code.py

check-generated:
	@.venv/bin/python tools/make_docs.py --check
	@.venv/bin/python tools/make_stubs.py --check
	@.venv/bin/python tools/make_ui.py --check
	@.venv/bin/python tools/make_ui_words.py --check

# Without names, every bench first shows in its smallest form that it still works.
bench: $(if $(ARGS),,bench-check) ## measure, and print a table
	@exec $(BOOTSTRAP) run --dev python -m bench $(ARGS)

bench-check: ## run every bench in its smallest form, without judging figures
	@$(BOOTSTRAP) run --dev pytest -n 0 $(shell find tests -name benches.py) $(ARGS)

chaos: ## break things on purpose, and print a table
	@exec $(BOOTSTRAP) run --dev python -m chaos $(ARGS)

docs: ## generate the reference pages, and the words of the web page
	@$(BOOTSTRAP) run --dev python tools/make_docs.py $(ARGS)
	@.venv/bin/python tools/make_ui_words.py $(ARGS)

ui: ## build the page from ui/, and the types of the API that it uses
	@exec $(BOOTSTRAP) run --dev --ui python tools/make_ui.py $(ARGS)

ui-dev: ## serve the page with hot reload, in front of a running fleet (CORRAL_URL, or that of make up)
	@exec $(BOOTSTRAP) run --dev --ui python tools/make_ui.py --dev

screenshots: ## take pictures of all pages into docs/images; ARGS="fleet chat" for some
	@exec $(BOOTSTRAP) run --dev python tools/make_screenshots.py $(ARGS)

proto: ## generate the Python stubs of proto/backend.proto
	@exec $(BOOTSTRAP) run --dev python tools/make_stubs.py $(ARGS)

lock: ## resolve pyproject.toml into requirements/*.txt (ARGS=--upgrade for newest versions)
	@$(BOOTSTRAP) lock $(ARGS)

clean: ## remove .venv, .build and caches; never what Corral stored
	@rm -rf .venv .build backends/*/venv .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests tools bench chaos backends -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	@echo "What else may go: $${UV_CACHE_DIR:-$${XDG_CACHE_HOME:-~/.cache}/uv} holds downloads that other projects may share,"
	@echo "and ~/.local/share/corral (or your --data) what Corral stored: keys, the database, models and backends."
