//! The gateway pair of an experiment: two processes of the program `bentpipe`, each in
//! the namespace of its gateway, with keys and files that nobody else sees.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use control::{Answer, LineCommand, LinkState, Request, Status, client};
use link::keys::PrivateKey;
use os::netns::NetNs;
use os::proc::{cpu_of, die_with_parent, entropy, reset_signals};
use units::BitRate;

use super::results::Load;
use super::topology::{LAN, LINK_A, LINK_B, SATELLITE, Topology};
use super::way::{LinkSetup, Side, Told};

/// Names the gateways' program where it does not lie beside this one.
const PROGRAM: &str = "BENTPIPE";
/// The port on which the gateways meet.
pub const PORT: u16 = 4500;
/// Starting takes well under a second; a loaded machine may take longer.
const START: Duration = Duration::from_secs(20);
/// How long a gateway may take to end in order before it is killed.
const END: Duration = Duration::from_secs(3);
/// In a gateway's directory: what it has for `/etc/resolv.conf`, if that is not the machine's.
const RESOLVER: &str = "resolv.conf";
/// The beginning of the names of peers that are never there.
const ABSENT: &str = "absent-";
/// How long one question to a gateway may take.
const ANSWER: units::Duration = units::Duration::from_secs(5);

/// Settings of a gateway pair beyond what follows from the link.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    /// What they are told of a link that has no rate of its own; 1 Gbit/s unless given.
    pub rate: Option<BitRate>,
    /// What they are told otherwise than the link is.
    pub told: Told,
    /// They split nothing: TCP crosses as packets, in order and surely.
    pub unsplit: bool,
    /// Only the gateway on this side splits, with nothing of ours at the other (`mode = "split"`).
    pub alone: Option<Side>,
    /// They compress TCP: the published figures, and those of bare links, are without.
    pub compress: bool,
    /// They deduplicate TCP.
    pub dedup: bool,
    /// Further peers of both, which are never there.
    pub absent: usize,
    /// Lines added to the `[node]` table of both.
    pub node: String,
    /// Lines added to the `[[peer]]` table of both.
    pub peer: String,
    /// A network of IPv4 behind the server's gateway, beside the server's own.
    pub further: Option<&'static str>,
    /// The DNS server that the gateways themselves ask; the machine's unless given.
    pub resolver: Option<IpAddr>,
}

/// Why a gateway does not run.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The program is not there.
    #[error(
        "the gateways' program {0} is missing: install or build bentpipe (make build), or let \
         {PROGRAM} name it"
    )]
    NoProgram(PathBuf),
    /// Its files cannot be written, or it cannot be started.
    #[error("cannot {what}: {cause}")]
    Io {
        /// What failed.
        what: String,
        /// Why.
        cause: io::Error,
    },
    /// No keys.
    #[error("{0}")]
    Keys(String),
    /// It ended, or never met its peer.
    #[error("the gateway on the {side}'s side {what}{said}")]
    NotReady {
        /// `client` or `server`.
        side: &'static str,
        /// What happened instead.
        what: String,
        /// Its last words.
        said: String,
    },
}

/// The gateways' program: what the variable `BENTPIPE` names, else `bentpipe` in the directory
/// of this one.
///
/// # Errors
/// If nothing is there.
pub fn program() -> Result<PathBuf, GatewayError> {
    let program = match std::env::var_os(PROGRAM).filter(|name| !name.is_empty()) {
        Some(name) => PathBuf::from(name),
        None => std::env::current_exe()
            .map_err(|cause| GatewayError::Io { what: "find this program".into(), cause })?
            .with_file_name("bentpipe"),
    };
    // The system's own words would not say which program it is.
    if program.is_file() { Ok(program) } else { Err(GatewayError::NoProgram(program)) }
}

/// One running gateway.
pub struct Gateway {
    side: &'static str,
    child: Child,
    dir: PathBuf,
}

impl Pair {
    /// Starts both gateways, and those of a mesh, and waits until each says that its links
    /// are up.
    pub fn start(
        &self,
        topology: &Topology,
        link: &LinkSetup,
    ) -> Result<([Gateway; 2], Vec<Gateway>), GatewayError> {
        let link = &self.told.over(link);
        let further = topology.mesh.as_ref().map_or(0, |m| m.nodes.len());
        let key = || entropy().map(PrivateKey::generate);
        let keys: Vec<PrivateKey> = (0..2 + further)
            .map(|_| key())
            .collect::<Result<_, _>>()
            .map_err(|e: os::OsError| GatewayError::Keys(e.to_string()))?;
        // The further links are as the experiment's own; the client's end is the lower node's.
        let ends = [self.link(&link.up, &link.down), self.link(&link.down, &link.up)];
        let mesh = topology.mesh.as_ref();
        let more = |node| mesh.map_or(String::new(), |m| m.peers(node, &keys, &ends));
        let config_b = self.config(&End {
            key: &keys[1],
            peer: &keys[0],
            far: LINK_A,
            behind: ["10.77.1.0/24", "fd77:1::/64"],
            local: ["10.77.3.0/24", "fd77:3::/64"],
            link,
            towards_client: true,
        }) + &more(1);
        let config_a = self.config(&End {
            key: &keys[0],
            peer: &keys[1],
            far: LINK_B,
            behind: ["10.77.3.0/24", "fd77:3::/64"],
            local: ["10.77.1.0/24", "fd77:1::/64"],
            link,
            towards_client: false,
        }) + &more(0);
        let start =
            |side, host, config: &str| Gateway::start_with(side, host, config, self.resolver);
        let mut b = start("server", &topology.gwb, &config_b)?;
        let mut a = start("client", &topology.gwa, &config_a)?;
        let mut others = match &topology.mesh {
            Some(mesh) => mesh.start(&keys, &ends)?,
            None => Vec::new(),
        };
        for gateway in [&mut b, &mut a].into_iter().chain(&mut others) {
            gateway.wait_until_up()?;
        }
        Ok(([a, b], others))
    }

    /// The link as one end sees it. A link without a rate is as fast as this machine; the
    /// gateway wants a number.
    fn link(&self, send: &channel::ChannelConfig, receive: &channel::ChannelConfig) -> String {
        let as_fast = self.rate.unwrap_or(BitRate::from_mbps(1_000));
        let rate = |c: &channel::ChannelConfig| c.rate.unwrap_or(as_fast);
        format!(
            "{{ send = \"{}\", receive = \"{}\", delay = \"{}\", ber = {:e}, mtu = 1500, \
             rate = \"{}\" }}",
            rate(send),
            rate(receive),
            send.delay,
            send.ber.as_f64(),
            self.told.rate.as_deref().unwrap_or("fixed"),
        )
    }

    /// What an operator would write: rates, delay, bit-error ratio and MTU. Random loss is
    /// nothing that anybody knows beforehand; the gateways find it.
    fn config(&self, end: &End<'_>) -> String {
        if let Some(side) = self.alone {
            return self.config_alone(end, side);
        }
        let (down, up) = (&end.link.down, &end.link.up);
        let (send, receive) = if end.towards_client { (down, up) } else { (up, down) };
        let list = |nets: [&str; 2], is_server: bool| {
            let further = self.further.filter(|_| is_server);
            let all: Vec<_> = nets.into_iter().chain(further).map(|n| format!("\"{n}\"")).collect();
            format!("[{}]", all.join(", "))
        };
        let [far, _] = end.far;
        let Pair { node, peer, unsplit, .. } = self;
        let (lan, rule) = match unsplit {
            false => (format!("lan = [\"{LAN}\"]"), ""),
            // Without the device nothing would come to the gateways at all.
            true => (
                "tun = \"bentpipe0\"".to_owned(),
                "[[peer.rule]]\nprotocol = \"tcp\"\ncarry = \"ordered\"\n",
            ),
        };
        // The published figures are of gateways that answer at once.
        let open = if peer.contains("open =") { "" } else { "open = \"fast\"\n" };
        format!(
            "[node]\nprivate_key = \"{key}\"\nlisten = \"0.0.0.0:{PORT}\"\n{lan}\n\
             admin = \"admin.sock\"\nlog = \"warn\"\ndedup_dir = \"chunks\"\n\
             dedup_disk = \"1GiB\"\n{node}\n\
             [[peer]]\nname = \"far\"\npublic_key = \"{public}\"\nendpoint = \"{far}:{PORT}\"\n\
             routes = {routes}\nallow = {allow}\nsource = \"keep\"\n{open}compress = \"{compress}\"\n\
             dedup = \"{dedup}\"\n\
             link = {link}\n{peer}\n{rule}{absent}",
            key = end.key.to_base64(),
            public = end.peer.public(),
            routes = list(end.behind, !end.towards_client),
            allow = list(end.local, end.towards_client),
            link = self.link(send, receive),
            absent = absent(self.absent),
            compress = if self.compress { "auto" } else { "off" },
            dedup = if self.dedup { "host" } else { "off" },
        )
    }
}

impl Pair {
    /// The same where one gateway is alone. The other's process has no peer and no interface: it
    /// touches no packet, as if it were not there.
    fn config_alone(&self, end: &End<'_>, side: Side) -> String {
        let mut text = format!(
            "[node]\nprivate_key = \"{}\"\nlisten = \"0.0.0.0:{PORT}\"\nadmin = \"admin.sock\"\n\
             log = \"warn\"\n{}\n",
            end.key.to_base64(),
            self.node
        );
        if (side == Side::Server) == end.towards_client {
            let (down, up) = (&end.link.down, &end.link.up);
            let (send, receive) = if end.towards_client { (down, up) } else { (up, down) };
            let [v4, v6] = end.behind;
            text += &format!(
                "lan = [\"{LAN}\"]\n[[peer]]\nname = \"far\"\nmode = \"split\"\n\
                 device = \"{SATELLITE}\"\nroutes = [\"{v4}\", \"{v6}\"]\nlink = {}\n",
                self.link(send, receive)
            );
        }
        text
    }
}

/// Peers that have keys and an address behind them, and are never heard of.
fn absent(count: usize) -> String {
    let peer = |n: usize| {
        let mut secret = [0xab; 32];
        secret[..8].copy_from_slice(&(n as u64).to_be_bytes());
        let public = *PrivateKey::generate(secret).public();
        let (high, low) = (n / 256, n % 256);
        format!(
            "\n[[peer]]\nname = \"{ABSENT}{n}\"\npublic_key = \"{public}\"\n\
             routes = [\"10.78.{high}.{low}/32\"]\n\
             link = {{ send = \"20Mbit\", receive = \"2Mbit\", delay = \"300ms\" }}\n"
        )
    };
    (0..count).map(peer).collect()
}

/// What differs between the two configurations.
struct End<'a> {
    key: &'a PrivateKey,
    peer: &'a PrivateKey,
    far: [IpAddr; 2],
    behind: [&'static str; 2],
    local: [&'static str; 2],
    link: &'a LinkSetup,
    towards_client: bool,
}

impl Gateway {
    /// Starts one with this configuration.
    pub fn start(side: &'static str, host: &NetNs, config: &str) -> Result<Gateway, GatewayError> {
        Gateway::start_with(side, host, config, None)
    }

    /// The same with a DNS server of its own.
    fn start_with(
        side: &'static str,
        host: &NetNs,
        config: &str,
        resolver: Option<IpAddr>,
    ) -> Result<Gateway, GatewayError> {
        let dir = std::env::temp_dir().join(host.name());
        let cannot = |what: String| move |cause| GatewayError::Io { what, cause };
        // One left behind by a killed process of the same number is nobody's.
        let _ = fs::remove_dir_all(&dir);
        DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(cannot(format!("make {}", dir.display())))?;
        let file = dir.join("gateway.toml");
        write_private(&file, config).map_err(cannot(format!("write {}", file.display())))?;
        if let Some(resolver) = resolver {
            let file = dir.join(RESOLVER);
            fs::write(&file, format!("nameserver {resolver}\n"))
                .map_err(cannot(format!("write {}", file.display())))?;
        }
        let child = spawn(host, &dir, &file).inspect_err(|_| {
            let _ = fs::remove_dir_all(&dir);
        })?;
        Ok(Gateway { side, child, dir })
    }

    /// Kills it, and starts it anew with its file and what it has kept.
    pub fn kill_and_start(&mut self, host: &NetNs) -> Result<(), GatewayError> {
        let cannot = |cause| GatewayError::Io { what: "kill a gateway".into(), cause };
        self.child.kill().and_then(|()| self.child.wait()).map_err(cannot)?;
        self.child = spawn(host, &self.dir, &self.dir.join("gateway.toml"))?;
        Ok(())
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The name by which messages call it: `client` or `server`.
    pub fn side(&self) -> &'static str {
        self.side
    }

    /// What it says of itself.
    pub fn status(&self) -> io::Result<Status> {
        match client::ask(&self.socket(), &Request::Status, ANSWER)? {
            Answer::Status(status) => Ok(*status),
            other => Err(io::Error::other(format!("an unexpected answer: {other:?}"))),
        }
    }

    /// Says something of a peer's line, as `bentpipe link` does.
    pub fn command_line(&self, peer: &str, command: LineCommand) -> io::Result<()> {
        let request = Request::Line { peer: peer.to_owned(), line: None, command };
        match client::ask(&self.socket(), &request, ANSWER)? {
            Answer::Done => Ok(()),
            other => Err(io::Error::other(format!("an unexpected answer: {other:?}"))),
        }
    }

    /// What `bentpipe cost --json` prints of its ledgers, by peer.
    pub fn cost(&self) -> Result<String, String> {
        let program = program().map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command.env("STATE_DIRECTORY", &self.dir).arg("cost").arg(self.dir.join("gateway.toml"));
        let output =
            command.args(["--json", "--by", "peer"]).output().map_err(|e| e.to_string())?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    /// Processor time since its start, and memory now.
    pub fn load(&self) -> io::Result<Load> {
        let pid = self.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let unreadable = || io::Error::other(format!("/proc/{pid} has another form than expected"));
        Ok(Load {
            cpu: cpu_of(pid)?.as_secs_f64(),
            memory: memory_of(&status).ok_or_else(unreadable)?,
        })
    }

    /// Processor time of each of its shards so far, s: the first is its main thread.
    pub fn shards_cpu(&self) -> io::Result<Vec<f64>> {
        let mut each = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let thread = thread?;
            let Ok(name) = fs::read_to_string(thread.path().join("comm")) else { continue };
            let is_main = thread.file_name().to_str() == Some(&self.pid().to_string());
            let number = name.trim().strip_prefix("shard ").and_then(|n| n.parse::<u32>().ok());
            let Some(number) = number.or(is_main.then_some(0)) else { continue };
            let stat = fs::read_to_string(thread.path().join("schedstat"))?;
            each.push((number, cpu_of_thread(&stat).unwrap_or_default()));
        }
        each.sort_by_key(|(number, _)| *number);
        Ok(each.into_iter().map(|(_, cpu)| cpu).collect())
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("admin.sock")
    }

    /// Waits until it answers.
    pub fn wait_until_ready(&mut self) -> Result<(), GatewayError> {
        self.wait_until(|_| true)
    }

    /// Waits until it says that all its links are up.
    pub fn wait_until_up(&mut self) -> Result<(), GatewayError> {
        self.wait_until(|status| {
            let is_absent = |peer: &str| peer.starts_with(ABSENT);
            status.links.iter().all(|l| l.state == LinkState::Up || is_absent(&l.peer))
        })
    }

    fn wait_until(&mut self, holds: impl Fn(&Status) -> bool) -> Result<(), GatewayError> {
        let begin = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.not_ready(format!("ended at once ({status})")));
            }
            if self.status().is_ok_and(|status| holds(&status)) {
                return Ok(());
            }
            if begin.elapsed() > START {
                return Err(self.not_ready(format!("had no link after {} s", START.as_secs())));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn not_ready(&self, what: String) -> GatewayError {
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(5)..].join("\n  ");
        let said = if last.is_empty() { String::new() } else { format!("; it said:\n  {last}") };
        GatewayError::NotReady { side: self.side, what, said }
    }

    fn ends_within(&mut self, time: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < time {
            if self.child.try_wait().is_ok_and(|s| s.is_some()) {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let asked = client::ask(&self.socket(), &Request::Stop, ANSWER).is_ok();
        if !(asked && self.ends_within(END)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Starts the program with this file. What it keeps lies in `dir`, and so does its log.
fn spawn(host: &NetNs, dir: &Path, file: &Path) -> Result<Child, GatewayError> {
    let cannot = |what: &str| {
        let what = what.to_owned();
        move |cause| GatewayError::Io { what, cause }
    };
    let log = File::create(dir.join("log")).map_err(cannot("write the gateway's log"))?;
    let program = program()?;
    let resolver = dir.join(RESOLVER);
    let mut command = match resolver.exists() {
        true => resolving(host, &resolver, &program),
        false => host.command(&program.to_string_lossy()),
    };
    command.env("STATE_DIRECTORY", dir);
    command.arg("up").arg(file).stdin(Stdio::null());
    command.stdout(log.try_clone().map_err(cannot("share the gateway's log"))?);
    command.stderr(log);
    // The gateway ends when the thread that started it is gone, however it went; the thread that
    // builds a topology also drops it.
    die_with_parent(reset_signals(&mut command)).spawn().map_err(cannot("start a gateway"))
}

/// A command in `host` that asks the DNS server that this file names: programs know no other way
/// than `/etc/resolv.conf`, and the machine keeps its own.
pub fn resolving(host: &NetNs, resolver: &Path, program: &Path) -> Command {
    const SCRIPT: &str = "mount --bind \"$1\" /etc/resolv.conf && shift && exec \"$@\"";
    let mut command = host.command("unshare");
    command.args(["--mount", "sh", "-c", SCRIPT, "sh"]).arg(resolver).arg(program);
    command
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Time on a processor, of `/proc/PID/task/TID/schedstat` (its first field, in nanoseconds), in
/// seconds. It may be a tick of the scheduler old, 4 ms here.
fn cpu_of_thread(schedstat: &str) -> Option<f64> {
    schedstat.split_whitespace().next()?.parse::<u64>().ok().map(|ns| ns as f64 / 1e9)
}

fn memory_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::scenario::Scenario;
    use config::Config;

    #[test]
    fn processor_time_and_memory_are_read() {
        assert_eq!(cpu_of_thread("1750000000 25 9\n"), Some(1.75));
        assert_eq!(cpu_of_thread("\n"), None);
        assert_eq!(memory_of("Name:\tx\nVmRSS:\t   2048 kB\n"), Some(2 << 20));
    }

    #[test]
    fn a_gateway_would_take_the_configuration_that_is_written_for_it() {
        let key = PrivateKey::generate([7; 32]);
        let peer = PrivateKey::generate([9; 32]);
        for name in ["umd-ftp", "wise-web", "itu-single-window"] {
            let scenario = Scenario::built_in(name).unwrap();
            let end = End {
                key: &key,
                peer: &peer,
                far: LINK_B,
                behind: ["10.77.3.0/24", "fd77:3::/64"],
                local: ["10.77.1.0/24", "fd77:1::/64"],
                link: &scenario.link,
                towards_client: false,
            };
            let text = Pair::default().config(&end);
            let config = Config::parse(&text, Path::new("/")).unwrap_or_else(|_| panic!("{text}"));
            assert_eq!(Some(config.peers[0].link.send), scenario.link.up.rate);
            assert_eq!(config.peers[0].link.delay, scenario.link.up.delay);
            let text = Pair { unsplit: true, ..Pair::default() }.config(&end);
            let config = Config::parse(&text, Path::new("/")).unwrap_or_else(|_| panic!("{text}"));
            assert!(config.node.lan.is_empty() && config.node.tun.is_some(), "{text}");
        }
    }
}
