#!/bin/sh
# Runs a test program for `cargo test`, tells all that it says but the names of tests that passed,
# and adds their times to the file TEST_TIMES. "slowest" instead prints the twenty slowest of it.
#
# The stable harness tells times only to those that it takes for the compiler's own builders.
set -eu

if [ "$1" = slowest ]; then
    echo "The twenty slowest tests:"
    sort -rn "$TEST_TIMES" | head -20
    exit 0
fi

case $1 in
*/deps/*) ;;
*) exec "$@" ;; # an example of a page, which has no harness
esac

name=$(basename "$1")
status=$(mktemp)
trap 'rm -f "$status"' EXIT
{
    RUSTC_BOOTSTRAP=1 "$@" -Z unstable-options --report-time || echo $? >"$status"
} | awk -v times="$TEST_TIMES" -v program="${name%-*}" '
    /^test .* \.\.\. ok <[0-9.]+s>$/ {
        time = $NF
        gsub(/[<s>]/, "", time)
        printf "%9.3f s  %s %s\n", time, program, $2 >> times
        next
    }
    { print; fflush() }'
[ ! -s "$status" ] || exit "$(cat "$status")"
