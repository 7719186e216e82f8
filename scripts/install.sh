#!/bin/sh
# scripts/install.sh bentpipe|bentpipe-lab
#
# Puts a built program, its manual pages and completions into place, and the unit that runs
# `bentpipe`: DESTDIR (empty: this system), PREFIX (/usr/local unless given).
set -eu
cd "$(dirname "$0")/.."

name=${1:?"which program? bentpipe or bentpipe-lab"}
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
program=${PROGRAM:-target/release/$name}
units=${UNITDIR:-/etc/systemd/system}

if [ ! -x "$program" ]; then
    echo "install: $program is missing: run \`make build\` (the laboratory: \`make lab\`) first" >&2
    exit 1
fi
manual=$(mktemp -d)
trap 'rm -rf "$manual"' EXIT
"$program" manual "$manual"

install -d "$root$prefix/bin" "$root$prefix/share/man/man1" \
    "$root$prefix/share/bash-completion/completions" \
    "$root$prefix/share/zsh/vendor-completions" \
    "$root$prefix/share/fish/vendor_completions.d"
# Symbols are for those who look for faults; the program runs without them.
install -s -m 755 "$program" "$root$prefix/bin/$name"
for page in "$manual"/man1/*; do
    install -m 644 "$page" "$root$prefix/share/man/man1/"
done
completions=$manual/completions
install -m 644 "$completions/$name.bash" \
    "$root$prefix/share/bash-completion/completions/$name"
install -m 644 "$completions/_$name" "$root$prefix/share/zsh/vendor-completions/_$name"
install -m 644 "$completions/$name.fish" \
    "$root$prefix/share/fish/vendor_completions.d/$name.fish"

[ "$name" = bentpipe ] || exit 0
# What gateways start; nobody calls it by name.
for service in bentpipe-web bentpipe-names bentpipe-ftp; do
    built=$(dirname "$program")/$service
    if [ ! -x "$built" ]; then
        echo "install: $built is missing: run \`make build\` first" >&2
        exit 1
    fi
    install -s -m 755 "$built" "$root$prefix/bin/$service"
done
# Keys lie here: nobody else's business.
install -d -m 700 "$root/etc/bentpipe"
install -d "$root$units"
sed "s|/usr/local/bin/bentpipe|$prefix/bin/bentpipe|" systemd/bentpipe@.service \
    >"$root$units/bentpipe@.service"
chmod 644 "$root$units/bentpipe@.service"
