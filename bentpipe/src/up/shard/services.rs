//! Services' connections and streams: sockets between them and this shard's peers and hosts.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dial::money::Money;
use dial::tariff::Rates;
use link::PeerId;
use link::session::PathHealth;
use os::closing::Shared;
use os::poll::{Event as Polled, Interest};
use os::tcp::{Accepted as Taken, Stream, TcpOptions, pair};
use relay::{Caller, ConnectId, FlowId, ResetReason, Target, Via, datagram};
use service::message::{Accepted, Incoming, Link, LinkState, MAX_ADDRESSES};
use service::{Event, Reason};
use units::{Duration, Instant, IpPrefix};

use super::service_lines::{AGAIN, Dial, Told};
use super::{CONNECTS, Shard};
use crate::host::{Host, HostPort};
use crate::up::connections::{self, begin};
use crate::up::names::Purpose;
use crate::up::proxy::Asked;
use crate::up::services::line::{Answer, Line, Proxied, Sent, reason_of};
use crate::up::services::{Wish, Work};

/// What the kernel holds of a stream, on either side of it, for the gateway to read: what the link
/// sends in this time, within these bounds. A service that sends several answers on one stream
/// decides which is next, and what the kernel holds cannot be overtaken any more.
const AHEAD: Duration = Duration::from_millis(25);
const HELD: RangeInclusive<u64> = 8 << 10..=256 << 10;
/// A rate or a round trip that is another by less than its eighth is not news.
const NEWS: u64 = 8;

impl Shard {
    /// A service runs, or does not any more. What it had is over.
    pub fn set_service(&mut self, now: Instant, name: &str, line: Option<Arc<Line>>) {
        match &line {
            Some(line) => self.relay.start_service(name, line.works_offline()),
            None => self.relay.stop_service(name),
        }
        let lines = &mut self.services;
        lines.told.remove(name);
        match line {
            Some(line) => {
                lines.running.insert(name.to_owned(), line);
                let news = self.peers.iter().map(|peer| peer.id).collect();
                lines.told.insert(name.to_owned(), Told { news, ..Told::default() });
            }
            None => {
                lines.running.remove(name);
                // One that drains has its answers still.
                lines.streams.retain(|_, (line, _)| !line.is_gone());
                lines.backlog.retain(|(line, _)| !line.is_gone());
                lines.look_ups.retain(|_, (line, _)| !line.is_gone());
                let over = lines.dials.iter().filter(|(_, dial)| dial.line.is_gone());
                let over: Vec<_> = over.map(|(id, _)| *id).collect();
                for id in over {
                    self.services.dials.remove(&id);
                    self.relay.service_connect_failed(id);
                }
            }
        }
        self.services.wake_at(now);
    }

    /// Answers a request of a service.
    pub fn answer_service(&mut self, now: Instant, line: &Arc<Line>, answer: Answer) {
        self.services.answer(now, line, answer);
    }

    /// Gives an intercepted connection to a service, if a rule says so and the service can have
    /// it; else it is the caller's.
    pub(super) fn give(&mut self, now: Instant, taken: Taken) -> Result<(), Taken> {
        if self.is_noisy_connection(taken.client, taken.server) {
            return Err(taken);
        }
        let Some(via) = self.relay.via(now, taken.client, taken.server) else { return Err(taken) };
        let Some(line) = self.services.running.get(&via.service) else { return Err(taken) };
        let event = Event::Accepted(Accepted {
            id: line.next_id(),
            client: taken.client,
            server: taken.server,
            peer: self.peer_name(via.peer),
            class: self.class_name(&via),
            dscp: via.dscp,
            name: None,
        });
        let line = self.services.running[&via.service].clone();
        if !line.has_room() || !line.give(&event, b"", taken.stream.as_fd()) {
            line.counts.overflowed.fetch_add(1, Relaxed);
            return Err(taken);
        }
        self.relay.given(now, taken.client, taken.server);
        drop(line.share(taken.stream));
        Ok(())
    }

    /// Gives a client of the proxy to a service, if a rule says so and the service takes it; else
    /// it comes back.
    pub(super) fn give_proxied(
        &mut self,
        now: Instant,
        peer: PeerId,
        asked: Asked,
    ) -> Option<Asked> {
        let client = SocketAddr::new(asked.client.ip().to_canonical(), asked.client.port());
        let (server, name) = match &asked.target {
            Target::Address(server) => (*server, None),
            Target::Name(name, port) => ((Ipv4Addr::UNSPECIFIED, *port).into(), Some(name.clone())),
            Target::Service(..) => return Some(asked),
        };
        let Some(via) = self.relay.via_proxy(now, peer, client, server) else { return Some(asked) };
        let Some(line) = self.services.running.get(&via.service).cloned() else {
            return Some(asked);
        };
        if !line.takes_proxied() || !line.has_room() {
            return Some(asked);
        }
        let id = line.next_id();
        let (peer, class) = (self.peer_name(via.peer), self.class_name(&via));
        let accepted = Accepted { id, client, server, peer, class, dscp: via.dscp, name };
        let target = asked.target.clone();
        // From here on it is answered, as a host that is intercepted is: what fails resets it.
        let (stream, rest, first) = asked.grant()?;
        let (Ok(far), Ok(near)) = (stream.peer_addr(), stream.local_addr()) else { return None };
        line.note_proxied((far, near), id, Proxied { target, client, rest, early: first.len() });
        let event = Event::Accepted(accepted);
        if !line.give(&event, &first, stream.as_fd()) {
            line.counts.overflowed.fetch_add(1, Relaxed);
        }
        drop(line.share(stream));
        None
    }

    /// Gives a host's datagram to a service; false: it is to be carried.
    pub(super) fn give_datagram(&mut self, now: Instant, packet: &[u8]) -> bool {
        if self.services.running.is_empty() {
            return false;
        }
        let Some((client, server, bytes)) = datagram::parse(packet) else { return false };
        let Some(via) = self.relay.via_datagram(now, client, server) else { return false };
        // To somebody behind a link the service could not answer.
        if self.relay.is_behind_a_peer(client.ip()) {
            return false;
        }
        let Some(line) = self.services.running.get(&via.service) else { return false };
        let event = Event::Datagram { peer: self.peer_name(via.peer), client, server };
        if !line.has_room_for_datagrams() || line.send(&event, bytes, None) != Sent::Done {
            return false;
        }
        line.counts.datagrams.fetch_add(1, Relaxed);
        self.note_question(now, (client, server, bytes));
        true
    }

    /// Would the service be given the client's datagrams to this server? It speaks for no other
    /// address, and to nobody behind a link.
    fn is_datagram_of(
        &self,
        now: Instant,
        line: &Line,
        client: SocketAddr,
        server: SocketAddr,
    ) -> bool {
        let via = self.relay.via_datagram(now, client, server);
        let is_its = via.is_some_and(|via| via.service == line.name);
        is_its && !self.relay.is_behind_a_peer(client.ip())
    }

    /// Does what a service wants.
    pub fn work_for_service(&mut self, now: Instant, Work { line, wish }: Work) {
        let is_passed = matches!(wish, Wish::Pass { .. } | Wish::PassProxied { .. });
        if line.is_gone() && !is_passed {
            return; // It was asked by one that is no more.
        }
        match wish {
            Wish::Pass { stream, client, server, dscp, read } => {
                // Without a peer or memory for it the socket is dropped, which resets it.
                let Some(flow) = self.relay.open_passed(now, client, server, dscp) else { return };
                if !self.connections.add_with(&self.poller, flow, stream, read) {
                    self.relay.local_reset(now, flow, ResetReason::Exhausted);
                }
            }
            Wish::PassProxied { stream, it, read } => self.take_proxied(now, stream, it, read),
            Wish::Answer { client, server, bytes } => {
                if bytes.len() <= datagram::MAX_ANSWER
                    && self.is_datagram_of(now, &line, client, server)
                    && let Some(packet) = datagram::packet(server, client, &bytes)
                {
                    self.note_answer(now, (client, server, &bytes));
                    self.write_to_host(&packet);
                }
            }
            Wish::Onward { client, server, bytes } => {
                if self.is_datagram_of(now, &line, client, server)
                    && let Some(mut packet) = datagram::packet(client, server, &bytes)
                {
                    self.carry_packet(now, &mut packet, false);
                }
            }
            Wish::Open { request, peer, class, client, preface } => {
                let opened =
                    self.open_for_service(now, &line, &peer, class.as_deref(), client, &preface);
                let answer = match opened {
                    Ok((id, socket)) => {
                        line.counts.opened.fetch_add(1, Relaxed);
                        Answer { event: Event::Opened { request, id }, socket: Some(socket) }
                    }
                    Err(reason) => Answer::failed(request, reason),
                };
                self.services.answer(now, &line, answer);
            }
            Wish::Connect { request, peer, target, source } => {
                let target = match target.parse::<HostPort>() {
                    Ok(HostPort { host: Host::Ip(ip), port }) => Target::Address((ip, port).into()),
                    Ok(HostPort { host: Host::Name(name), port }) => Target::Name(name, port),
                    Err(_) => {
                        let answer = Answer::failed(request, Reason::Invalid);
                        return self.services.answer(now, &line, answer);
                    }
                };
                let Some(peer) = self.peer_named(&peer) else {
                    let answer = Answer::failed(request, Reason::NoSuchPeer);
                    return self.services.answer(now, &line, answer);
                };
                let id = self.relay.connect_for_service(now, peer, target, source);
                self.services.dials.insert(id, Dial { line, request, back: false, stream: None });
            }
            Wish::Resolve { request, peer, name } => self.look_up(now, line, request, &peer, &name),
            Wish::Back { request, client, server } => {
                self.connect_back(now, line, request, client, server);
            }
        }
    }

    fn open_for_service(
        &mut self,
        now: Instant,
        line: &Arc<Line>,
        peer: &str,
        class: Option<&str>,
        client: Option<SocketAddr>,
        preface: &[u8],
    ) -> Result<(u64, Shared), Reason> {
        if preface.len() > link::wire::MAX_PREFACE {
            return Err(Reason::Invalid);
        }
        let known = self.peers.called(peer);
        let known = known.ok_or(Reason::NoSuchPeer)?;
        let class = match class {
            Some(name) => Some(known.config.traffic.class_named(name).ok_or(Reason::Invalid)?),
            None => None,
        };
        let (peer, name) = (known.id, line.name.as_str());
        let (ours, theirs) = self.stream_pair(peer).ok_or(Reason::Exhausted)?;
        let opened = self.relay.open_to_service(now, (peer, name), client, preface, class);
        let flow = opened.map_err(reason_of)?;
        if !self.connections.add(&self.poller, flow, ours, false) {
            self.relay.local_reset(now, flow, ResetReason::Exhausted);
            return Err(Reason::Exhausted);
        }
        let (id, relay) = (line.next_id(), &self.relay);
        self.services.add_stream(flow, line, id, |flow| relay.flow_peer(flow).is_some());
        Ok((id, line.share(theirs)))
    }

    /// The peer's service opened a stream to the one here.
    pub(super) fn serve_stream(
        &mut self,
        now: Instant,
        flow: FlowId,
        name: &str,
        preface: &[u8],
        client: Option<SocketAddr>,
    ) -> Result<(), ResetReason> {
        let line = self.services.running.get(name).cloned().ok_or(ResetReason::NoSuchService)?;
        let peer = self.relay.flow_peer(flow).ok_or(ResetReason::PeerRestarted)?;
        let peer_name = self.peer_name(peer);
        if !line.has_room_for(&peer_name) {
            return Err(ResetReason::Exhausted);
        }
        let (ours, theirs) = self.stream_pair(peer).ok_or(ResetReason::Exhausted)?;
        if !self.connections.add(&self.poller, flow, ours, false) {
            return Err(ResetReason::Exhausted);
        }
        let id = line.next_id();
        let event = Event::Incoming(Incoming { id, peer: peer_name, client });
        let theirs = line.share(theirs);
        if line.send(&event, preface, Some(theirs.as_fd())) != Sent::Done {
            self.connections.abort(flow);
            return Err(ResetReason::Exhausted);
        }
        line.counts.incoming.fetch_add(1, Relaxed);
        let relay = &self.relay;
        self.services.add_stream(flow, &line, id, |flow| relay.flow_peer(flow).is_some());
        self.relay.connected(flow);
        self.services.wake_at(now + AGAIN);
        Ok(())
    }

    /// Asks for a name's addresses on behalf of a peer's hosts.
    fn look_up(&mut self, now: Instant, line: Arc<Line>, request: u64, peer: &str, name: &str) {
        let lines = &mut self.services;
        lines.last_look_up += 1;
        let (of, peer) = (lines.last_look_up, self.peers.called(peer).map(|p| p.id));
        let refused = match peer {
            None => Some(Reason::NoSuchPeer),
            // The peer's other names wait already.
            Some(peer) if !self.names.ask(peer, Purpose::Addresses(of), name, 0) => {
                Some(Reason::Exhausted)
            }
            Some(_) => None,
        };
        match refused {
            Some(reason) => self.services.answer(now, &line, Answer::failed(request, reason)),
            None => drop(self.services.look_ups.insert(of, (line, request))),
        }
    }

    /// A name has these addresses, or none.
    pub(super) fn tell_addresses(&mut self, now: Instant, of: u64, addresses: &[SocketAddr]) {
        let Some((line, request)) = self.services.look_ups.remove(&of) else { return };
        let addresses: Vec<_> = addresses.iter().map(SocketAddr::ip).take(MAX_ADDRESSES).collect();
        let answer = match addresses.is_empty() {
            true => Answer::failed(request, Reason::NoSuchName),
            false => Answer { event: Event::Resolved { request, addresses }, socket: None },
        };
        self.services.answer(now, &line, answer);
    }

    /// Connects to a server for a service.
    pub(super) fn connect_for(
        &mut self,
        now: Instant,
        id: ConnectId,
        target: Target,
        source: Option<SocketAddr>,
    ) {
        let caller = Caller::Service(id);
        let outcome = match target {
            Target::Address(to) => self.dial(id, to, source),
            Target::Name(name, port) => self.ask_for_server(caller, &name, port, source),
            Target::Service(..) => Err(ResetReason::Denied),
        };
        if let Err(reason) = outcome {
            self.refuse_dial(now, id, reason);
        }
    }

    /// Begins a connection to a server whose address is permitted.
    pub(super) fn dial(
        &mut self,
        id: ConnectId,
        to: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<(), ResetReason> {
        let mark = self.mark_for(Caller::Service(id), to);
        self.begin_dial(id, to, source, mark)
    }

    /// Connects to a host as the server of a connection that the service was given.
    fn connect_back(
        &mut self,
        now: Instant,
        line: Arc<Line>,
        request: u64,
        client: SocketAddr,
        server: SocketAddr,
    ) {
        let Some(id) = self.relay.connect_back(now, &line.name, client, server) else {
            return self.services.answer(now, &line, Answer::failed(request, Reason::Denied));
        };
        self.services.dials.insert(id, Dial { line, request, back: true, stream: None });
        // Any port of the server's: its own may be taken.
        let source = SocketAddr::new(server.ip(), 0);
        if let Err(reason) = self.begin_dial(id, client, Some(source), None) {
            self.refuse_dial(now, id, reason);
        }
    }

    fn begin_dial(
        &mut self,
        id: ConnectId,
        to: SocketAddr,
        source: Option<SocketAddr>,
        mark: Option<u32>,
    ) -> Result<(), ResetReason> {
        // Its service may have ended while the name was asked for.
        let Some(dial) = self.services.dials.get_mut(&id) else { return Ok(()) };
        let stream = begin(to, source, mark, &TcpOptions::default())?;
        let token = CONNECTS | id.to_u64();
        if self.poller.add(&stream, token, Interest::WRITE.edge()).is_err() {
            return Err(ResetReason::Exhausted);
        }
        dial.stream = Some((stream, to));
        Ok(())
    }

    /// A connection for a service stands, or does not.
    pub(super) fn on_dial(&mut self, now: Instant, event: Polled) {
        let id = ConnectId::from_u64(event.token & !CONNECTS);
        let Some(dial) = self.services.dials.get(&id) else { return };
        let Some((stream, to)) = dial.stream.as_ref().filter(|_| event.writable || event.failed)
        else {
            return;
        };
        if let Err(failure) = stream.outcome() {
            let reason = connections::reason_of_failure(&failure);
            return self.refuse_dial(now, id, reason);
        }
        let to = *to;
        // The peer's rules may be others by now, or the peer gone.
        if !dial.back && !self.relay.permits(Caller::Service(id), to.ip()) {
            return self.refuse_dial(now, id, ResetReason::Denied);
        }
        let Some(Dial { line, request, stream: Some((stream, _)), .. }) =
            self.services.dials.remove(&id)
        else {
            return;
        };
        // The service's copy would keep it watched.
        let _ = self.poller.remove(&stream);
        self.relay.service_connected(id);
        line.counts.connected.fetch_add(1, Relaxed);
        let local = stream.local_addr().unwrap_or(to);
        let event = Event::Connected { request, local, server: to };
        let socket = Some(line.share(stream));
        self.services.answer(now, &line, Answer { event, socket });
    }

    /// A connection for a service comes to nothing.
    pub(super) fn refuse_dial(&mut self, now: Instant, id: ConnectId, reason: ResetReason) {
        self.relay.service_connect_failed(id);
        if let Some(Dial { line, request, .. }) = self.services.dials.remove(&id) {
            self.services.answer(now, &line, Answer::failed(request, reason_of(reason)));
        }
    }

    /// Nothing that services connected for the peer, or are connecting, stands any more.
    pub(super) fn end_service_connections(&mut self, now: Instant, id: PeerId, name: &str) {
        let of_peer = |dial: &ConnectId| self.relay.caller_peer(Caller::Service(*dial)) == Some(id);
        for dial in self.services.dials.keys().copied().filter(of_peer).collect::<Vec<_>>() {
            self.refuse_dial(now, dial, ResetReason::PeerRestarted);
        }
        self.services.narrow(now, name, vec![IpPrefix::ALL_V4, IpPrefix::ALL_V6]);
    }

    /// Answers that wait, and news of links.
    pub(super) fn settle_services(&mut self, now: Instant) {
        if self.services.due.is_none_or(|at| at > now) {
            return;
        }
        self.services.due = None;
        self.services.flush(now);
        self.tell_links(now);
    }

    /// Something is new about the links to these peers, perhaps.
    pub(super) fn look_at_links(&mut self, now: Instant, peers: impl IntoIterator<Item = PeerId>) {
        if self.services.running.is_empty() {
            return;
        }
        for id in peers {
            for told in self.services.told.values_mut() {
                told.news.insert(id);
            }
        }
        self.services.wake_at(now);
    }

    fn tell_links(&mut self, now: Instant) {
        let lines: Vec<_> = self.services.running.values().cloned().collect();
        for line in lines {
            let Some(told) = self.services.told.get_mut(&line.name) else { continue };
            let mut told = std::mem::take(told);
            self.tell_links_to(now, &line, &mut told);
            self.services.told.insert(line.name.clone(), told);
        }
    }

    fn tell_links_to(&mut self, now: Instant, line: &Arc<Line>, told: &mut Told) {
        let mut later = BTreeSet::new();
        while let Some(id) = told.news.pop_first() {
            let Some(link) = self.link_for(now, &line.name, id) else {
                told.links.remove(&id);
                continue;
            };
            if !link.service && self.relay.may_have_service_later(now, id, &line.name) {
                later.insert(id);
            }
            if told.links.get(&id).is_some_and(|told| !is_news(told, &link)) {
                continue;
            }
            if line.waiting() > 0 || line.send(&Event::Link(link.clone()), b"", None) != Sent::Done
            {
                later.insert(id);
                self.services.wake_at(now + AGAIN.times(50));
                break;
            }
            told.links.insert(id, link);
        }
        told.news.append(&mut later);
    }

    /// Has every service heard of all links?
    #[cfg(test)]
    pub(super) fn services_have_told(&self) -> bool {
        self.services.told.values().all(|told| told.news.is_empty())
    }

    fn link_for(&self, now: Instant, service: &str, id: PeerId) -> Option<Link> {
        let (peer, endpoint) = (self.peers.with_id(id)?, &self.relay.endpoint);
        let session = endpoint.session(id);
        let is_up = endpoint.is_established(id) && !self.is_line_down(id);
        let state = match (is_up, endpoint.health(id)) {
            (true, PathHealth::Alive) => LinkState::Up,
            (true, _) => LinkState::Silent,
            (false, _) => LinkState::Down,
        };
        let rates = self.rates_of(now, id);
        let per_megabyte = rates.map(|rates| rates.per_megabyte).filter(|price| !price.is_zero());
        Some(Link {
            peer: peer.config.name.clone(),
            state,
            rate: endpoint.rate(id).as_bps(),
            rtt_us: session.map_or(0, |s| s.rtt().as_micros()),
            service: self.relay.peer_has_service(now, id, service),
            price: per_megabyte.map(Money::as_micros),
            billed_by_time: rates.is_some_and(Rates::bills_time),
            refuses_quic: peer.config.refuse_quic,
            uncompressed: !peer.config.compress
                || session
                    .and_then(link::session::Session::codec)
                    .is_some_and(|codec| codec.history == 0),
        })
    }

    fn peer_named(&self, name: &str) -> Option<PeerId> {
        self.peers.called(name).map(|p| p.id)
    }

    fn peer_name(&self, id: PeerId) -> String {
        let known = self.peers.with_id(id);
        known.map(|p| p.config.name.clone()).unwrap_or_default()
    }

    fn class_name(&self, via: &Via) -> String {
        let known = self.peers.with_id(via.peer);
        known.map(|p| p.config.traffic.class_name(via.class).to_owned()).unwrap_or_default()
    }

    /// Asks for the addresses of a server.
    pub(super) fn ask_for_server(
        &mut self,
        caller: Caller,
        name: &str,
        port: u16,
        source: Option<SocketAddr>,
    ) -> Result<(), ResetReason> {
        let peer = self.relay.caller_peer(caller).ok_or(ResetReason::PeerRestarted)?;
        match self.names.ask(peer, Purpose::Server(caller, source), name, port) {
            true => Ok(()),
            false => Err(ResetReason::Exhausted),
        }
    }

    /// The gateway's end of a stream to this peer, and the service's.
    fn stream_pair(&self, peer: PeerId) -> Option<(Stream, Stream)> {
        let held = self.relay.endpoint.rate(peer).bytes_in(AHEAD).0;
        let held = held.clamp(*HELD.start(), *HELD.end()) as usize;
        // The kernel would let a service write megabytes ahead of the link. A segment that fills a
        // small buffer would close its window until a timer asks.
        let longest_segment = Some((held / 8) as u32);
        let receive = TcpOptions { receive_buffer: Some(held), ..TcpOptions::default() };
        let send = TcpOptions { send_buffer: Some(held), ..TcpOptions::default() };
        let ours = TcpOptions { longest_segment, ..receive };
        let made = pair(&ours, &TcpOptions { longest_segment, ..send });
        made.inspect_err(|why| crate::log!(Warn, "a service gets no stream: no sockets", why = why))
            .ok()
    }
}

/// Does the link differ from what was told of it?
fn is_news(told: &Link, link: &Link) -> bool {
    let apart = |a: u64, b: u64| a.abs_diff(b) > a.max(b) / NEWS;
    told.peer != link.peer
        || told.state != link.state
        || told.service != link.service
        || told.price != link.price
        || told.billed_by_time != link.billed_by_time
        || told.refuses_quic != link.refuses_quic
        || told.uncompressed != link.uncompressed
        || apart(told.rate, link.rate)
        || apart(told.rtt_us, link.rtt_us)
}
