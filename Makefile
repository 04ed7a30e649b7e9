# Two commands for everything: `make serve` and `make test`. Each sets up what it needs, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
STUBS  := client/treadle/v1

VERSION  = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE   := registry.example.com/treadle
VARIANT := cpu

.PHONY: serve test mesh check format protos stubs-fresh breaking dashboard-picture image version clean

serve: $(STAMP)  ## Serve the default model on 127.0.0.1:50051 until Ctrl-C; pass more flags as ARGS="--max-slots 8"
	@exec $(BIN)/python -m server $(ARGS)

test: check  ## Every check, then every test; pass pytest arguments as ARGS="-k scheduler"
	$(BIN)/python -m server --fetch-only
	$(BIN)/pytest $(ARGS)

mesh: $(STAMP)  ## The tests behind a real Envoy alone; MESH_STREAM_SECONDS=70 makes the long stream longer
	$(BIN)/pytest tests/mesh $(ARGS)

check: $(STAMP) stubs-fresh breaking  ## Format, lint, types, import contracts, proto lint, API compatibility
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

dashboard-picture: $(STAMP)  ## Draw docs/observability/dashboard.png from a real run; needs `prometheus` on the path
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/observability/render_dashboard.py $(ARGS)

breaking: $(STAMP)  ## Compare the API with that of the last release before this commit
	@release=$$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null) || \
	{ echo "breaking: there is no release (no tag v*) to compare the API with"; exit 0; }; \
	old=$$(mktemp -d) && git archive "$$release" protos | tar --extract --directory "$$old" && \
	echo "breaking: comparing the API with that of $$release" && \
	$(BIN)/buf breaking protos --against "$$old/protos"; status=$$?; rm -rf "$$old"; exit $$status

define generate
PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iprotos \
	--python_out=$(1) --mypy_out=$(1) --grpc_python_out=$(1) --mypy_grpc_out=$(1) protos/treadle/v1/*.proto
endef

# The tested versions are held by constraints.txt; pyproject.toml has the ranges that are meant to work.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Treadle needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[server,tracing,gateway,dev]'
	@touch $@

image:  ## Build the image: VARIANT=cpu or cuda, IMAGE=its name
	docker build --build-arg VARIANT=$(VARIANT) --build-arg VERSION=$(VERSION) \
		--build-arg REVISION=$$(git rev-parse HEAD) --tag $(IMAGE):$(VERSION)-$(VARIANT) .

version:  ## Say the version, which pyproject.toml has
	@echo $(VERSION)

clean:  ## Remove what the other targets made here; the model cache stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
