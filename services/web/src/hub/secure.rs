//! TLS towards servers: their certificates are verified here, at the end where they are.

use std::cell::OnceCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bentpipe_web::headers::{CERTIFICATE, PAPERS};
use http::Uri;
use http::uri::Scheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, RootCertStore, SignatureScheme};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::socket::Socket;

/// A handshake must be over by then.
const SLOW: Duration = Duration::from_secs(10);

/// What servers' certificates are verified with.
pub struct Secure {
    /// Beside those that the system trusts.
    trusted: Vec<CertificateDer<'static>>,
    /// Made when it is first used: few hubs ever do.
    config: OnceCell<Result<ClientConfig, String>>,
}

impl Secure {
    /// With the authorities of the system, and those in this file.
    ///
    /// # Errors
    /// If the file has none.
    pub fn new(trust: Option<&Path>) -> Result<Secure, String> {
        let mut trusted = Vec::new();
        if let Some(path) = trust {
            let cannot = |why: String| format!("--trust {}: {why}", path.display());
            let text = std::fs::read(path).map_err(|e| cannot(e.to_string()))?;
            let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
            trusted = read.map_err(|e| cannot(e.to_string()))?;
            if trusted.is_empty() {
                return Err(cannot("there is no certificate in it, in PEM".into()));
            }
        }
        Ok(Secure { trusted, config: OnceCell::new() })
    }

    fn config(&self) -> Result<ClientConfig, String> {
        self.config.get_or_init(|| self.make()).clone()
    }

    fn make(&self) -> Result<ClientConfig, String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.trusted.iter().cloned());
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err("the hub trusts no authority: install the package ca-certificates there, \
                 or name a file with --trust"
                .into());
        }
        let mut config =
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Speaks TLS with a server that has to prove to be `name`.
    ///
    /// # Errors
    /// Why it is not spoken with.
    pub async fn connect(&self, name: &str, socket: Socket) -> Result<TlsStream<Socket>, String> {
        let name = ServerName::try_from(name.to_owned()).map_err(|_| "its name is none")?;
        let asked = Arc::new(Asked::default());
        let mut config = self.config()?;
        config.client_auth_cert_resolver = asked.clone();
        let connector = TlsConnector::from(Arc::new(config));
        let spoken = timeout(SLOW, connector.connect(name, socket)).await;
        if asked.0.load(Ordering::Relaxed) {
            return Err(format!("{PAPERS}the server asks for one"));
        }
        spoken.map_err(|_| "the server does not speak TLS in time")?.map_err(|why| told(&why))
    }
}

/// The name that a server must prove, where it has to.
///
/// # Errors
/// If the scheme is neither of the two.
pub fn name_of(uri: &Uri) -> Result<Option<&str>, String> {
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => Ok(None),
        Some(scheme) if *scheme == Scheme::HTTPS => {
            uri.host().map(Some).ok_or_else(|| "it names nobody".into())
        }
        _ => Err("its scheme is unknown".into()),
    }
}

/// Why there is no TLS; of certificates in words for those who wanted the page.
fn told(why: &std::io::Error) -> String {
    let tls = why.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(wrong)) = tls else {
        return format!("no TLS with the server: {why}");
    };
    let words = match wrong {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet"
        }
        CertificateError::UnknownIssuer => "nobody whom the hub trusts has signed it",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name"
        }
        CertificateError::Revoked => "it was revoked",
        _ => "it cannot be verified",
    };
    format!("{CERTIFICATE}{words}")
}

/// Has none to show, and notes that one was asked for.
#[derive(Debug, Default)]
struct Asked(AtomicBool);

impl ResolvesClientCert for Asked {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}
