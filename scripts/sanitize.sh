#!/bin/sh
# scripts/sanitize.sh
#
# Runs the tests of `os`, the only crate with `unsafe`, under AddressSanitizer, which the stable
# toolchain has a runtime for (its flag is asked for as the compiler's own build does), and those of
# pure crates under Miri, where a nightly toolchain with Miri is installed. Crates that call C
# libraries (`link`, `squeeze` and all that stands on them) are none for Miri.
set -eu
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
# What ends with the process is no leak: helpers are children that the tests kill.
ASAN_OPTIONS=detect_leaks=0 RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address \
    cargo test --package os --target "$host" --target-dir target/asan "$@"

if cargo +nightly miri --version >/dev/null 2>&1; then
    cargo +nightly miri test --package units --package channel --target-dir target/miri
else
    echo "sanitize: Miri is not installed and was not run" \
        "(rustup toolchain install nightly --component miri)" >&2
fi
