#!/bin/sh
# scripts/fuzz.sh TARGET [RUNS [libFuzzer's options]]
#
# Runs a fuzz target (see fuzz/fuzz_targets) with
# libFuzzer, on the stable compiler: its coverage pass is asked for by hand, and only for
# our own crates, so that the libraries under them run at full speed. What is found goes
# into fuzz/found/TARGET, inputs that crash into fuzz/found. An input that holds more memory or
# takes more processor time than its target's bound (fuzz/fuzz_targets) counts as a crash.
set -eu

# As the compiler's wrapper: add coverage where it is wanted.
case "${1:-}" in
*rustc)
    rustc=$1
    shift
    case " $* " in
    *" --crate-name "link" "* | *" --crate-name "relay" "* | *" --crate-name "units" "* | \
        *" --crate-name "squeeze" "* | *" --crate-name "bentpipe" "* | *" --crate-name "config" "* | \
        *" --crate-name "service" "* | *" --crate-name "names" "* | *" --crate-name "ftp" "* | \
        *" --crate-name "bentpipe_web" "* | *" --crate-name "control" "* | \
        *" fuzz_targets/"*)
        exec "$rustc" "$@" -Cpasses=sancov-module \
            -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
            -Cllvm-args=-sanitizer-coverage-pc-table
        ;;
    esac
    exec "$rustc" "$@"
    ;;
esac

target=${1:?"which target? one of: $(ls "$(dirname "$0")/../fuzz/fuzz_targets")"}
runs=${2:-10000000}
shift $(($# < 2 ? $# : 2))
wrapper=$(cd "$(dirname "$0")" && pwd)/fuzz.sh
cd "$(dirname "$0")/../fuzz"
host=$(rustc -vV | sed -n 's/^host: //p')
# The target is named so that build scripts and macros go without. Without LTO loops become
# vectors before coverage is added to them, which makes arithmetic on symbols ten times faster.
# Without LTO nothing is inlined from one unit of a crate into another, so each is one unit (a third
# faster).
RUSTC_WRAPPER=$wrapper RUSTFLAGS="--cfg fuzzing" \
    CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 \
    cargo build --quiet --release --target "$host" --bin "$target"
mkdir -p "found/$target"
# The first directory takes what is new; the others are only read.
exec "${CARGO_TARGET_DIR:-target}/$host/release/$target" -runs="$runs" -entropic=0 \
    -timeout=20 -artifact_prefix="found/$target-" "$@" "found/$target" "corpus/$target"
