# make demo    sees it work: real TCP hosts around an emulated satellite link
# make test    everything that continuous integration runs
# make bench   the figures that the README promises, measured on this machine
# make install   the program, its unit, manual and completions (PREFIX, DESTDIR)
# make install-lab   the same of the laboratory: emulator, experiments, bench, simulator
# make deb     a Debian package of the same, in target/debian
# make test-long, seeds, grid   the longest tests; simulator seeds; its table of throughputs
# make hashes   writes down what the first seeds come to, after a change of what packets hold

CARGO ?= cargo
LAB = target/release/bentpipe-lab
SERVICES = --package bentpipe-web --package bentpipe-names --package bentpipe-ftp
# All of the same choice, so that nothing is built twice.
BUILT = --package bentpipe $(SERVICES) --package bentpipe-lab

.PHONY: help setup build lab install install-lab deb demo test test-long format lint unit seeds
.PHONY: package grid hashes bench clean

help:
	@sed -n 's/^# make/make/p' Makefile

# Installs what is missing, by apt; says nothing when nothing is.
setup:
	@sh scripts/setup.sh

build:
	@sh scripts/setup.sh build
	$(CARGO) build --release --package bentpipe $(SERVICES)

# The gateway and the laboratory, which runs it.
lab: setup
	$(CARGO) build --release $(BUILT)

# Of what `make build` and `make lab` made, so that root need not build.
install:
	@sh scripts/install.sh bentpipe

install-lab:
	@sh scripts/install.sh bentpipe-lab

deb: build
	@sh scripts/deb.sh

demo: lab
	$(LAB) demo

# The tests' build serves the seeds and the package too: the rooms that the simulator runs are
# optimised in it, and a release build would take minutes more. make test-long has both of that.
test: setup format lint unit
	@$(call seeds,target/debug/bentpipe-lab)
	@PROGRAM=target/debug/bentpipe sh scripts/test-deb.sh

format:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

# Unit, property and end-to-end tests. Those that need root run a few at once, for they mostly wait,
# or alone where they assert a speed (os::netns::root); none is skipped here.
unexport BENTPIPE_SKIP_ROOT_TESTS
unit:
	$(CARGO) test --workspace --quiet

# The end-to-end tests that take minutes (among them a reader that stops for 60 s and 10,000
# connections closed early), how exact the emulator is, for which nothing else may run, what each
# frame of a hostile peer costs, what it takes in hours, every place of three faults in a tunnel's
# life, the public tests of HTTP caches, and the sanitizers.
test-long: lab seeds package
	@sh scripts/setup.sh long
	$(CARGO) test --workspace --test e2e -- --ignored --nocapture
	$(CARGO) test --release $(BUILT) --test lab -- --ignored --nocapture --test-threads 1
	$(CARGO) test --release $(BUILT) --test costs -- --ignored --nocapture
	$(CARGO) test --release --package link --lib -- explored --ignored --nocapture
	$(CARGO) test --release --package link --package relay --lib -- for_hours --ignored --nocapture
	PROGRAMS=target/release bash scripts/http-cache-tests.sh
	PROGRAMS=target/release HUB=off bash scripts/http-cache-tests.sh
	@sh scripts/sanitize.sh

# The simulator's seeds; a failure prints the command that repeats it. The first have the committed
# hashes, in a release build and in the tests' own.
SEEDS ?= 1000
hashes = { $(1) sim --seeds 6 --hash && $(1) sim --star 8 --seeds 2 --hash && \
	$(1) sim --mesh 4 --hash && $(1) sim --row 3 --hash; }
define seeds
$(call hashes,$(1)) > target/hashes.txt; \
diff crates/sim/hashes.txt target/hashes.txt || { echo \
"seeds mean other runs than before: if they should, make hashes writes them down"; exit 1; }; \
$(1) sim --seeds $(SEEDS) && $(1) sim --calls --seeds $(SEEDS)
endef
seeds: lab
	@$(call seeds,$(LAB))

# Rewrites the committed hashes of seeds.
hashes: lab
	$(call hashes,$(LAB)) > crates/sim/hashes.new
	mv crates/sim/hashes.new crates/sim/hashes.txt

# The Debian package, installed, upgraded and purged in a copy of this system.
package: build
	@sh scripts/test-deb.sh

# Rewrites the committed grid of throughputs; its test says if one became worse.
grid: lab
	$(LAB) sim --grid > crates/sim/grid.new
	mv crates/sim/grid.new crates/sim/grid.txt

# The row "quic" has hosts of its own.
bench: lab
	$(CARGO) build --release --manifest-path lab/quic/Cargo.toml --target-dir target/quic
	BENTPIPE_QUIC_HOST=$(CURDIR)/target/quic/release/quic-host $(LAB) bench

clean:
	$(CARGO) clean
