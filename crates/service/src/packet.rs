//! One message as one packet:
//!
//! ```text
//! JSON object, at most 4,096 bytes, without line ends   [0x0a   bytes]
//! ```
//!
//! at most [`MAX_PACKET`] bytes in all (S-PK-1).

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest packet.
pub const MAX_PACKET: usize = 65_536;
/// The longest JSON text in one.
pub const MAX_JSON: usize = 4096;

/// Why a packet is none, or cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Longer than a packet, or its JSON than may be.
    #[error("it is longer than a packet of the service protocol may be")]
    TooLong,
    /// Not JSON, or not a message.
    #[error("it is no message of the service protocol")]
    NoMessage,
}

/// The packet of `message` with `bytes` behind it.
///
/// # Errors
/// If it would be too long.
pub fn encode(message: &impl Serialize, bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut packet = serde_json::to_vec(message).map_err(|_| Malformed::NoMessage)?;
    if packet.len() > MAX_JSON || packet.len() + 1 + bytes.len() > MAX_PACKET {
        return Err(Malformed::TooLong);
    }
    if !bytes.is_empty() {
        packet.push(b'\n');
        packet.extend_from_slice(bytes);
    }
    Ok(packet)
}

/// The message of a packet, and the bytes behind it.
///
/// # Errors
/// If it is none. Who sent it is at fault.
pub fn decode<M: DeserializeOwned>(packet: &[u8]) -> Result<(M, &[u8]), Malformed> {
    let end = packet.iter().position(|byte| *byte == b'\n');
    let (json, bytes) = match end {
        Some(at) => (&packet[..at], &packet[at + 1..]),
        None => (packet, &[][..]),
    };
    if json.len() > MAX_JSON || packet.len() > MAX_PACKET {
        return Err(Malformed::TooLong);
    }
    serde_json::from_slice(json).map(|message| (message, bytes)).map_err(|_| Malformed::NoMessage)
}

/// What either end says, by whoever wants it to go wrong.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzz(packet: &[u8]) {
    fn back<M: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(packet: &[u8]) {
        let Ok((message, bytes)) = decode::<M>(packet) else { return };
        // Escapes may make a text longer than it came.
        let Ok(again) = encode(&message, bytes) else { return };
        assert_eq!(decode::<M>(&again), Ok((message, bytes)));
    }
    back::<crate::Event>(packet);
    back::<crate::Request>(packet);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Accepted, Denied, Event, Incoming, Link, LinkState, Reason, Request};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use units::IpPrefix;

    fn address() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| (ip, port).into()),
            (any::<[u8; 16]>(), any::<u16>()).prop_map(|(ip, port)| (ip, port).into()),
        ]
    }

    fn reason() -> impl Strategy<Value = Reason> {
        prop_oneof![
            (0..Reason::PLAIN.len()).prop_map(|n| Reason::PLAIN[n].0.clone()),
            (0u8..16).prop_map(Reason::Icmp),
            (0u8..16).prop_map(Reason::Icmpv6),
            "[a-z]{1,9}x".prop_map(Reason::Other),
        ]
    }

    fn event() -> impl Strategy<Value = Event> {
        let name = "[ -~]{0,20}";
        prop_oneof![
            (any::<u32>(), name).prop_map(|(version, service)| Event::Hello { version, service }),
            (any::<u64>(), address(), address(), name, name, 0u8..64).prop_map(
                |(id, client, server, peer, class, dscp)| {
                    let name = (id % 2 == 1).then(|| peer.clone());
                    Event::Accepted(Accepted { id, client, server, peer, class, dscp, name })
                }
            ),
            (any::<u64>(), name, prop::option::of(address()))
                .prop_map(|(id, peer, client)| Event::Incoming(Incoming { id, peer, client })),
            any::<(u64, u64)>().prop_map(|(request, id)| Event::Opened { request, id }),
            (any::<u64>(), address(), address())
                .prop_map(|(request, local, server)| Event::Connected { request, local, server }),
            (any::<u64>(), prop::collection::vec(address(), 0..5)).prop_map(|(request, of)| {
                Event::Resolved { request, addresses: of.iter().map(SocketAddr::ip).collect() }
            }),
            (any::<u64>(), reason())
                .prop_map(|(request, reason)| Event::Failed { request, reason }),
            (any::<u64>(), reason()).prop_map(|(id, reason)| Event::Reset { id, reason }),
            (name, any::<u64>(), prop::option::of(any::<u64>()), any::<bool>()).prop_map(
                |(peer, rate, price, service)| {
                    let state = LinkState::Silent;
                    let (rtt_us, refuses_quic) = (rate / 2, rate % 2 == 1);
                    let (uncompressed, billed_by_time) = (rate % 3 == 1, rate % 5 == 1);
                    Event::Link(Link {
                        peer,
                        state,
                        rate,
                        rtt_us,
                        service,
                        price,
                        billed_by_time,
                        refuses_quic,
                        uncompressed,
                    })
                }
            ),
            (any::<u64>(), prop::collection::vec(name, 0..4))
                .prop_map(|(request, words)| Event::Command { request, words }),
            (name, name).prop_map(|(service, peer)| Event::Hinted { service, peer }),
            (name, prop::collection::vec((address(), 0u8..=128), 0..65)).prop_map(
                |(peer, blocks)| {
                    let blocks = blocks.into_iter().map(|(a, len)| IpPrefix::new(a.ip(), len));
                    Event::Narrowed { peer, denied: Denied(blocks.collect()) }
                }
            ),
            Just(Event::Ping),
            Just(Event::Stop),
        ]
    }

    fn request() -> impl Strategy<Value = Request> {
        let name = "[ -~]{0,20}";
        prop_oneof![
            any::<(u32, bool, bool, bool, bool)>().prop_map(
                |(version, datagrams, offline, pings, proxied)| {
                    Request::Hello { version, datagrams, offline, pings, proxied }
                }
            ),
            Just(Request::Pong),
            any::<(u64, bool)>().prop_map(|(request, failed)| Request::Told { request, failed }),
            (any::<u64>(), name, prop::option::of(name), prop::option::of(address())).prop_map(
                |(request, peer, class, client)| Request::Open { request, peer, class, client }
            ),
            (any::<u64>(), name, name, prop::option::of(address())).prop_map(
                |(request, peer, target, source)| Request::Connect {
                    request,
                    peer,
                    target,
                    source
                }
            ),
            (any::<u64>(), name, name).prop_map(|(request, peer, name)| Request::Resolve {
                request,
                peer,
                name
            }),
            (0u8..64).prop_map(|dscp| Request::Pass { dscp }),
            (any::<u64>(), any::<u16>())
                .prop_map(|(request, port)| Request::Back { request, port }),
            (name, name, any::<[u64; 3]>()).prop_map(
                |(peer, class, [bytes, urgency, oldest_ms])| {
                    Request::Waiting { peer, class, bytes, urgency: urgency as u8, oldest_ms }
                }
            ),
            prop::collection::btree_map(name, any::<u64>(), 0..9)
                .prop_map(|counters: BTreeMap<String, u64>| Request::Stats { counters }),
            (name, name).prop_map(|(service, peer)| Request::Hint { service, peer }),
            Just(Request::Stop),
        ]
    }

    proptest! {
        #[test]
        fn messages_come_back_with_their_bytes(
            event in event(),
            request in request(),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let packet = encode(&event, &bytes).unwrap();
            prop_assert_eq!(decode::<Event>(&packet).unwrap(), (event, &bytes[..]));
            let packet = encode(&request, &bytes).unwrap();
            prop_assert_eq!(decode::<Request>(&packet).unwrap(), (request, &bytes[..]));
        }

        #[test]
        fn no_packet_panics(packet in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz(&packet);
        }
    }

    #[test]
    fn the_corpus_of_packets_replays() {
        corpus::replay("service", fuzz);
    }

    #[test]
    fn packets_look_as_the_specification_shows_them() {
        let (client, server) = ("10.1.0.2:40000".parse().unwrap(), "[fd02::2]:80".parse().unwrap());
        let (peer, class) = ("shore".to_owned(), "normal".to_owned());
        for (event, text) in [
            (
                Event::Accepted(Accepted {
                    id: 7,
                    client,
                    server,
                    peer,
                    class,
                    dscp: 0,
                    name: None,
                }),
                r#"{"type":"accepted","id":7,"client":"10.1.0.2:40000","server":"[fd02::2]:80","peer":"shore","class":"normal","dscp":0}"#,
            ),
            (
                Event::Failed { request: 4, reason: Reason::Icmp(13) },
                r#"{"type":"failed","request":4,"reason":"icmp-13"}"#,
            ),
            (Event::Stop, r#"{"type":"stop"}"#),
        ] {
            assert_eq!(String::from_utf8(encode(&event, b"").unwrap()).unwrap(), text);
        }
        let open = r#"{"type":"open","request":3,"peer":"shore"}"#;
        let request = Request::Open { request: 3, peer: "shore".into(), class: None, client: None };
        let packet = [open.as_bytes(), b"\nthe\npreface"].concat();
        assert_eq!(decode(&packet), Ok((request.clone(), &b"the\npreface"[..])));
        assert_eq!(encode(&request, b"the\npreface").unwrap(), packet);
    }

    #[test]
    fn what_later_versions_add_is_passed_over() {
        let later = br#"{"type":"telepathy","strength":9}"#;
        assert_eq!(decode::<Event>(later), Ok((Event::Unknown, &[][..])));
        assert_eq!(decode::<Request>(later), Ok((Request::Unknown, &[][..])));
        let more = br#"{"type":"opened","request":1,"id":2,"colour":"blue"}"#;
        assert_eq!(decode::<Event>(more), Ok((Event::Opened { request: 1, id: 2 }, &[][..])));
    }

    #[test]
    fn long_packets_are_refused_at_both_ends() {
        let name = "x".repeat(MAX_JSON);
        let long = Event::Hello { version: 1, service: name.clone() };
        assert_eq!(encode(&long, b""), Err(Malformed::TooLong));
        let text = format!(r#"{{"type":"hello","version":1,"service":"{name}"}}"#);
        assert_eq!(decode::<Event>(text.as_bytes()), Err(Malformed::TooLong));
        assert_eq!(encode(&Event::Stop, &[0; MAX_PACKET]), Err(Malformed::TooLong));
        let most = MAX_PACKET - 1 - encode(&Event::Stop, b"").unwrap().len();
        assert_eq!(encode(&Event::Stop, &vec![0; most]).unwrap().len(), MAX_PACKET);
    }
}
