//! Network namespaces: whole networks of hosts on one machine, for the lab, the demo
//! and the tests.
//!
//! ```no_run
//! # use os::netns::{NetNs, veth};
//! # fn main() -> Result<(), os::OsError> {
//! let (client, server) = (NetNs::unique("demo", "client")?, NetNs::unique("demo", "server")?);
//! veth(&client, "eth0", &server, "eth0")?;
//! client.address("eth0", "10.0.0.1/24")?;
//! server.address("eth0", "10.0.0.2/24")?;
//! let listener = server.run(|| std::net::TcpListener::bind("10.0.0.2:80"));
//! # let _ = listener; Ok(()) } // both namespaces are removed here
//! ```
//!
//! A socket belongs for good to the namespace of the thread that opened it, so one
//! thread may hold sockets of many hosts.

mod root;
mod user;

pub use root::{root, root_alone};
pub use user::enter_user_namespace;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use crate::OsError;
use crate::command;
use crate::error::OrCannot;
use crate::sys::check;

/// Where `ip netns` keeps its names.
const NAMES: &str = "/run/netns";

/// A named network namespace; the same as `ip netns` makes, so that its tools can look
/// inside. One that was created here is removed when the last handle goes.
#[derive(Clone, Debug)]
pub struct NetNs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    file: File,
    created: bool,
}

impl NetNs {
    /// Creates the namespace `name` with its loopback up.
    pub fn create(name: &str) -> Result<NetNs, OsError> {
        command::run(Command::new("ip").args(["netns", "add", name]), "").map_err(|e| {
            e.mend("run as root, or remove a namespace left over with `ip netns delete`")
        })?;
        let namespace = NetNs::open_as(name, true)?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Creates a namespace named `prefix-pid-label`, and first removes those of the same
    /// prefix whose process is gone (killed before it could clean up).
    pub fn unique(prefix: &str, label: &str) -> Result<NetNs, OsError> {
        remove_stale(prefix);
        NetNs::create(&format!("{prefix}-{}-{label}", std::process::id()))
    }

    /// Opens the existing namespace `name`; it is not removed afterwards.
    pub fn open(name: &str) -> Result<NetNs, OsError> {
        NetNs::open_as(name, false)
    }

    fn open_as(name: &str, created: bool) -> Result<NetNs, OsError> {
        let file = File::open(format!("{NAMES}/{name}")).map_err(|e| {
            OsError::new(format!("open the network namespace {name}"), e)
                .mend("`ip netns list` shows those that exist")
        })?;
        Ok(NetNs(Arc::new(Inner { name: name.to_owned(), file, created })))
    }

    /// Its name, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Moves the calling thread, and the threads it starts from now on, inside for good.
    pub fn enter(&self) -> Result<(), OsError> {
        set_namespace(self.0.file.as_raw_fd())
            .or_cannot(|| format!("enter the network namespace {}", self.0.name))
    }

    /// Runs `work` inside, on a thread of its own, and waits for it. Panics pass through.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.enter().unwrap_or_else(|e| panic!("{e}"));
            work()
        };
        let outcome = thread::scope(|s| s.spawn(inside).join());
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// A command that will run inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let inner = Arc::clone(&self.0);
        // SAFETY: the closure makes one system call on a descriptor that it keeps open,
        // and allocates nothing, so it may run between fork and exec.
        unsafe { command.pre_exec(move || set_namespace(inner.file.as_raw_fd())) };
        command
    }

    /// Runs one `ip` command inside, given as its words: `ns.ip("link set eth0 mtu 1400")`.
    pub fn ip(&self, words: &str) -> Result<String, OsError> {
        let mut command = Command::new("ip");
        command::run(command.args(["-n", &self.0.name]).args(words.split_whitespace()), "")
    }

    /// Gives `device` the address (`"10.0.0.1/24"`, `"fd00::1/64"`) and switches it up.
    /// IPv6 addresses are usable at once.
    pub fn address(&self, device: &str, address: &str) -> Result<(), OsError> {
        let now = if address.contains(':') { "nodad" } else { "" };
        self.ip(&format!("address add {address} dev {device} {now}"))?;
        self.ip(&format!("link set {device} up")).map(drop)
    }

    /// Adds a route: `ns.route("default via 10.0.0.1")`.
    pub fn route(&self, route: &str) -> Result<(), OsError> {
        let family = if route.contains(':') { "-6" } else { "-4" };
        self.ip(&format!("{family} route add {route}")).map(drop)
    }

    /// Forwards IPv4 and IPv6, as a router does.
    pub fn make_router(&self) -> Result<(), OsError> {
        self.sysctl("net.ipv4.ip_forward", "1")?;
        self.sysctl("net.ipv6.conf.all.forwarding", "1")
    }

    /// Sets a kernel parameter inside: `ns.sysctl("net.ipv4.tcp_rmem", "4096 87380 65536")`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), OsError> {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        self.run(|| fs::write(&path, value))
            .or_cannot(|| format!("set {key} to \"{value}\" in {}", self.0.name))
    }

    /// Reads a kernel parameter inside.
    pub fn read_sysctl(&self, key: &str) -> Result<String, OsError> {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        let text = self.run(|| fs::read_to_string(&path));
        text.map(|t| t.trim().to_owned()).or_cannot(|| format!("read {key} in {}", self.0.name))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.created {
            let _ = command::run(Command::new("ip").args(["netns", "delete", &self.name]), "");
        }
    }
}

/// Lays a cable: a veth pair, each end up. IPv6 is spared its opening chatter; the
/// link-local address stays, because a router resolves its neighbours from it.
pub fn veth(a: &NetNs, a_device: &str, b: &NetNs, b_device: &str) -> Result<(), OsError> {
    let other = b.name();
    a.ip(&format!("link add {a_device} type veth peer name {b_device} netns {other}"))?;
    for (ns, device) in [(a, a_device), (b, b_device)] {
        // Without probes alone the kernel still waits up to a second before it uses the address.
        ns.sysctl(&format!("net.ipv6.conf.{device}.accept_dad"), "0")?;
        ns.sysctl(&format!("net.ipv6.conf.{device}.router_solicitations"), "0")?;
        ns.ip(&format!("link set {device} up"))?;
    }
    Ok(())
}

/// Removes the namespaces `prefix-pid-label` whose process no longer lives. The names
/// are this project's own by their prefix.
pub fn remove_stale(prefix: &str) {
    let Ok(names) = fs::read_dir(NAMES) else { return };
    for name in names.flatten().filter_map(|e| e.file_name().into_string().ok()) {
        if owner_of(prefix, &name).is_some_and(|pid| !process_lives(pid)) {
            let _ = command::run(Command::new("ip").args(["netns", "delete", &name]), "");
        }
    }
}

fn owner_of(prefix: &str, name: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.strip_prefix('-')?.split_once('-')?.0.parse().ok()
}

fn process_lives(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap_or(true)
}

fn set_namespace(fd: RawFd) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::setns(fd, libc::CLONE_NEWNET) }).map(drop)
}

#[cfg(test)]
mod tests;
