#!/bin/sh
# scripts/test-deb.sh
#
# Installs, upgrades, removes and purges the package in a copy of this system that
# vanishes afterwards (an overlay in a mount namespace), and looks at what is there.
# PROGRAM is another build of bentpipe than the released one; only that one must be small.
set -eu
cd "$(dirname "$0")/.."

if [ "${1:-}" != inside ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "the package's test needs root, to install" >&2
        test -n "${BENTPIPE_SKIP_ROOT_TESTS:-}" && echo "SKIPPED" >&2
        exit
    fi
    # Not beside the package that `make deb` makes: users install what lies there.
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
    first=$(OUT=$out sh scripts/deb.sh 0.0.1)
    second=$(OUT=$out sh scripts/deb.sh 0.0.2)
    for debug in "$out"/*.debug; do
        readelf -S "$debug" 2>/dev/null | grep -q '\.debug_info' || {
            echo "the package: no symbols beside it: $debug" >&2
            exit 1
        }
    done
    unshare --mount --net sh scripts/test-deb.sh inside "$first" "$second"
    exit
fi

first=$2 second=$3
base=$(mktemp -d)
mount -t tmpfs tmpfs "$base"
mkdir "$base/upper" "$base/work" "$base/system"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$base/system"
trap 'umount -l "$base/system" "$base"; rmdir "$base"' EXIT
system=$base/system
cp "$first" "$second" "$system/tmp/"
first=/tmp/$(basename "$first") second=/tmp/$(basename "$second")
mount -t proc proc "$system/proc"

inside() { chroot "$system" sh -euc "export PATH=/usr/sbin:/usr/bin:/sbin:/bin; $1"; }
check() { # what, command
    inside "$2" || {
        echo "the package: $1: \`$2\` fails" >&2
        exit 1
    }
}
listing() { find "$system/usr" "$system/lib/systemd" "$system/etc" "$system/var/lib/bentpipe" \
    -xdev \( -path '*/var/lib/dpkg*' -o -path '*/man/*index*' \) -prune -o -print 2>/dev/null | sort; }

inside 'dpkg --purge bentpipe 2>/dev/null || true; rm -rf /etc/bentpipe /var/lib/bentpipe'
listing >"$base/before"
inside "dpkg -i $first >/dev/null"
check "it runs" 'bentpipe --version >/dev/null'
for service in bentpipe-web bentpipe-names bentpipe-ftp; do
    check "the service is there and can run" \
        "test -x /usr/bin/$service && ! ldd /usr/bin/$service | grep 'not found'"
done
check "the program comes without symbols" \
    'said=$(readelf -S /usr/bin/bentpipe) && ! echo "$said" | grep -q "\.symtab\|\.debug_info"'
case ${PROGRAM:-target/release/bentpipe} in
*/release/*)
    # A little over what docs/decisions/size-of-the-program.md says.
    check "the program is small" 'test "$(stat -c %s /usr/bin/bentpipe)" -lt 12300000'
    ;;
esac
check "the configuration is private" 'test "$(stat -c %a:%U /etc/bentpipe)" = 700:root'
check "the manual is there" 'zcat /usr/share/man/man1/bentpipe-up.1.gz | grep -q SIGTERM'
check "completions are there" 'bash -n /usr/share/bash-completion/completions/bentpipe'
check "the unit runs the installed program" \
    'grep -q "^ExecStart=/usr/bin/bentpipe up" /lib/systemd/system/bentpipe@.service'
if command -v systemd-analyze >/dev/null 2>&1; then
    check "the unit is sound" \
        'cd /lib/systemd/system && cp bentpipe@.service /tmp/bentpipe@x.service &&
         said=$(systemd-analyze verify /tmp/bentpipe@x.service 2>&1 | grep bentpipe || true) &&
         test -z "$said" || { echo "$said"; exit 1; }'
fi
inside 'umask 077; mkdir -p /var/lib/bentpipe; touch /var/lib/bentpipe/peers
        echo "# mine" >/etc/bentpipe/ship.toml'
# Of two gateways that run one has a file that the new program refuses.
inside 'mkdir -p /run/systemd/system /tmp/fake
        bentpipe keygen | grep ^private_key >/tmp/key
        { echo "[node]"; cat /tmp/key; } >>/etc/bentpipe/ship.toml
        { echo "[node]"; cat /tmp/key; echo "lsiten = 1"; } >/etc/bentpipe/old.toml
        chmod 600 /etc/bentpipe/*.toml
        cat >/tmp/fake/systemctl <<FAKE
#!/bin/sh
case \$1 in
list-units) echo "bentpipe@ship.service loaded active"; echo "bentpipe@old.service loaded active" ;;
try-restart) echo "\$2" >>/tmp/restarted ;;
esac
FAKE
        chmod 755 /tmp/fake/systemctl'
check "an upgrade names the gateway whose file the new program refuses" \
    "said=\$(PATH=/tmp/fake:\$PATH dpkg -i $second 2>&1) &&
     echo \"\$said\" | grep -q 'bentpipe@old.service goes on with the old program' ||
     { echo \"\$said\"; exit 1; }"
check "it restarts the other one alone" 'test "$(cat /tmp/restarted)" = bentpipe@ship.service'
inside 'rm -r /run/systemd/system /etc/bentpipe/old.toml'
check "an upgrade keeps the services" 'test -x /usr/bin/bentpipe-web -a -x /usr/bin/bentpipe-ftp'
check "an upgrade keeps the files" 'grep -q mine /etc/bentpipe/ship.toml'
# What a gateway that runs has.
inside 'socat ABSTRACT-LISTEN:bentpipe-intercept - >/dev/null 2>&1 & echo $! >/tmp/lock; sleep 1
        ! said=$(dpkg -r bentpipe 2>&1); kill "$(cat /tmp/lock)"
        echo "$said" | grep -q "a gateway still runs here" || { echo "$said"; exit 1; }'
check "removal refuses while a gateway runs" 'bentpipe --version >/dev/null'
inside 'dpkg -r bentpipe >/dev/null 2>&1'
check "removal takes the programs" \
    '! test -e /usr/bin/bentpipe && ! ls /usr/bin/bentpipe-* 2>/dev/null'
check "removal keeps files and state" 'test -e /etc/bentpipe/ship.toml -a -e /var/lib/bentpipe/peers'
check "purging says that keys stay" 'dpkg --purge bentpipe 2>&1 | grep -q "not empty and stays"'
check "purging takes the state" '! test -e /var/lib/bentpipe'
# An authority's key and ledgers cannot be made again: purging leaves them, and says where.
inside "dpkg -i $second >/dev/null; cd /var/lib/bentpipe 2>/dev/null || mkdir -m 700 /var/lib/bentpipe
        cd /var/lib/bentpipe; mkdir -p web/ca web/cache 'chunks/a b'; echo key >web/ca/ca.key
        touch web/ca/ca.pem web/ca/bypass web/cache/1 'chunks/a b/1 2' n.p.ledger n.p.line.raised n.usage
        touch \"\$(printf 'web/cache/\\033[2J.ledger')\"
        mkdir -p /etc/systemd/system/multi-user.target.wants
        ln -s /lib/systemd/system/bentpipe@.service \\
            /etc/systemd/system/multi-user.target.wants/bentpipe@ship.service"
check "purging names the keys and ledgers that stay" \
    'said=$(dpkg --purge bentpipe 2>&1) && for name in web/ca/ca.key web/ca/ca.pem n.p.ledger; do
         echo "$said" | grep -qx "  /var/lib/bentpipe/$name" || { echo "$said"; exit 1; }; done &&
     { test "$(echo "$said" | tr -d "\033")" = "$said" || { echo "it commands the terminal"; exit 1; }; } &&
     rm /var/lib/bentpipe/web/cache/*.ledger && rmdir /var/lib/bentpipe/web/cache'
check "they are there, and nothing else is" \
    'left=$(cd /var/lib/bentpipe && find . -type f | sort | tr "\n" " ") &&
     test "$left" = "./n.p.ledger ./web/ca/bypass ./web/ca/ca.key ./web/ca/ca.pem " ||
     { echo "$left"; exit 1; }'
check "the hub's authorities are recommended" \
    "dpkg-deb --field $second Recommends | grep -qx ca-certificates"
inside 'rm -r /var/lib/bentpipe'
inside "rm -r /etc/bentpipe; dpkg -i $second >/dev/null; dpkg --purge bentpipe >/dev/null 2>&1"
listing >"$base/after"
diff "$base/before" "$base/after" || {
    echo "the package: purging left something, or took what was another's (above)" >&2
    exit 1
}
echo "the package installs, upgrades and goes"
