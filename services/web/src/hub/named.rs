//! Requests of clients of the proxy of the terminal, which said a name and no address: the hub
//! finds one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bentpipe_web::headers::{self, Way};
use http::Uri;
use tokio::time::Instant;

use super::{Hub, Key, secure};

/// So long the address that answered is asked again.
const HOLDS: Duration = Duration::from_secs(60);
/// Servers that are remembered.
const MOST: usize = 4096;
/// Addresses of a name that are tried.
const TRIED: usize = 4;

/// A peer, and the scheme, host and port that one of its hosts named.
type Name = (Rc<str>, bool, String, u16);

/// Which addresses names had.
#[derive(Default)]
pub struct Named(RefCell<BTreeMap<Name, (SocketAddr, Instant)>>);

impl Named {
    fn find(&self, name: &Name) -> Option<SocketAddr> {
        let all = self.0.borrow();
        all.get(name).filter(|(_, since)| since.elapsed() < HOLDS).map(|(to, _)| *to)
    }

    fn keep(&self, name: Name, to: SocketAddr) {
        let mut all = self.0.borrow_mut();
        if all.len() >= MOST {
            all.retain(|_, (_, since)| since.elapsed() < HOLDS);
        }
        if all.len() < MOST {
            all.insert(name, (to, Instant::now()));
        }
    }

    /// It did not answer.
    pub fn forget(&self, to: SocketAddr) {
        self.0.borrow_mut().retain(|_, (at, _)| *at != to);
    }
}

impl Hub {
    /// An address of the host that the URI names, to which the gateway has connected.
    pub(super) async fn address_of(
        self: &Rc<Hub>,
        peer: &Rc<str>,
        uri: &Uri,
        way: Way,
    ) -> Result<SocketAddr, String> {
        let (host, port) = (uri.host().unwrap_or("").to_ascii_lowercase(), way.to.port());
        let proves = secure::name_of(uri)?.map(Rc::from);
        let name = (peer.clone(), proves.is_some(), host.clone(), port);
        if let Some(to) = self.named.find(&name) {
            return Ok(to);
        }
        let told = self.gateway.resolve(peer, &host).await.map_err(|why| why.to_string())?;
        self.verifying.note(&host, &told);
        let mut why = "the name has no address".to_owned();
        for ip in told.into_iter().filter(|ip| !ip.is_unspecified()).take(TRIED) {
            let to = SocketAddr::new(ip, port);
            let key: Key = (peer.clone(), Way { to, ..way }, proves.clone());
            match self.connect(&key).await {
                Ok(sender) => {
                    self.keep(key, sender);
                    self.named.keep(name, to);
                    return Ok(to);
                }
                Err(failed) => why = failed,
            }
            if why.starts_with(headers::CERTIFICATE) || why.starts_with(headers::PAPERS) {
                break;
            }
        }
        Err(why)
    }
}
