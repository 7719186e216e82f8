#!/bin/sh
# scripts/deb.sh [VERSION]
#
# Makes target/debian/bentpipe_VERSION_ARCH.deb of the built program, and beside it its
# symbols (bentpipe_VERSION_ARCH.debug, for `gdb -s`). VERSION is that of Cargo.toml with the
# last commit's time and name, so that each is newer than the one before, unless given: then
# packages of other versions stay beside it. OUT is another directory.
set -eu
cd "$(dirname "$0")/.."

version=${1:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)$(
    git log -1 --format=+git%ct.%h 2>/dev/null || true
)}
arch=$(dpkg --print-architecture)
program=${PROGRAM:-target/release/bentpipe}
out=${OUT:-target/debian}
name=bentpipe_${version}_$arch
mkdir -p "$out"
# The README's line installs the only one that lies there.
[ $# -gt 0 ] || rm -f "$out"/bentpipe_*_"$arch".deb "$out"/bentpipe_*_"$arch".debug
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

DESTDIR=$root PREFIX=/usr UNITDIR=/lib/systemd/system PROGRAM=$program sh scripts/install.sh bentpipe
objcopy --only-keep-debug "$program" "$out/$name.debug"
gzip -9 -n "$root"/usr/share/man/man1/*
doc=$root/usr/share/doc/bentpipe
install -d "$doc" "$root/usr/share/bentpipe" "$root/DEBIAN"
install -m 644 README.md docs/*.md docs/*.svg "$doc/"
install -m 644 CHANGELOG.md "$doc/changelog"
gzip -9 -n "$doc/changelog"
{
    echo "Licence: MIT OR Apache-2.0, as you prefer."
    echo
    cat LICENSE-MIT
} >"$doc/copyright"

# The C library of the machine that builds is the least that is needed.
libc=$(dpkg-query --show --showformat '${Version}' libc6 | sed 's/-.*//')
size=$(du -k -s --exclude=DEBIAN "$root" | cut -f 1)
cat >"$root/DEBIAN/control" <<CONTROL
Package: bentpipe
Version: $version
Architecture: $arch
Maintainer: the bentpipe authors <bentpipe@localhost>
Installed-Size: $size
Depends: libc6 (>= $libc), libgcc-s1, nftables, iproute2
Recommends: ca-certificates
Section: net
Priority: optional
Description: satellite TCP/IP accelerator
 One program at both ends of a satellite link makes ordinary TCP/IP run over it at
 the link's own limit: connections are split at the gateways and carried in an
 encrypted protocol made for the link. Start with \`bentpipe keygen\`.
CONTROL
for script in postinst prerm postrm; do
    install -m 755 "scripts/debian/$script" "$root/DEBIAN/$script"
done
dpkg-deb --build --root-owner-group -Zxz "$root" "$out/$name.deb" >/dev/null
echo "$out/$name.deb"
