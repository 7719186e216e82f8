//! What the two halves say to each other (spec/names.md, "The exchange").

use std::net::{IpAddr, SocketAddr};

/// The other half said what is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A question to a server, and whether a client waits for it.
    Ask {
        /// Any number that no open question has.
        id: u32,
        /// Does a client wait? Else it only ends soon.
        waits: bool,
        /// The host that asked first: whom servers see where sources are kept.
        client: SocketAddr,
        /// Whom to ask.
        server: SocketAddr,
        /// The message, as [`crate::message`] writes it.
        query: Vec<u8>,
    },
    /// The answer.
    Answer {
        /// Of the question.
        id: u32,
        /// With 0 for its number.
        message: Vec<u8>,
    },
    /// There is none.
    Failed {
        /// Of the question.
        id: u32,
    },
    /// An answer that was not asked for yet.
    Along {
        /// Who said it.
        server: SocketAddr,
        /// The question.
        query: Vec<u8>,
        /// The answer.
        message: Vec<u8>,
    },
}

impl Frame {
    /// The frame with its length; nothing if it is too long.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0, 0];
        match self {
            Frame::Ask { id, waits, client, server, query } => {
                out.push(if *waits { 1 } else { 2 });
                out.extend(id.to_be_bytes());
                put_server(&mut out, *client);
                put_server(&mut out, *server);
                out.extend(query);
            }
            Frame::Answer { id, message } => {
                out.push(3);
                out.extend(id.to_be_bytes());
                out.extend(message);
            }
            Frame::Failed { id } => {
                out.push(4);
                out.extend(id.to_be_bytes());
            }
            Frame::Along { server, query, message } => {
                out.push(5);
                put_server(&mut out, *server);
                out.extend((query.len() as u16).to_be_bytes());
                out.extend(query);
                out.extend(message);
            }
        }
        match u16::try_from(out.len() - 2) {
            Ok(len) => out[..2].copy_from_slice(&len.to_be_bytes()),
            Err(_) => out.clear(),
        }
        out
    }

    fn decode(mut bytes: &[u8]) -> Option<Frame> {
        let kind = take::<1>(&mut bytes)?[0];
        if kind == 5 {
            let server = take_server(&mut bytes)?;
            let len = usize::from(u16::from_be_bytes(take(&mut bytes)?));
            let (query, message) = bytes.split_at_checked(len)?;
            return Some(Frame::Along { server, query: query.into(), message: message.into() });
        }
        let id = u32::from_be_bytes(take(&mut bytes)?);
        Some(match kind {
            1 | 2 => {
                let (client, server) = (take_server(&mut bytes)?, take_server(&mut bytes)?);
                Frame::Ask { id, waits: kind == 1, client, server, query: bytes.to_vec() }
            }
            3 => Frame::Answer { id, message: bytes.to_vec() },
            4 if bytes.is_empty() => Frame::Failed { id },
            _ => return None,
        })
    }
}

fn put_server(out: &mut Vec<u8>, server: SocketAddr) {
    match server.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend(ip.octets());
        }
    }
    out.extend(server.port().to_be_bytes());
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

fn take_server(bytes: &mut &[u8]) -> Option<SocketAddr> {
    let ip: IpAddr = match take::<1>(bytes)? {
        [4] => take::<4>(bytes)?.into(),
        [6] => take::<16>(bytes)?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(take(bytes)?)))
}

/// The frames in what a stream has brought so far; what is left begins the next one.
///
/// # Errors
/// If the other half broke the protocol.
pub fn frames(stream: &mut Vec<u8>) -> Result<Vec<Frame>, Broken> {
    let (mut frames, mut at) = (Vec::new(), 0);
    while let Some(head) = stream[at..].first_chunk::<2>() {
        let end = at + 2 + usize::from(u16::from_be_bytes(*head));
        let Some(body) = stream.get(at + 2..end) else { break };
        frames.push(Frame::decode(body).ok_or(Broken)?);
        at = end;
    }
    stream.drain(..at);
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..300);
        let server = || (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from);
        prop_oneof![
            (any::<u32>(), any::<bool>(), server(), server(), bytes()).prop_map(
                |(id, waits, client, server, query)| Frame::Ask {
                    id,
                    waits,
                    client,
                    server,
                    query
                }
            ),
            (any::<u32>(), bytes()).prop_map(|(id, message)| Frame::Answer { id, message }),
            any::<u32>().prop_map(|id| Frame::Failed { id }),
            (server(), bytes(), bytes()).prop_map(|(server, query, message)| Frame::Along {
                server,
                query,
                message
            }),
        ]
    }

    proptest! {
        #[test]
        fn frames_are_read_as_they_were_written_however_they_arrive(
            sent in proptest::collection::vec(frame(), 0..8),
            piece in 1usize..50,
        ) {
            let bytes: Vec<u8> = sent.iter().flat_map(Frame::encode).collect();
            let (mut stream, mut got) = (Vec::new(), Vec::new());
            for piece in bytes.chunks(piece) {
                stream.extend_from_slice(piece);
                got.extend(frames(&mut stream).unwrap());
            }
            prop_assert_eq!((got, stream), (sent, vec![]));
        }

        #[test]
        fn nothing_that_arrives_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..99)) {
            let _ = frames(&mut bytes);
        }
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        assert!(Frame::Answer { id: 1, message: vec![0; 65_535] }.encode().is_empty());
    }
}
