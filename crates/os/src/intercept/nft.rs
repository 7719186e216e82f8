//! The nftables table, and the `nft` child that owns it.
//!
//! A table with `flags owner` belongs to the netlink socket that created it: nobody
//! else can change or flush it, and it is gone when that socket closes. So one `nft -i`
//! stays for as long as the table shall. It is spoken to in text, because the JSON form
//! drops the flag.

use std::io::{ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::Command;

use units::{Duration, IpPrefix};

use super::children::Kept;
use super::config::InterceptConfig;
use super::{guard, own, visitors};
use crate::OsError;
use crate::error::OrCannot;
use crate::poll::Clock;
use crate::sys::{check, set_nonblocking};

/// How long the child may take to hear a question and answer it. It takes some milliseconds;
/// whoever waits for it does nothing else.
const PATIENCE: Duration = Duration::from_secs(10);

/// The last line of each question, which `nft` answers by itself in one line, whatever became of
/// those before: they may be refused, and then there may be no table to list.
const END_QUESTION: &str = "describe meta length";
/// How its answer begins: no complaint and no listing has such a line.
const END: &str = "meta expression, ";

/// An owned table that is in force.
pub(super) struct Table {
    child: Kept,
    output: PipeReader,
    name: String,
    /// [`PATIENCE`].
    patience: Duration,
}

impl Table {
    /// Creates the table that `ruleset` makes under a name, and makes sure that it is there and
    /// owned.
    pub fn create(ruleset: impl FnOnce(&str) -> String) -> Result<Table, OsError> {
        // Complaints come in order with the answers: one pipe for both.
        let (output, input) = std::io::pipe().or_cannot(|| "make a pipe for `nft`".into())?;
        let complaints = input.try_clone().or_cannot(|| "make a pipe for `nft`".into())?;
        let mut command = Command::new("nft");
        command.arg("-i").stdout(input).stderr(complaints);
        let child = Kept::start(command, true)?;
        // A pipe holds 64 KiB, and a child that hangs takes none of it.
        child
            .stdin
            .iter()
            .try_for_each(|pipe| set_nonblocking(pipe.as_fd()))
            .or_cannot(|| "make a pipe for `nft`".into())?;
        let mut table = Table { child, output, name: table_name(), patience: PATIENCE };
        let listing = table.run(&ruleset(&table.name))?;
        if !listing.lines().any(|l| l.trim() == "flags owner") {
            return Err(OsError::refused("the kernel does not let nftables tables be owned")
                .mend("Linux 5.12 and nftables 1.0 or later are needed"));
        }
        Ok(table)
    }

    /// One that did not answer may do so later, to another question: it is as good as dead.
    pub fn is_alive(&mut self) -> bool {
        !self.child.hangs && self.child.is_alive()
    }

    pub fn death(&self) -> BorrowedFd<'_> {
        self.child.death()
    }

    /// Changes what follows from the peers: by which ports their packets come, whose datagrams are
    /// masqueraded, which of this host's own connections are split, and what is answered into the
    /// tunnel.
    pub fn update(&mut self, config: &InterceptConfig) -> Result<(), OsError> {
        let commands = carrier_ports(&self.name, config)
            + &own_errors(&self.name, config)
            + &own::chains(&self.name, config)
            + &answers(&self.name, config)
            + &questions(&self.name, config)
            + &guard::chains(&self.name, config)
            + &masquerade(&self.name, config);
        self.run(&commands).map(drop)
    }

    /// Runs one line of commands as one transaction and returns the table as it is then.
    fn run(&mut self, commands: &str) -> Result<String, OsError> {
        let said = self.ask(commands)?;
        match said.lines().find(|l| l.contains("Error: ")) {
            Some(complaint) => Err(refusal(complaint)),
            None => Ok(said),
        }
    }

    /// Has one line of commands run, and returns all that the child says of it: complaints, and
    /// the table as it is then, if there is one. Up to [`END`], so that nothing of this answer is
    /// taken for that to a later question.
    fn ask(&mut self, commands: &str) -> Result<String, OsError> {
        #[cfg(test)]
        let dies_then = self.broken();
        #[cfg(test)]
        if dies_then {
            self.converse(commands)?;
            self.signal(libc::SIGKILL);
        }
        self.converse(commands)
    }

    fn converse(&mut self, commands: &str) -> Result<String, OsError> {
        let question = format!("{commands}\nlist table inet {}\n{END_QUESTION}\n", self.name);
        let mut question = question.as_bytes();
        let (clock, mut said) = (Clock::start(), Vec::new());
        let end = clock.now() + self.patience;
        while !is_whole(&said) {
            let left = end.since(clock.now()).as_millis();
            if left == 0 {
                self.child.hangs = true;
                return Err(OsError::refused("`nft` does not answer"));
            }
            let ready = self.ready_within(!question.is_empty(), left)?;
            if ready[0] {
                question = self.tell(question)?;
            }
            if ready[1] {
                self.hear(&mut said)?;
            }
        }
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Waits until the child's input takes something, if there is something for it, or its output
    /// has something: which of these. At most `millis`.
    fn ready_within(&self, has_question: bool, millis: u64) -> Result<[bool; 2], OsError> {
        let of = |fd: i32, events| libc::pollfd { fd, events, revents: 0 };
        let stdin = self.child.stdin.as_ref().filter(|_| has_question);
        let mut polled = [
            of(stdin.map_or(-1, AsRawFd::as_raw_fd), libc::POLLOUT),
            of(self.output.as_raw_fd(), libc::POLLIN),
        ];
        let millis = libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX);
        // SAFETY: the array outlives the call, and its length is its own.
        let ready = check(unsafe { libc::poll(polled.as_mut_ptr(), 2, millis) });
        match ready {
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok([false; 2]),
            ready => {
                ready.map(|_| polled.map(|p| p.revents != 0)).or_cannot(|| "wait for `nft`".into())
            }
        }
    }

    /// Gives the child what it takes of a question; what is left of it.
    fn tell<'a>(&mut self, question: &'a [u8]) -> Result<&'a [u8], OsError> {
        let Some(pipe) = &mut self.child.stdin else { return Ok(&[]) };
        match pipe.write(question) {
            Err(e) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&e.kind()) => {
                Ok(question)
            }
            written => written.map(|n| &question[n..]).or_cannot(|| "speak to `nft`".into()),
        }
    }

    fn hear(&mut self, said: &mut Vec<u8>) -> Result<(), OsError> {
        let mut buf = [0; 4096];
        match self.output.read(&mut buf).or_cannot(|| "listen to `nft`".into())? {
            0 => Err(ended(said)),
            n => {
                said.extend_from_slice(&buf[..n]);
                Ok(())
            }
        }
    }

    #[cfg(test)]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Takes a step: the child dies, or hangs, if it is broken so; true: it is to die when it has
    /// done its work.
    #[cfg(test)]
    fn broken(&mut self) -> bool {
        let kind = crate::faults::step();
        match kind {
            Some(crate::faults::Kind::Fails) => self.signal(libc::SIGKILL),
            Some(crate::faults::Kind::Hangs) => {
                self.patience = crate::faults::PATIENCE;
                self.signal(libc::SIGSTOP);
            }
            Some(crate::faults::Kind::FailsWhenDone) | None => {}
        }
        kind == Some(crate::faults::Kind::FailsWhenDone)
    }

    #[cfg(test)]
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a child of this process that has not been waited for.
        unsafe { libc::kill(self.pid() as libc::pid_t, signal) };
    }
}

/// The last line of a child that has ended may say why.
fn ended(said: &[u8]) -> OsError {
    let said = String::from_utf8_lossy(said);
    match said.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
        Some(last) => OsError::refused(format!("`nft` ended before its table was made: {last}")),
        None => OsError::refused("`nft` ended before its table was made"),
    }
}

/// Does an answer end with the line that is the last of each?
fn is_whole(said: &[u8]) -> bool {
    let text = String::from_utf8_lossy(said);
    text.ends_with('\n') && text.lines().next_back().is_some_and(|line| line.starts_with(END))
}

fn refusal(complaint: &str) -> OsError {
    let reason = complaint.split("Error: ").nth(1).unwrap_or(complaint).trim();
    let error = OsError::refused(format!("nftables refused the interception rules: {reason}"));
    if reason.contains("not permitted") {
        error.mend("run as root or grant CAP_NET_ADMIN")
    } else {
        error.mend("`bentpipe doctor` shows which kernel feature is missing")
    }
}

/// Owned tables of a program that was just killed may live a moment longer.
fn table_name() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("bentpipe_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Each family, what `tproxy` calls it, and where the listener is in it.
const LISTENERS: [(&str, &str, &str); 2] = [("ipv4", "ip", "127.0.0.1"), ("ipv6", "ip6", "[::1]")];

pub(super) const PURE_SYN: &str = "tcp flags & (fin | syn | rst | ack) == syn";

/// One line, one transaction: the table with all it does.
pub(super) fn ruleset(table: &str, config: &InterceptConfig) -> String {
    let (tun, syn, port) = (&config.tun, config.syn_device(), config.listener_port);
    let marks = &config.marks;
    // Behind all that changes destinations, here (`questions`) or by others' rules.
    let mut out = format!(
        "add table inet {table} {{ flags owner; }}; \
         add chain inet {table} prerouting \
         {{ type filter hook prerouting priority dstnat + 1; policy accept; }}; \
         add set inet {table} carrier_ports {{ type inet_service; }}; "
    );
    out += &carrier_ports(table, config);
    let mut rule = |text: String| out += &format!("add rule inet {table} prerouting {text}; ");
    rule(format!(
        "iifname != {{ \"{tun}\", \"{syn}\" }} udp dport @carrier_ports fib daddr type local \
         meta mark set {:#x} accept",
        marks.carrier
    ));
    if config.own {
        // Where the kernel checks sources, an answer from a name server must not look as if it
        // belonged into the tunnel: the question had the carrier's mark.
        rule(format!(
            "iifname != {{ \"{tun}\", \"{syn}\" }} udp sport 53 socket mark {0:#x} \
             meta mark set {0:#x} accept",
            marks.carrier
        ));
    }
    let only_syn = PURE_SYN;
    for (family, verb, to) in LISTENERS {
        rule(format!(
            "iifname \"{syn}\" meta nfproto {family} {only_syn} \
             tproxy {verb} to {to}:{port} meta mark set {:#x} accept",
            marks.local
        ));
    }
    rule(format!("iifname \"{syn}\" accept"));
    if !config.lan.is_empty() {
        let lan = list(&config.lan.iter().map(|l| format!("\"{l}\"")).collect::<Vec<_>>());
        // A host uses a port again while its last connection is in TIME_WAIT here: such a SYN
        // has that socket, and packets that have one are not forwarded into the syn device.
        // TPROXY retires the socket and opens the connection at once, without a question, for
        // a server that answered less than a minute ago. A SYN for a connection that stands
        // meets its socket as at a server, and a host that forgot it resets it.
        for (family, verb, to) in LISTENERS {
            rule(format!(
                "iifname {lan} meta nfproto {family} {only_syn} socket transparent 1 \
                 tproxy {verb} to {to}:{port} meta mark set {:#x} accept",
                marks.local
            ));
        }
        // The kernel answers `fib` as for a packet of this host's own, which default routes
        // of the tunnel are not for. With the mark for those that are it says where a
        // host's packet goes. A mark that somebody else gave is asked with, and kept.
        let (inward, to_syns) = (marks.inward, format!("meta mark set {:#x} accept", marks.syn));
        let leads_in = format!("fib daddr . mark oifname \"{tun}\"");
        rule(format!("iifname {lan} {only_syn} meta mark != 0 {leads_in} {to_syns}"));
        rule(format!(
            "iifname {lan} {only_syn} meta mark 0 meta mark set {inward:#x} {leads_in} {to_syns}"
        ));
        rule(format!("iifname {lan} meta mark {inward:#x} meta mark set 0"));
    }
    // A pure SYN may reuse the addresses of a connection in TIME_WAIT: it opens a new one.
    let ours = format!("socket transparent 1 meta mark set {:#x} accept", marks.local);
    rule(format!("iifname != \"{tun}\" tcp flags & (fin | syn | rst | ack) != syn {ours}"));
    rule(format!("iifname != \"{tun}\" meta l4proto {{ icmp, ipv6-icmp }} {ours}"));
    out + &own_errors(table, config)
        + &own::chains(table, config)
        + &answers(table, config)
        + &questions(table, config)
        + &visitors::chains(table, config)
        + &guard::chains(table, config)
        + &masquerade(table, config)
}

/// The ports of carriers, in place of those before.
fn carrier_ports(table: &str, config: &InterceptConfig) -> String {
    let flush = format!("flush set inet {table} carrier_ports; ");
    if config.carrier_ports.is_empty() {
        return flush;
    }
    let ports = list(&config.carrier_ports);
    flush + &format!("add element inet {table} carrier_ports {ports}; ")
}

/// What comes out of the tunnel to this host itself is answered into the tunnel, also where
/// only a default route leads there, which this host's own traffic does not take. The
/// kernel's connection tracking knows what answers what; it is on for this only where there
/// is such a route, or where who comes from elsewhere is told apart ([`visitors`]).
fn answers(table: &str, config: &InterceptConfig) -> String {
    let (asked, out) = (format!("inet {table} asked"), format!("inet {table} answers"));
    let mut text = format!(
        "add chain {asked} {{ type filter hook prerouting priority mangle - 1; policy accept; }}; \
         add chain {out} {{ type route hook output priority mangle - 1; policy accept; }}; \
         flush chain {asked}; flush chain {out}; "
    );
    if !config.has_default() && !config.own {
        return text + &format!("delete chain {asked}; delete chain {out}; ");
    }
    let (tun, inward) = (&config.tun, config.marks.inward);
    // Errors about what is only forwarded are this host's own, too. There others' marks stay.
    for for_whom in ["fib daddr type local", "ct mark 0"] {
        text += &format!("add rule {asked} iifname \"{tun}\" {for_whom} ct mark set {inward:#x}; ");
    }
    text += &format!("add rule {out} meta mark 0 ct mark {inward:#x} meta mark set {inward:#x}; ");
    text
}

/// Hosts that ask this host itself for names ask a name server behind the tunnel instead, before
/// the rules that intercept see the packet. Link-local addresses are left out: with such a source
/// no question can go further. There are no chains where they would have the kernel track every
/// connection for nothing.
///
/// A SYN crosses the kernel twice, with the client's address and the server's the second time. It
/// is not tracked then, or there would be two connections with the same answers.
fn questions(table: &str, config: &InterceptConfig) -> String {
    let (asked, again) = (format!("inet {table} questions"), format!("inet {table} untracked"));
    let mut out = format!(
        "add chain {asked} {{ type nat hook prerouting priority dstnat; policy accept; }}; \
         add chain {again} {{ type filter hook prerouting priority raw; policy accept; }}; \
         flush chain {asked}; flush chain {again}; "
    );
    if config.dns.is_empty() || config.lan.is_empty() {
        return out + &format!("delete chain {asked}; delete chain {again}; ");
    }
    let lan = list(&config.lan.iter().map(|l| format!("\"{l}\"")).collect::<Vec<_>>());
    for server in &config.dns {
        let (to, family) = match server.is_ipv4() {
            true => ("ip", "meta nfproto ipv4"),
            false => ("ip6", "ip6 daddr != fe80::/10"),
        };
        out += &format!(
            "add rule {asked} iifname {lan} {family} meta l4proto {{ tcp, udp }} th dport 53 \
             fib daddr . iif type local dnat {to} to {server}; "
        );
    }
    out + &format!(
        "add rule {again} iifname \"{}\" tcp dport 53 {PURE_SYN} notrack; ",
        config.syn_device()
    )
}

/// When this host itself finds no way to a server (no neighbour answers, say), it tells
/// the client in whose name the program connects. That error belongs to the socket here,
/// or the connection would hang until TCP gives up minutes later. Those about TCP that
/// is not split go the same way and are lost with it; its senders time out.
fn own_errors(table: &str, config: &InterceptConfig) -> String {
    let local = config.marks.local;
    let mut out = format!(
        "add chain inet {table} output \
         {{ type route hook output priority mangle; policy accept; }}; \
         flush chain inet {table} output; "
    );
    // Towards a client that is behind a default route this host itself would take another
    // way; the error goes to no interface that such a client can be at.
    let elsewhere =
        config.lan.iter().chain([&"lo".to_owned()]).map(|i| format!("\"{i}\"")).collect::<Vec<_>>();
    let ways = match config.keeps_default() {
        true => format!("oifname != {}", list(&elsewhere)),
        false => format!("oifname \"{}\"", config.tun),
    };
    // The protocol of the packet in the error, behind 8 bytes of ICMP: TCP.
    for error in [
        "icmp type destination-unreachable icmp code { 0, 1, 13 } @th,136,8 6",
        "icmpv6 type destination-unreachable @th,112,8 6",
    ] {
        out += &format!("add rule inet {table} output {ways} {error} meta mark set {local:#x}; ");
    }
    out
}

/// Makes the masquerading chain what the configuration says; there is none where none is
/// needed, since it would have the kernel track every connection.
fn masquerade(table: &str, config: &InterceptConfig) -> String {
    let (chain, strays) = (format!("inet {table} postrouting"), format!("inet {table} strays"));
    let mut out = format!(
        "add chain {chain} {{ type nat hook postrouting priority srcnat; policy accept; }}; \
         add chain {strays} {{ type filter hook forward priority filter; policy accept; }}; \
         flush chain {chain}; flush chain {strays}; "
    );
    if config.masquerade.is_empty() {
        return out + &format!("delete chain {chain}; delete chain {strays}");
    }
    let (tun, syn) = (&config.tun, config.syn_device());
    for (v4, source) in [(true, "ip saddr"), (false, "ip6 saddr")] {
        let prefixes = without_covered(config.masquerade.iter().filter(|p| p.is_v4() == v4));
        let from = match prefixes.iter().any(|p| p.len() == 0) {
            // Every address: nft has no set element for that in all of its versions.
            true => format!("meta nfproto {}", if v4 { "ipv4" } else { "ipv6" }),
            false => format!("{source} {}", list(&prefixes)),
        };
        if !prefixes.is_empty() {
            let leaves = format!("iifname \"{tun}\" oifname != {{ \"{tun}\", \"{syn}\" }} {from}");
            out += &format!("add rule {chain} {leaves} masquerade; ");
            // What belongs to no connection has no other source, and would leave as it is.
            out += &format!("add rule {strays} {leaves} ct state invalid drop; ");
        }
    }
    out
}

/// Sets refuse elements that overlap.
pub(super) fn without_covered<'a>(prefixes: impl Iterator<Item = &'a IpPrefix>) -> Vec<IpPrefix> {
    let mut widest_first: Vec<IpPrefix> = prefixes.copied().collect();
    widest_first.sort_by_key(|p| (p.len(), p.addr()));
    let mut kept: Vec<IpPrefix> = Vec::new();
    for prefix in widest_first {
        if !kept.iter().any(|k| k.covers(&prefix)) {
            kept.push(prefix);
        }
    }
    kept
}

pub(super) fn list<T: ToString>(items: &[T]) -> String {
    format!("{{ {} }}", items.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{NetNs, root_alone};
    use crate::tun::Tun;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::sync::mpsc;
    use std::thread;

    /// Files that go with the test, also if that fails.
    struct Gone(Vec<PathBuf>);

    impl Drop for Gone {
        fn drop(&mut self) {
            for path in &self.0 {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Who takes over the gateway has its pipes, too.
    #[test]
    fn what_comes_through_the_pipe_has_nft_read_no_file_of_others() {
        if !root_alone() {
            return;
        }
        let ns = NetNs::unique("ostest", "deputy").unwrap();
        let files = ["open words", "hidden words"].map(|words| {
            let name = format!("bpostest-{}-{}", std::process::id(), &words[..4]);
            let path = std::env::temp_dir().join(name);
            fs::write(&path, words).unwrap();
            path
        });
        let modes = [0o644, 0o600];
        let _gone = Gone(files.to_vec());
        let said = ns.run(|| {
            let _tun = Tun::open("bpd0", 1500).unwrap();
            let mut table =
                Table::create(|name| ruleset(name, &InterceptConfig::new("bpd0", 1))).unwrap();
            let status = fs::read_to_string(format!("/proc/{}/status", table.pid())).unwrap();
            let line = |name: &str| status.lines().find(|l| l.starts_with(name)).unwrap();
            assert_eq!(line("Uid:"), "Uid:\t65534\t65534\t65534\t65534");
            assert_eq!(line("Groups:").trim(), "Groups:");
            for set in ["CapPrm", "CapEff", "CapAmb"] {
                assert!(line(set).ends_with("0000000000001000"), "{status}");
            }
            let mut all = String::new();
            for (path, mode) in files.iter().zip(modes) {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
                all += &table.ask(&format!("include \"{}\"", path.display())).unwrap();
            }
            all
        });
        assert!(said.contains("syntax error"), "it does include: {said}");
        assert!(!said.contains("hidden"), "{said}");
    }

    #[test]
    fn a_line_that_is_refused_is_no_answer_to_the_next() {
        if !root_alone() {
            return;
        }
        let ns = NetNs::unique("ostest", "refused").unwrap();
        ns.run(|| {
            let _tun = Tun::open("bpr0", 1500).unwrap();
            let mut table =
                Table::create(|name| ruleset(name, &InterceptConfig::new("bpr0", 1))).unwrap();
            let chain = format!("add chain inet {}", table.name);
            // The complaint quotes the line, and is more than one reading takes.
            let new = format!("{chain} new; ").repeat(300);
            for _ in 0..2 {
                let line = format!("{new}add rule inet {} none accept", table.name);
                let error = table.run(&line).unwrap_err().to_string();
                assert!(error.contains("refused the interception rules"), "{error}");
            }
            assert!(table.is_alive());
            for chain_name in ["first", "second"] {
                let listing = table.run(&format!("{chain} {chain_name}")).unwrap();
                assert!(listing.contains(&format!("chain {chain_name} {{")), "{listing}");
                assert!(!listing.contains("chain new"), "{listing}");
            }
        });
    }

    /// More than the 64 KiB that a pipe holds, of which the child takes nothing.
    #[test]
    fn a_child_that_hangs_takes_no_question_and_is_given_up_as_if_it_did_not_answer() {
        if !root_alone() {
            return;
        }
        let ns = NetNs::unique("ostest", "hung").unwrap();
        ns.run(|| {
            let _tun = Tun::open("bph0", 1500).unwrap();
            let mut table =
                Table::create(|name| ruleset(name, &InterceptConfig::new("bph0", 1))).unwrap();
            let pid = table.pid() as libc::pid_t;
            let chain = format!("add chain inet {}", table.name);
            let long = format!("{chain} new; ").repeat(4_000);
            assert!(table.run(&long).is_ok_and(|said| said.contains("chain new {")), "{chain}");
            table.patience = Duration::from_millis(500);
            // SAFETY: a child of this process that has not been waited for.
            unsafe { libc::kill(pid, libc::SIGSTOP) };
            let (done, over) = mpsc::channel::<()>();
            let end = thread::spawn(move || {
                if over.recv_timeout(std::time::Duration::from_secs(20)).is_err() {
                    // SAFETY: the same.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
            });
            let error = table.run(&long).unwrap_err().to_string();
            let _ = done.send(());
            end.join().unwrap();
            assert!(error.contains("`nft` does not answer"), "{error}");
            assert!(!table.is_alive());
        });
    }

    #[test]
    fn covered_prefixes_are_left_out_of_sets() {
        let all = ["10.2.0.0/16", "10.0.0.0/8", "192.0.2.0/24", "10.0.0.0/8"];
        let all: Vec<IpPrefix> = all.iter().map(|p| p.parse().unwrap()).collect();
        let kept = without_covered(all.iter()).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(kept, ["10.0.0.0/8", "192.0.2.0/24"]);
    }
}
