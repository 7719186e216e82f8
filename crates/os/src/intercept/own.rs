//! Connections of this host's own that are split, too.
//!
//! ```text
//!             SYN                          back, as a LAN's               accepted
//!  a socket ───────► output ─► syn device ─► program ─► syn device ─► TPROXY ─► listener
//!   of this host    (mark)                                                       │
//!             ◄──────────────── all further packets, by lo ──────────────────────┘
//! ```
//!
//! Two kinds of sockets are meant: with [`InterceptConfig::own`] those of all programs here;
//! with [`InterceptConfig::onward`] those that the program itself connects for one peer and
//! that lead behind another ([`Marks::onward`]), so that they are split on the next link.
//!
//! A SYN that would leave by the tunnel gets the mark that leads into the syn device, and its
//! connection a mark of its own: by that the packets of both directions are delivered here,
//! where the two sockets are. That mark is not [`Marks::local`], whose rule for lo answers
//! the checks of sources. A socket's address may be foreign (`source = "keep"`), so answers
//! that the program writes in a server's name are delivered here by the connection's mark.
//!
//! Everything else that this host sends takes the way that its routes say. The carrier is
//! UDP with a mark of its own and never meant.

use std::collections::BTreeSet;
use std::fs;

use super::config::InterceptConfig;
use crate::OsError;
use crate::error::OrCannot;
use crate::tun::Tun;

impl InterceptConfig {
    /// Are there connections of this host's own to be split?
    fn splits_own(&self) -> bool {
        self.own || self.onward
    }
}

/// The chains that do it, made what the configuration says: none where nothing is to be
/// done, since they have the kernel track every connection.
pub(super) fn chains(table: &str, config: &InterceptConfig) -> String {
    let (out, back) = (format!("inet {table} own"), format!("inet {table} own_back"));
    let mut text = format!(
        "add chain {out} {{ type route hook output priority mangle; policy accept; }}; \
         add chain {back} {{ type filter hook prerouting priority mangle - 1; policy accept; }}; \
         flush chain {out}; flush chain {back}; "
    );
    if !config.splits_own() {
        return text + &format!("delete chain {out}; delete chain {back}; ");
    }
    let (tun, syn, marks) = (&config.tun, config.syn_device(), &config.marks);
    let pure_syn = "tcp flags & (fin | syn | rst | ack)";
    let whose = match config.own {
        true => format!("meta mark != {{ {:#x}, {:#x} }}", marks.unsplit, marks.carrier),
        false => format!("meta mark {:#x}", marks.onward),
    };
    let to_syns = format!("ct mark set {:#x} meta mark set {:#x} accept", marks.own, marks.syn);
    let to_here = format!("meta mark set {:#x} accept", marks.own);
    let mut rule = |chain: &str, rule: String| text += &format!("add rule {chain} {rule}; ");
    rule(&out, format!("oifname \"{tun}\" {pure_syn} == syn {whose} {to_syns}"));
    // A SYN that is put back passes here no more: what is left are the further segments.
    rule(&out, format!("ct mark {:#x} {pure_syn} != syn {to_here}", marks.own));
    let delivered = format!("meta mark set {:#x} accept", marks.local);
    for kind in [format!("{pure_syn} != syn"), "meta l4proto { icmp, ipv6-icmp }".into()] {
        rule(&back, format!("iifname \"{syn}\" ct mark {:#x} {kind} {delivered}", marks.own));
    }
    text
}

/// The selectors of the rules for the marks above; `local_table` delivers here.
pub(super) fn rules(config: &InterceptConfig, local_table: u32) -> BTreeSet<String> {
    let rule = format!("from all fwmark {:#x} lookup {local_table}", config.marks.own);
    config.splits_own().then_some(rule).into_iter().collect()
}

/// Lets SYNs with an address of this host's come back from the syn device.
pub(super) fn accept_own_addresses(syns: &Tun) -> Result<(), OsError> {
    let path = format!("/proc/sys/net/ipv4/conf/{}/accept_local", syns.name());
    fs::write(path, "1")
        .or_cannot(|| format!("let this host's own connections through {}", syns.name()))
}
