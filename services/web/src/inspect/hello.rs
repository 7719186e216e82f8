//! What a host's first bytes ask for, if they are TLS's.

use rustls::server::Acceptor;

/// Bytes of a hello that are looked at. Longer ones are not opened.
pub const MAX_HELLO: usize = 32 << 10;

/// What TLS begins with (RFC 8446, section 5.1).
pub const HANDSHAKE: u8 = 22;

/// What is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Too little: read on.
    More,
    /// Not one that could be opened: it goes on as it is. Why not.
    Closed(&'static str),
    /// A browser that wants this name, in small letters.
    Open {
        /// Whom it wants.
        name: String,
        /// It speaks HTTP/1.1 only, as browsers do for WebSockets.
        is_old: bool,
    },
}

/// Reads it as it comes.
#[derive(Default)]
pub struct Reader {
    acceptor: Acceptor,
    read: usize,
}

impl Reader {
    /// What all the bytes that have come so far are.
    pub fn read(&mut self, bytes: &[u8]) -> Hello {
        if bytes.first().is_some_and(|first| *first != HANDSHAKE) {
            return Hello::Closed("it is not TLS");
        }
        let mut rest = bytes.get(self.read..).unwrap_or_default();
        self.read = bytes.len();
        loop {
            match self.acceptor.accept() {
                Ok(Some(accepted)) => return judge(&accepted.client_hello()),
                Ok(None) if rest.is_empty() && bytes.len() < MAX_HELLO => return Hello::More,
                Ok(None) if rest.is_empty() => return Hello::Closed("its hello does not end"),
                Ok(None) => {}
                Err(_) => return Hello::Closed("it is not TLS"),
            }
            if self.acceptor.read_tls(&mut rest).is_err() {
                return Hello::Closed("its hello does not end");
            }
        }
    }
}

/// Only who says that he speaks HTTP is opened: nothing can be handed back later.
fn judge(hello: &rustls::server::ClientHello<'_>) -> Hello {
    let Some(protocols) = hello.alpn() else { return Hello::Closed("it does not say HTTP") };
    let protocols: Vec<&[u8]> = protocols.collect();
    let is_new = protocols.contains(&&b"h2"[..]);
    if !is_new && !protocols.contains(&&b"http/1.1"[..]) {
        return Hello::Closed("it does not say HTTP");
    }
    match hello.server_name() {
        Some(name) => Hello::Open { name: plain(name), is_old: !is_new },
        None => Hello::Closed("it names nobody"),
    }
}

/// A name as it is compared.
pub fn plain(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    fn read(bytes: &[u8]) -> Hello {
        Reader::default().read(bytes)
    }

    /// What a client says first that wants `name` and speaks `protocols`.
    fn hello(name: &str, protocols: &[&str]) -> Vec<u8> {
        let mut config = ClientConfig::builder()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn who_names_a_server_and_speaks_http_may_be_opened() {
        let open = |name: &str, is_old| Hello::Open { name: name.into(), is_old };
        let both = hello("WWW.a.test", &["h2", "http/1.1"]);
        assert_eq!(read(&both), open("www.a.test", false));
        assert_eq!(read(&hello("a.test", &["http/1.1"])), open("a.test", true));
        for (name, protocols) in [
            ("10.2.0.2", &["h2"][..]),
            ("a.test", &[]),
            ("a.test", &["imap"]),
            ("a.test", &["acme-tls/1"]),
        ] {
            assert!(matches!(read(&hello(name, protocols)), Hello::Closed(_)), "{name}");
        }
    }

    #[test]
    fn a_hello_may_come_byte_by_byte_and_what_is_none_is_known_early() {
        let bytes = hello("a.test", &["h2"]);
        let mut reader = Reader::default();
        for n in 0..bytes.len() {
            assert_eq!(reader.read(&bytes[..n]), Hello::More, "{n}");
        }
        assert!(matches!(reader.read(&bytes), Hello::Open { .. }));
        assert!(matches!(read(b"SSH-2.0-x"), Hello::Closed(_)));
        assert!(matches!(read(b"\x16\x03\x01\x00\x04\x01\xff\xff\xff"), Hello::Closed(_)));
        assert!(matches!(read(b"\x16\x09\x09\x09"), Hello::More | Hello::Closed(_)));
        // Records that never make a whole one.
        let mut endless = Vec::new();
        while endless.len() < MAX_HELLO {
            let head: &[u8] = if endless.is_empty() { b"\x01\x00\xff\xff" } else { b"\0\0\0\0" };
            endless.extend_from_slice(b"\x16\x03\x01\x00\x44");
            endless.extend_from_slice(head);
            endless.resize(endless.len() + 64, 0);
        }
        assert!(matches!(read(&endless), Hello::Closed(_)));
    }
}
