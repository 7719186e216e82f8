#!/bin/sh
# scripts/install.sh
#
# Puts the built program, its unit, manual pages and completions into place:
# DESTDIR (empty: this system), PREFIX (/usr/local unless given).
set -eu
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
program=${PROGRAM:-target/release/bentpipe}
units=${UNITDIR:-/etc/systemd/system}

if [ ! -x "$program" ]; then
    echo "install: $program is missing: run \`make build\` first" >&2
    exit 1
fi
manual=$(mktemp -d)
trap 'rm -rf "$manual"' EXIT
"$program" manual "$manual"

install -d "$root$prefix/bin" "$root$units" "$root$prefix/share/man/man1" \
    "$root$prefix/share/bash-completion/completions" \
    "$root$prefix/share/zsh/vendor-completions" \
    "$root$prefix/share/fish/vendor_completions.d"
# Keys lie here: nobody else's business.
install -d -m 700 "$root/etc/bentpipe"
# Symbols are for those who look for faults; the program runs without them.
install -s -m 755 "$program" "$root$prefix/bin/bentpipe"
sed "s|/usr/local/bin/bentpipe|$prefix/bin/bentpipe|" systemd/bentpipe@.service \
    >"$root$units/bentpipe@.service"
chmod 644 "$root$units/bentpipe@.service"
for page in "$manual"/man1/*; do
    install -m 644 "$page" "$root$prefix/share/man/man1/"
done
completions=$manual/completions
install -m 644 "$completions/bentpipe.bash" \
    "$root$prefix/share/bash-completion/completions/bentpipe"
install -m 644 "$completions/_bentpipe" "$root$prefix/share/zsh/vendor-completions/_bentpipe"
install -m 644 "$completions/bentpipe.fish" \
    "$root$prefix/share/fish/vendor_completions.d/bentpipe.fish"
