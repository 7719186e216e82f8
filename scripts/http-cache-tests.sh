#!/bin/bash
# Runs the public HTTP cache test-suite (npm package http-cache-tests) through a pair of gateways:
#
#   suite's client ── gateway, bentpipe-web ══ link ══ bentpipe-web, gateway ── suite's server
#
# and prints how many of its required tests passed: it fails below 140 of 150, and where an answer is kept
# or given that belongs to one user. Needs root, node and npm (nodejs and npm of Debian), the network
# for the first run, and programs that are built (cargo build -p bentpipe -p bentpipe-web).
#
#   scripts/http-cache-tests.sh [DIRECTORY] [TEST-ID]
#
# DIRECTORY: where the suite is, or is put, from npm's registry as npm is set up; default:
# target/http-cache-tests.
# PROGRAMS: where the programs are; default: target/debug. CACHE=memory: without a directory.
# HUB=off: the terminal's cache alone.
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
suite=${1:-$tree/target/http-cache-tests}
only=${2:-}
programs=$(cd "${PROGRAMS:-$tree/target/debug}" && pwd)
version=0.4.5

for tool in node npm ip curl; do
    command -v "$tool" >/dev/null || { echo "$tool is missing: \"sh scripts/setup.sh long\" installs it" >&2; exit 1; }
done
mkdir -p "$suite"
suite=$(cd "$suite" && pwd)
if [ ! -e "$suite/package/node_modules/node-fetch" ]; then
    (
        cd "$suite"
        npm pack --silent "http-cache-tests@$version" >/dev/null
        tar xzf "http-cache-tests-$version.tgz"
        # Of what it names, only what its server and client load.
        cd package && npm install --silent --no-save --no-package-lock --ignore-scripts \
            node-fetch@2 liquidjs@9 --prefix . >/dev/null
    )
fi

name=bphct$$
work=$(mktemp -d "/tmp/$name-XXXX")
chmod 755 "$work"
pids=()
cleanup() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    for ns in c a b s; do ip netns del "$name-$ns" 2>/dev/null || true; done
    [ -n "${KEEP:-}" ] || rm -rf "$work"
}
trap cleanup EXIT

cable() { # ns device address  ns device address
    ip link add "$2" netns "$name-$1" type veth peer name "$5" netns "$name-$4"
    ip -n "$name-$1" addr add "$3" dev "$2" && ip -n "$name-$1" link set "$2" up
    ip -n "$name-$4" addr add "$6" dev "$5" && ip -n "$name-$4" link set "$5" up
}
for ns in c a b s; do
    ip netns add "$name-$ns"
    ip -n "$name-$ns" link set lo up
done
cable c lan0 10.1.0.2/24 a lan0 10.1.0.1/24
cable a sat0 192.0.2.1/24 b sat0 192.0.2.2/24
cable b lan0 10.2.0.1/24 s lan0 10.2.0.2/24
ip -n "$name-c" route add default via 10.1.0.1
ip -n "$name-s" route add default via 10.2.0.1
for ns in a b; do ip netns exec "$name-$ns" sysctl -qw net.ipv4.ip_forward=1; done

mkdir "$work/bin"
cp "$programs/bentpipe-web" "$work/bin/"
chmod -R a+rX "$work/bin"
state="directory = \"$work/state\""
[ "${CACHE:-}" = memory ] && state=""
hub=""
[ "${HUB:-}" = off ] && hub=', "--hub-cache", "0"'

gateway() { # ns listen routes allow key peer-public endpoint state
    mkdir -p "$work/$1"
    cat >"$work/$1/bentpipe.toml" <<END
[node]
private_key = "$5"
listen = "$2"
admin = "admin.sock"
tun = "bp0"
lan = ["lan0"]
[service.web]
command = ["$work/bin/bentpipe-web"$hub]
$8
[[peer]]
name = "far"
public_key = "$6"
routes = ["$3"]
allow = ["$4"]
source = "keep"
$7
link = { send = "100Mbit", receive = "100Mbit", delay = "1ms", mtu = 1500 }
[[peer.rule]]
ports = [80]
via = "web"
END
    chmod 600 "$work/$1/bentpipe.toml"
    STATE_DIRECTORY="$work/$1/state" ip netns exec "$name-$1" "$programs/bentpipe" up "$work/$1/bentpipe.toml" \
        >"$work/$1/log" 2>&1 &
    pids+=($!)
}
for end in a b; do "$programs/bentpipe" keygen >"$work/$end.keys"; done
key() { sed -n 's/^private_key *= "\(.*\)"/\1/p' "$work/$1.keys"; }
pub() { sed -n 's/^public_key *= "\(.*\)"/\1/p' "$work/$1.keys"; }
gateway b 192.0.2.2:4500 10.1.0.0/24 10.2.0.0/24 "$(key b)" "$(pub a)" "" ""
gateway a 192.0.2.1:4500 10.2.0.0/24 10.1.0.0/24 "$(key a)" "$(pub b)" \
    'endpoint = "192.0.2.2:4500"' "$state"

cd "$suite/package"
export npm_config_protocol=http npm_config_port=80 npm_config_id=$only npm_package_config_id=
export npm_config_base=http://10.2.0.2 npm_config_pidfile="$work/server.pid"
ip netns exec "$name-s" node server/server.mjs >"$work/server.log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do
    ip netns exec "$name-c" curl -s -o /dev/null --max-time 2 http://10.2.0.2/ && break
    sleep 0.2
done
sleep 2
if [ -n "$only" ]; then
    ip netns exec "$name-c" node --no-warnings cli.mjs
    exit
fi
# As cli.mjs does, but 40 tests at once: with more, a busy machine's client has connections on which
# it says nothing for so long that they are carried as plain streams.
cat >"$work/run.mjs" <<'END'
const suite = process.argv[2] + '/package/'
const { runTests, getResults } = await import(suite + 'client/runner.mjs')
const { default: sets } = await import(suite + 'tests/index.mjs')
const { default: fetch } = await import(suite + 'node_modules/node-fetch/lib/index.mjs')
await runTests(sets, fetch, false, process.env.npm_config_base, 40)
console.log(JSON.stringify(getResults()))
END
ip netns exec "$name-c" node --no-warnings "$work/run.mjs" "$suite" >"$work/result" \
    2>"$work/client.log" || { cat "$work/client.log" "$work"/?/log; exit 1; }
"$programs/bentpipe" status --json --socket "$work/a/admin.sock" >"$work/status.json"
cat >"$work/count.mjs" <<'END'
import fs from 'fs'
const [, , suite, result, status] = process.argv
const { default: sets } = await import(suite + '/package/tests/index.mjs')
const text = fs.readFileSync(result, 'utf8')
const results = JSON.parse(text.slice(text.indexOf('{')))
for (const kind of ['required', 'optimal', 'check']) {
  const ids = sets.flatMap(s => s.tests).filter(t => !t.browser_only && (t.kind || 'required') === kind)
  const passed = ids.filter(t => results[t.id] === true)
  console.log(`${kind}: ${passed.length} of ${ids.length}`)
  if (kind === 'check') continue
  for (const t of ids) {
    if (results[t.id] !== true) console.log(`  ${t.id}: ${(results[t.id] || []).join(': ').slice(0, 110)}`)
  }
}
const required = sets.flatMap(s => s.tests).filter(t => !t.browser_only && (t.kind || 'required') === 'required')
const passed = required.filter(t => results[t.id] === true)
// What is one user's is nobody else's; a test that has no result was not run.
const own = required.filter(t => /private|no-store|authorization/i.test(t.id) && results[t.id] !== true)
let fails = false
if (passed.length * 150 < required.length * 140) {
  console.log(`too few: 140 of 150 are asked, ${passed.length} of ${required.length} passed`)
  fails = true
}
for (const t of own) {
  console.log(`an answer that is one user's may be kept: ${t.id}`)
  fails = true
}
process.exitCode = fails || required.length < 150 ? 1 : 0
const services = JSON.parse(fs.readFileSync(status, 'utf8')).services
if (services) console.log(JSON.stringify(services[0].counters))
END
node --no-warnings "$work/count.mjs" "$suite" "$work/result" "$work/status.json"
