# `make demo` and `make test` do everything on a fresh machine: they need Python 3.11, make and a package registry.
PYTHON ?= $(shell command -v python3.11 || echo python3)
BIN := .venv/bin
READY := .venv/.ready
# make demo SCALE=tiny: four languages, a minute, no result worth reading. CATALOGUES: another list of packages.
# make demo GOAL=bel: one language as the goal, in a folder of its own.
SCALE ?= full
ifeq ($(SCALE),tiny)
DEMO := tiny
CORPUS := data/catalogues-tiny --languages aze,bel,tur,rus --untranslated tur
else
DEMO := demo
CORPUS := data/catalogues-untranslated --untranslated tur,por
endif
RUNS := runs/demo$(if $(filter tiny,$(SCALE)),-tiny)$(if $(GOAL),-$(GOAL))
# make nightly: all parts in turn, each at most two hours on two cores.
PART ?= results site faults launchers extras install newest

.PHONY: demo test test-fast nightly check docs proofs constraints wheel release-check bench clean

demo: $(READY)  ## set up, then: a corpus with broken parts, four mixtures side by side, scores, a report
	$(BIN)/python experiments/demo/corpus.py $(CORPUS) $(if $(CATALOGUES),--list $(CATALOGUES))
	$(BIN)/multidds experiment experiments/demo/$(DEMO).toml --folder $(RUNS) $(if $(GOAL),--set 'mixture.priority={"$(GOAL)-eng"=1.0}')
	@echo "Translate a line of your own, from any of the languages in the table:"
	@echo "    echo 'Parolayı değiştir' | $(BIN)/multidds translate $(RUNS)/untranslated/learned/seed-1 --from tur"
	$(BIN)/multidds report $(RUNS) -o $(RUNS)/report

test: $(READY)  ## set up, then run all tests but those of `make nightly`
	$(BIN)/pytest -n auto --dist loadfile --durations 20

test-fast: $(READY)  ## the tests that take no more than a few seconds each
	$(BIN)/pytest -n auto --dist loadfile -m "not slow and not nightly"

check: $(READY)  ## formatting, lint and types; any finding is an error
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY)  ## guides and API reference, searchable, as HTML in build/docs; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "Open build/docs/index.html"

nightly: $(addprefix nightly-,$(PART))  ## what takes long, or checks results; make nightly PART=faults: one part

nightly-%: $(READY)
	$(BIN)/pytest -n auto --dist loadfile --durations 10 -m "nightly(part='$*')"

proofs:  ## print which test proves which claim of the docs
	@$(PYTHON) tests/support/proofs.py

constraints:  ## constraints.txt anew: its pins, and the newest versions of everything else that go with them
	rm -rf build/newest && mkdir -p build
	sed '/^# The rest/q' constraints.txt > build/pins.txt
	$(PYTHON) -m venv build/newest
	build/newest/bin/pip install --quiet -c build/pins.txt -e '.[dev]'
	build/newest/bin/pip freeze --exclude-editable | grep -vE '^(torch|sentencepiece)==' > build/rest.txt
	cat build/pins.txt build/rest.txt > constraints.txt

wheel: $(READY)  ## build a wheel; run an example in an environment with torch and numpy alone
	rm -rf dist build/bare
	$(BIN)/python -m build --wheel
	$(PYTHON) -m venv build/bare
	build/bare/bin/pip install --quiet -c constraints.txt dist/*.whl
	cd build && bare/bin/python -c "import multidds; [getattr(multidds, name) for name in multidds.__all__]"
	cd build && bare/bin/python ../examples/plain_loop.py

release-check: wheel  ## as wheel, and the source distribution, and what a registry says of their metadata
	$(BIN)/python -m build --sdist
	$(BIN)/python -m twine check --strict dist/*

bench: $(READY)  ## a short form of the two main benchmarks: compare their ratios, not times
	$(BIN)/python benchmarks/train_speed/train_speed.py --batches 8 --rounds 1 --only trainer
	$(BIN)/python benchmarks/train_speed/train_speed.py --batches 8 --rounds 1 --only "" --threads 2
	$(BIN)/python benchmarks/balancing_cost.py --short

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)
