//! Clients whose SYN waits for the far side's answer: what their gateway writes back to
//! them, and what their systems do about it.

use std::net::{IpAddr, SocketAddr};

use relay::packet::{self, Packet};
use relay::{FlowId, ResetReason, Verdict};
use units::Duration;

use crate::check::Failure;
use crate::host::Host;
use crate::plan::Answer;
use crate::traffic::{SYN_WAIT, address, target};
use crate::world::{Happening, World};

/// SYNs that a client sends: Linux' tcp_syn_retries, and the first. It gives up when the
/// next one would be due: after 127 s.
const SYNS: u32 = 7;
const TCP: u8 = 6;

impl World<'_> {
    /// A client sends its first SYN.
    pub(crate) fn knock(&mut self, index: usize) -> Result<(), Failure> {
        let orphan = self.deaths > 0 && !self.is_one_session();
        let talk = &mut self.talks[index];
        let host = Host::new(talk.plan.hosts[0], talk.patterns[0]);
        talk.hosts[0] = Some(host);
        talk.survived_a_death = orphan;
        self.open_hosts += 1;
        self.report.connections += 1;
        self.send_syn(index, 0)
    }

    /// A client sends its SYN, for the first time or again, or gives up.
    pub(crate) fn send_syn(&mut self, index: usize, before: u32) -> Result<(), Failure> {
        let talk = &self.talks[index];
        let node = talk.plan.node;
        let waits =
            talk.hosts[0].as_ref().is_some_and(|h| !h.connected && !h.is_over() && !h.shaking);
        if !waits {
            return Ok(());
        }
        // Some are killed a second after they began.
        let impatient = (self.plan.seed + index as u64).is_multiple_of(5);
        let limit = if impatient { 1 } else { SYNS };
        if before >= limit {
            if let Some(host) = &mut self.talks[index].hosts[0] {
                host.gave_up = true;
            }
            self.lose(index, 0, "it gave up before the server stood");
            return Ok(());
        }
        let wait = Duration::from_secs(1 << before);
        self.set(self.now + wait, Happening::Syn(index, before + 1));
        let (client, server) = self.addresses(index);
        let mut packet = packet::syn(client, server, index as u32);
        self.trace(|| format!("connection {index}: SYN {before}"));
        let Some(relay) = &mut self.nodes[node].relay else { return Ok(()) };
        let local = self.now + self.clocks[node];
        let verdict = relay.handle_tun(local, &mut packet, true);
        if verdict == Verdict::Pending {
            let talk = &mut self.talks[index];
            let before = talk.pending_since.replace(local);
            talk.forgotten |= before.is_some_and(|t| local.since(t) >= SYN_WAIT);
        }
        match verdict {
            // Answered at once: as expected of a server that answered lately.
            Verdict::Intercept => self.shake(index),
            Verdict::Pending | Verdict::Dropped | Verdict::Refused => Ok(()),
            Verdict::Sent => self.fail(format!("connection {index}: its SYN crossed the link")),
        }
    }

    fn addresses(&self, index: usize) -> (SocketAddr, SocketAddr) {
        let plan = &self.talks[index].plan;
        let relay::Target::Address(server) = target(plan, index) else {
            unreachable!("clients with names send no SYN")
        };
        (address(plan.node, index, 40_000), server)
    }

    /// A gateway's clock leapt: the clients that wait there have waited too long.
    pub(crate) fn forget_clients(&mut self, node: usize) {
        for talk in self.talks.iter_mut().filter(|t| t.plan.node == node) {
            let waits = talk.hosts[0].as_ref().is_some_and(|h| !h.connected);
            talk.forgotten |= waits && talk.pending_since.is_some();
        }
    }

    /// The gateway's kernel takes a SYN: the client will have finished its handshake soon.
    fn shake(&mut self, index: usize) -> Result<(), Failure> {
        let Some(host) = &mut self.talks[index].hosts[0] else { return Ok(()) };
        if !std::mem::replace(&mut host.shaking, true) {
            let soon = Duration::from_millis(index as u64 * 37 % 50);
            self.set(self.now + soon, Happening::Shakes(index));
        }
        Ok(())
    }

    /// A client's handshake is done: its gateway accepts it.
    pub(crate) fn join(&mut self, index: usize) -> Result<(), Failure> {
        let node = self.talks[index].plan.node;
        let (client, server) = self.addresses(index);
        let Some(host) = &mut self.talks[index].hosts[0] else { return Ok(()) };
        if !std::mem::take(&mut host.shaking) || host.is_over() {
            return Ok(()); // Its gateway died meanwhile.
        }
        let Some(relay) = &mut self.nodes[node].relay else { return Ok(()) };
        let Some(flow) = relay.accept(self.now + self.clocks[node], client, server) else {
            self.lose(index, 0, "its gateway lost the stream");
            let talk = &self.talks[index];
            let full = self.plan.max_streams.iter().any(|n| *n < 100);
            return match talk.survived_a_death || full {
                true => Ok(()),
                false => self.fail(format!("connection {index} was reset as it was accepted")),
            };
        };
        host.flow = Some(flow);
        host.connected = true;
        self.nodes[node].flows.insert(flow, index);
        self.trace(|| format!("connection {index} is accepted at node {node} as {flow:?}"));
        self.serve_flow(node, flow)
    }

    /// The peer gave a flow up. A server that has not answered yet is not waited for.
    pub(crate) fn peer_reset(&mut self, node: usize, flow: FlowId) -> Result<(), Failure> {
        let index = self.nodes[node].flows.get(&flow).copied();
        let Some(index) = index.filter(|i| {
            let talk = &self.talks[*i];
            talk.node(1) == node && talk.hosts[1].as_ref().is_some_and(|h| !h.connected)
        }) else {
            return self.serve_flow(node, flow);
        };
        if let Some(relay) = &mut self.nodes[node].relay {
            relay.closed(self.now + self.clocks[node], flow);
        }
        self.detach(index, 1);
        self.lose(index, 1, "its client gave up");
        Ok(())
    }

    /// A gateway writes a packet to a client: its own SYN, which the gateway's kernel then
    /// answers, or what ends its attempt.
    pub(crate) fn write_to_client(&mut self, node: usize, bytes: &[u8]) -> Result<(), Failure> {
        let Some(packet) = Packet::parse(bytes) else {
            return self.fail(format!("node {node} wrote no packet: {bytes:?}"));
        };
        let opens = packet.opens(bytes);
        let client = opens.map_or(packet.destination, |(client, _)| client.ip());
        let index = match client {
            IpAddr::V4(a) => usize::from(a.octets()[2]) << 8 | usize::from(a.octets()[3]),
            IpAddr::V6(_) => return self.fail("a client that is not there"),
        };
        let waits = self.talks[index].hosts[0].as_ref().is_some_and(|h| !h.connected);
        if opens.is_some() {
            let server = self.talks[index].hosts[1].as_ref();
            if server.is_none_or(|h| !h.connected) {
                return self.fail(format!("connection {index} was granted, not by the server"));
            }
            let gone = self.talks[index].hosts[0].as_ref().is_none_or(Host::is_over);
            return if waits && !gone { self.shake(index) } else { Ok(()) };
        }
        let fine = match (self.talks[index].plan.answer.0, bytes[9]) {
            (Answer::Refuse(ResetReason::Refused), TCP) => true,
            (Answer::Refuse(ResetReason::Icmp(code)), 1) => bytes[20..22] == [3, code],
            // The server stood, and was gone again before that was heard.
            (Answer::Accept, TCP) => {
                let full = self.plan.max_streams.iter().any(|n| *n < 100);
                full || self.talks[index].forgotten
                    || self.talks[index].hosts[1].as_ref().is_some_and(|h| h.gave_up)
            }
            (_, TCP) => self.plan.max_streams.iter().any(|n| *n < 100),
            _ => false,
        };
        if !fine {
            return self.fail(format!("connection {index} was refused without reason: {bytes:?}"));
        }
        self.lose(index, 0, "it was refused");
        Ok(())
    }
}
