//! Servers whose users log in by connection (NTLM, Negotiate): all that comes on one is the user's.
//! So each of a host's connections has to lead to one of the server's, and is carried as it is.

use std::cell::RefCell;
use std::time::Duration;

use bentpipe_web::headers::{Way, logs_connection_in};
use bentpipe_web::inspect::refused::{Refused, Why};
use http::HeaderMap;

/// Which servers asked which hosts for such a login within the hour.
#[derive(Default)]
pub(super) struct Logins(RefCell<Refused>);

impl Logins {
    /// Looks at an answer to a host; is its connection to be the last that is served here? `named`:
    /// the server's name, where it has no address.
    pub fn hear(
        &self,
        (peer, way, named): (&str, Way, &str),
        fields: &HeaderMap,
        now: Duration,
    ) -> bool {
        let asks = logs_connection_in(fields);
        if asks {
            self.0.borrow_mut().note(way.from, &server(peer, way, named), Why::Login, now);
        }
        asks
    }

    /// Did this server ask this host for such a login?
    pub fn has(&self, (peer, way, named): (&str, Way, &str), now: Duration) -> bool {
        self.0.borrow().why(way.from, &server(peer, way, named), true, now).is_some()
    }
}

fn server(peer: &str, way: Way, named: &str) -> String {
    format!("{peer} {} {named}", way.to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use http::header::WWW_AUTHENTICATE;

    #[test]
    fn a_server_is_left_to_the_host_that_it_asked_for_a_login_for_an_hour() {
        let (logins, second) = (Logins::default(), Duration::from_secs(1));
        let way =
            |to: &str, from: &str| Way { to: to.parse().unwrap(), from: from.parse().unwrap() };
        let (mine, other) = (way("10.2.0.2:80", "10.1.0.2"), way("10.2.0.2:80", "10.1.0.3"));
        let mut fields = HeaderMap::new();
        assert!(!logins.hear(("shore", mine, ""), &fields, second));
        fields.insert(WWW_AUTHENTICATE, HeaderValue::from_static("NTLM"));
        assert!(logins.hear(("shore", mine, ""), &fields, second));
        assert!(logins.has(("shore", mine, ""), 3599 * second));
        assert!(!logins.has(("shore", mine, ""), 3601 * second));
        for (peer, way, named) in [
            ("shore", other, ""),
            ("other", mine, ""),
            ("shore", mine, "a.test"),
            ("shore", way("10.2.0.3:80", "10.1.0.2"), ""),
        ] {
            assert!(!logins.has((peer, way, named), second), "{peer} {way:?} {named}");
        }
    }
}
