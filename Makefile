# make demo    sees it work: real TCP hosts around an emulated satellite link
# make test    everything that continuous integration runs
# make bench   the figures that the README promises, measured on this machine

CARGO ?= cargo
BENTPIPE = $(CARGO) run --quiet --release --package bentpipe --

.PHONY: help setup build demo test format lint unit bench clean

help:
	@sed -n 's/^# //p' Makefile

# Installs what is missing, by apt; says nothing when nothing is.
setup:
	@sh scripts/setup.sh

build: setup
	$(CARGO) build --release --package bentpipe

demo: build
	$(BENTPIPE) demo

test: setup format lint unit

format:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

# Unit, property, simulation and end-to-end tests.
unit:
	$(CARGO) test --workspace --quiet

bench: build
	$(BENTPIPE) lab run --all

clean:
	$(CARGO) clean
