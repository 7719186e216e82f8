//! Two gateways over a pipe without delay, for tests.

use std::net::SocketAddr;

use link::endpoint::{Endpoint, EndpointConfig};
use link::keys::{PresharedKey, PrivateKey};
use link::session::LinkConfig;
use link::{PeerConfig, PeerId};
use units::{BitRate, ByteCount, Duration, Instant};

use crate::{Action, FlowId, Open, Policy, Relay, Verdict};

/// The gateways, the near one first.
pub struct Gateways {
    pub now: Instant,
    pub sides: [Relay; 2],
    /// What the near gateway's client was written.
    pub written: Vec<Vec<u8>>,
    /// What the far gateway was to connect.
    pub asked: Vec<FlowId>,
    /// And as which sources, both gateways.
    pub asked_as: Vec<Option<SocketAddr>>,
    /// Everything else that the near gateway was to do.
    pub others: Vec<Action>,
}

/// What each calls the other.
pub const PEER: PeerId = PeerId::from_index(0);

/// Where the gateway of a side is.
pub fn address(side: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, side as u8 + 1], 4500))
}

/// A link on which streams are not compressed.
pub fn link() -> LinkConfig {
    LinkConfig {
        bit_errors: units::Ratio::ZERO,
        rate_mode: Default::default(),
        headers: true,
        classes: Default::default(),
        queue: Default::default(),
        send_rate: BitRate::from_mbps(10),
        receive_rate: BitRate::from_mbps(10),
        rtt: Duration::from_millis(100),
        mtu: 1500,
        packet: 1500,
        overhead: 0,
        memory: ByteCount(8 << 20),
        stream_buffer: None,
        max_streams: 5000,
        history: ByteCount(0),
        dedup: false,
        facts: Default::default(),
    }
}

impl Gateways {
    pub fn new(open: Open) -> Gateways {
        let mut pair = Gateways::apart([link(), link()], |policy| policy.open = open);
        pair.meet();
        pair
    }

    /// Gateways that believe this of their link and have not met yet; what they do for
    /// each other is as `change` makes it.
    pub fn apart(links: [LinkConfig; 2], change: impl Fn(&mut Policy)) -> Gateways {
        let keys = [1u8, 2].map(|n| PrivateKey::from_bytes([n; 32]));
        let now = Instant::from_nanos(1);
        let sides = [0, 1].map(|side| {
            let mut relay = Relay::new(Endpoint::new(EndpointConfig {
                private_key: keys[side].clone(),
                seed: [side as u8 + 7; 32],
                hardware_aes: false,
                initiations_per_second: 1000,
                key_lifetime: link::endpoint::MAX_KEY_LIFETIME,
                fresh: None,
            }));
            let config = PeerConfig {
                public_key: *keys[1 - side].public(),
                preshared_key: PresharedKey::NONE,
                endpoint: Some(address(1 - side).into()),
                link: links[side].clone(),
                keepalive: None,
            };
            let mut policy = Policy {
                routes: vec![["10.2.0.0/16", "10.1.0.0/16"][side].parse().unwrap()],
                allow: vec!["10.0.0.0/8".parse().unwrap()],
                keep_source: true,
                fast_ports: vec![80],
                ..Policy::default()
            };
            change(&mut policy);
            relay.add_peer(now, config, policy).unwrap();
            relay
        });
        let (written, asked, others) = (vec![], vec![], vec![]);
        Gateways { now, sides, written, asked, asked_as: vec![], others }
    }

    /// The link comes up.
    pub fn meet(&mut self) {
        self.pass(Duration::from_secs(2));
        assert!(self.sides[0].endpoint.is_established(PEER));
    }

    /// Time passes, millisecond by millisecond, and packets cross at once.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        let mut buf = [0; 2048];
        while self.now < until {
            self.now += Duration::from_millis(1);
            for side in 0..2 {
                self.sides[side].handle_timeout(self.now);
                while let Some(t) = self.sides[side].poll_transmit(self.now, &mut buf) {
                    let packet = &mut buf[..t.len];
                    self.sides[1 - side].handle_carrier(self.now, self.now, address(side), packet);
                }
                self.act(side);
            }
        }
    }

    pub fn act(&mut self, side: usize) {
        while let Some(action) = self.sides[side].poll_action(self.now) {
            match action {
                Action::ToClient(packet) => self.written.push(packet),
                Action::Connect { flow, source, .. } => {
                    self.asked.push(flow);
                    self.asked_as.push(source);
                }
                other if side == 0 => self.others.push(other),
                Action::PeerReset(flow, _) => self.sides[1].closed(self.now, flow),
                _ => {}
            }
        }
    }

    pub fn knock(&mut self, packet: &[u8]) -> Verdict {
        let verdict = self.sides[0].handle_tun(self.now, &mut packet.to_vec(), true);
        self.pass(Duration::from_millis(5));
        verdict
    }

    pub fn near(&self) -> &Relay {
        &self.sides[0]
    }
}
