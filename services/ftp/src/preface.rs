//! What a stream between the two halves is for: the first bytes of it, as text.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// A stream's purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preface {
    /// A session of a host with a server: `control SERVER CLIENT`.
    Control {
        /// Where the host connected to.
        server: SocketAddr,
        /// The host.
        client: SocketAddr,
    },
    /// A data connection of a session: `data CLIENT PORT`.
    Data {
        /// The host, as in the session's preface.
        client: SocketAddr,
        /// The port at which it waits.
        port: u16,
    },
}

impl fmt::Display for Preface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Preface::Control { server, client } => write!(f, "control {server} {client}"),
            Preface::Data { client, port } => write!(f, "data {client} {port}"),
        }
    }
}

impl FromStr for Preface {
    type Err = ();

    fn from_str(text: &str) -> Result<Preface, ()> {
        let words: Vec<&str> = text.split(' ').collect();
        let address = |text: &str| text.parse::<SocketAddr>().map_err(drop);
        match words[..] {
            ["control", server, client] => {
                Ok(Preface::Control { server: address(server)?, client: address(client)? })
            }
            ["data", client, port] => {
                let port = port.parse().ok().filter(|port| *port != 0).ok_or(())?;
                Ok(Preface::Data { client: address(client)?, port })
            }
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preface_is_read_as_it_was_written() {
        let (server, client) =
            ("[2001:db8::2]:21".parse().unwrap(), "10.1.0.2:40000".parse().unwrap());
        for preface in [Preface::Control { server, client }, Preface::Data { client, port: 1 }] {
            assert_eq!(preface.to_string().parse(), Ok(preface));
        }
        for wrong in ["", "data 10.1.0.2:40000 0", "data x 1", "control a b", "data 1.2.3.4:5"] {
            assert_eq!(wrong.parse::<Preface>(), Err(()), "{wrong}");
        }
    }
}
