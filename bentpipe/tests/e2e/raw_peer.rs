//! A peer that has a key and says whatever a test likes, by a socket of its own.

use std::net::SocketAddr;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use link::PathId;
use link::handshake::{Offer, Params};
use link::keys::{Entropy, PresharedKey, PrivateKey, PublicKey};
use link::seal::TAG_LEN;
use link::tunnel::{MAX_KEY_LIFETIME, PacketKind, Tunnel, TunnelConfig};
use os::netns::NetNs;
use os::udp::{Transmit, UdpConfig};
use units::varint;

use crate::gateway::Keys;
use crate::harness::PATIENCE;

pub struct RawPeer {
    socket: UdpSocket,
    /// For many packets at once, from another port.
    many: os::udp::UdpSocket,
    to: SocketAddr,
    tunnel: Tunnel,
    begin: Instant,
    /// The lowest bit of its streams' numbers.
    parity: u64,
    /// The last that it gave a key.
    index: u32,
}

impl RawPeer {
    /// A peer with the key of `own`, in `ns`, that shakes hands with the gateway at `to`, to which
    /// it offers as much of everything as there is.
    pub fn connect(ns: &NetNs, own: &Keys, gateway: &Keys, to: &str) -> RawPeer {
        let socket = ns.run(|| UdpSocket::bind("0.0.0.0:0")).expect("a socket");
        socket.connect(to).expect("an address");
        let any = UdpConfig::new(([0, 0, 0, 0], 0).into());
        let many = ns.run(|| os::udp::UdpSocket::bind(&any)).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let local: PrivateKey = own.private.parse().expect("a key");
        let peer: PublicKey = gateway.public.parse().expect("a key");
        let parity = u64::from(peer < *local.public());
        let mut offer = Vec::new();
        for n in [9000, 1 << 40, 1 << 40, 1024, 16, 1 << 40, 0] {
            push_varint(&mut offer, n);
        }
        let address = to.parse::<SocketAddr>().expect("an address");
        let config = TunnelConfig {
            local,
            peer,
            preshared: PresharedKey::NONE,
            offer: Offer::new(true),
            params: Params::new(&offer).expect("it fits"),
            endpoint: Some(address.into()),
            key_lifetime: MAX_KEY_LIFETIME,
        };
        let seed = os::proc::entropy().expect("entropy");
        let tunnel = Tunnel::new(config, Entropy::new(seed));
        let mut peer = RawPeer {
            socket,
            many,
            to: address,
            tunnel,
            begin: Instant::now(),
            parity,
            index: 300,
        };
        let now = peer.now();
        peer.tunnel.connect(now);
        while !peer.tunnel.is_established() {
            assert!(peer.begin.elapsed() < PATIENCE, "the gateway does not answer");
            peer.shake_hands();
        }
        peer.say(&[0x01]);
        peer
    }

    fn now(&self) -> units::Instant {
        let since = units::Duration::from_std(self.begin.elapsed());
        units::Instant::ZERO + units::Duration::from_secs(1_000) + since
    }

    fn shake_hands(&mut self) {
        let now = self.now();
        let mut indices = || {
            self.index += 1;
            self.index
        };
        if let Some((_, message)) = self.tunnel.poll_transmit(now, &mut indices) {
            self.socket.send(message.as_bytes()).expect("sent");
        }
        let mut packet = [0; 2048];
        let Ok(n) = self.socket.recv(&mut packet) else { return };
        if let Some(PacketKind::Response { .. }) = PacketKind::of(&packet[..n]) {
            let from = self.socket.peer_addr().expect("connected");
            let now = self.now();
            let _ = self.tunnel.handle_response(now, from.into(), &packet[..n]);
        }
    }

    /// A packet of these frames; what comes back is not read.
    pub fn say(&mut self, frames: &[u8]) {
        let packet = self.sealed(frames);
        // A full buffer loses it, as a link does.
        let _ = self.socket.send(&packet);
    }

    /// So many packets of these frames, at most 64, in one call: they come as a run.
    pub fn say_often(&mut self, frames: &[u8], times: usize) {
        let mut payload = Vec::new();
        (0..times).for_each(|_| payload.extend(self.sealed(frames)));
        let segment = payload.len() / times;
        let _ = self.many.send(&Transmit { to: self.to, from: None, payload: &payload, segment });
    }

    fn sealed(&mut self, frames: &[u8]) -> Vec<u8> {
        let now = self.now();
        let head = self.tunnel.header_len(PathId::FIRST, 4).expect("a session");
        let mut packet = vec![0; head];
        packet.extend_from_slice(frames);
        packet.resize(packet.len() + TAG_LEN, 0);
        self.tunnel.seal_packet(now, PathId::FIRST, 0, 4, &mut packet).expect("a session");
        packet
    }

    /// The number on the wire of its n-th stream.
    pub fn stream(&self, n: u64) -> u64 {
        n * 2 + self.parity
    }
}

/// Appends a number as the link writes it.
pub fn push_varint(out: &mut Vec<u8>, n: u64) {
    let mut bytes = [0; varint::MAX_LEN];
    let len = varint::put(n, &mut bytes);
    out.extend_from_slice(&bytes[..len]);
}
