//! Why the system refused something, in one sentence with what mends it.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Why something could not be set up: one sentence with what failed, why, and,
/// where one is known, what mends it.
///
/// Set-up calls answer with this. Calls on the data path answer with the outcome
/// type of their module, because there "would block" is not an error.
#[derive(Debug)]
pub struct OsError {
    what: String,
    cause: Option<io::Error>,
    mend: Option<String>,
}

impl OsError {
    /// `what` ("open /dev/net/tun") failed because of `cause`.
    pub fn new(what: impl Into<String>, cause: io::Error) -> OsError {
        OsError { what: what.into(), cause: Some(cause), mend: None }
    }
    /// A refusal that no system call stands behind; `what` is the whole sentence.
    pub fn refused(what: impl Into<String>) -> OsError {
        OsError { what: what.into(), cause: None, mend: None }
    }
    /// Adds what the operator can do about it.
    pub fn mend(mut self, how: impl Into<String>) -> OsError {
        self.mend = Some(how.into());
        self
    }
    /// The kind of the system's error, `Other` where there is none.
    pub fn kind(&self) -> io::ErrorKind {
        self.cause.as_ref().map_or(io::ErrorKind::Other, io::Error::kind)
    }
    /// The system's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        self.cause.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Some(cause) => write!(f, "cannot {}: {}", self.what, reason(cause))?,
            None => write!(f, "{}", self.what)?,
        }
        match &self.mend {
            Some(mend) => write!(f, "; {mend}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OsError {}

/// The system's words without the "(os error 13)" that helps nobody.
fn reason(e: &io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

/// `Result::map_err` in the way this crate wants it: `.or_cannot("open x")`.
pub(crate) trait OrCannot<T> {
    fn or_cannot(self, what: impl FnOnce() -> String) -> Result<T, OsError>;
}

impl<T> OrCannot<T> for io::Result<T> {
    fn or_cannot(self, what: impl FnOnce() -> String) -> Result<T, OsError> {
        self.map_err(|e| OsError::new(what(), e))
    }
}

/// Why a socket cannot listen, and what to do about it.
pub(crate) fn bind_error(what: &str, addr: SocketAddr, e: io::Error) -> OsError {
    let port = addr.port();
    let mend = match e.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            format!(
                "another program has that port: see `ss -lnp sport = :{port}`, or choose another"
            )
        }
        Some(libc::EADDRNOTAVAIL) => "no interface here has that address: see `ip address`".into(),
        Some(libc::EACCES) => "ports below 1024 need CAP_NET_BIND_SERVICE or root".into(),
        _ => return OsError::new(format!("listen on {what} {addr}"), e),
    };
    OsError::new(format!("listen on {what} {addr}"), e).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_one_sentence_with_its_remedy() {
        let e = OsError::new("open /dev/net/tun", io::Error::from_raw_os_error(libc::EACCES))
            .mend("run as root");
        assert_eq!(e.to_string(), "cannot open /dev/net/tun: permission denied; run as root");
        assert_eq!(e.errno(), Some(libc::EACCES));
    }
}
