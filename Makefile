# Two commands for everything: `make serve` and `make test`. Each sets up what it needs, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
STUBS  := client/treadle/v1

.PHONY: serve test mesh check format protos stubs-fresh clean

serve: $(STAMP)  ## Serve the default model on 127.0.0.1:50051 until Ctrl-C; pass more flags as ARGS="--max-slots 8"
	@exec $(BIN)/python -m server $(ARGS)

test: check  ## Every check, then every test; pass pytest arguments as ARGS="-k scheduler"
	$(BIN)/python -m server --fetch-only
	$(BIN)/pytest $(ARGS)

mesh: $(STAMP)  ## The tests behind a real Envoy alone; MESH_STREAM_SECONDS=70 makes the long stream longer
	$(BIN)/pytest tests/mesh $(ARGS)

check: $(STAMP) stubs-fresh  ## Format, lint, types, import contracts, proto lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos

format: $(STAMP)  ## Rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/buf format --write protos

protos: $(STAMP)  ## Generate the client's stubs from protos/
	$(call generate,client)

stubs-fresh: $(STAMP)
	@fresh=$$(mktemp -d) && $(call generate,$$fresh) && \
	diff -r -x __init__.py -x __pycache__ $$fresh/treadle/v1 $(STUBS) && rm -r $$fresh || \
	{ echo "$(STUBS) is stale: run 'make protos' and commit the result" >&2; exit 1; }

define generate
PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iprotos \
	--python_out=$(1) --mypy_out=$(1) --grpc_python_out=$(1) --mypy_grpc_out=$(1) protos/treadle/v1/*.proto
endef

# The tested versions are held by constraints.txt; pyproject.toml has the ranges that are meant to work.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Treadle needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[server,dev]'
	@touch $@

clean:  ## Remove what the other targets made here; the model cache stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
