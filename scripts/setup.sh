#!/bin/sh
# Installs, with apt, what building, testing and the demo need and this machine lacks; with the
# word "build", what building alone needs: a gateway is to get no servers and no browser; with "long",
# also what the longest tests do.
# Says nothing when nothing is missing; may be run any number of times.
set -eu

# program:package. The servers are what the tests' real clients talk to.
wanted="
cc:gcc
ethtool:ethtool
make:make
nft:nftables
ip:iproute2
ping:iputils-ping
ps:procps
unshare:util-linux
setpriv:util-linux
curl:curl
wget:wget
git:git
rsync:rsync
ssh:openssh-client
sshd:openssh-server
lftp:lftp
ftp:ftp
vsftpd:vsftpd
openssl:openssl
caddy:caddy
chromium-headless-shell:chromium-headless-shell
socat:socat
"
[ "${1:-}" != long ] || wanted="$wanted node:nodejs npm:npm"
[ "${1:-}" != build ] || wanted="cc:gcc make:make git:git"

PATH="$PATH:/usr/sbin:/sbin"
packages=""
for pair in $wanted; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || packages="$packages ${pair##*:}"
done

# What manages networks on many hosts; the tests run it in namespaces of their own.
[ "${1:-}" = build ] || [ -e /lib/systemd/systemd-networkd ] || packages="$packages systemd"

# The crypto below the link is C, and its build wants the C library's headers.
[ -e /usr/include/stdlib.h ] || packages="$packages libc6-dev"

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is missing: install Rust 1.95 or later with rustup" >&2
    exit 1
fi
[ -n "$packages" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: install these by hand, there is no apt here:$packages" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "setup: run as root: apt-get install$packages" >&2
    exit 1
fi

# The servers are started by the tests, in namespaces of their own, never by the
# machine: while apt works, a policy keeps it from starting them.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi

echo "setup: installing$packages"
# shellcheck disable=SC2086 # a list of words
install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        -o DPkg::Lock::Timeout=300 $packages \
        >/dev/null
}
# Lists that are there are mostly good enough; fresh ones cost a minute.
install 2>/dev/null || {
    apt-get update -q >/dev/null
    install
}

# Nor at the next boot, if they were not here before.
if command -v systemctl >/dev/null 2>&1; then
    case "$packages" in *openssh-server*) systemctl disable ssh >/dev/null 2>&1 || true ;; esac
    case "$packages" in *vsftpd*) systemctl disable vsftpd >/dev/null 2>&1 || true ;; esac
fi
