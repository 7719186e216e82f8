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
        let spoken = match spoken {
            Ok(spoken) => spoken.map_err(|why| told(&why)),
            Err(_) => Err("the server does not speak TLS in time".to_owned()),
        };
        // The server asks before it has proved itself: whoever passes for it could ask, too.
        let is_other = spoken.as_ref().is_err_and(|why| why.starts_with(CERTIFICATE));
        match asked.0.load(Ordering::Relaxed) && !is_other {
            true => Err(format!("{PAPERS}the server asks for one")),
            false => spoken,
        }
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

#[cfg(test)]
mod tests {
    use bentpipe_web::inspect::certificate::{Authority, new_authority};
    use bytes::Bytes;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::server::WebPkiClientVerifier;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::clock::calendar;

    /// An authority as PEM, and its certificate and key.
    fn authority() -> (String, CertificateDer<'static>, PrivateKeyDer<'static>) {
        let (pem, key) = new_authority("a test's", [7; 16], calendar()).unwrap();
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        (pem, certificate, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
    }

    /// Why a server with a certificate of `its` authority, which wants one of its clients, is not
    /// spoken with by a hub that trusts `ours`.
    async fn refused(
        ours: &str,
        (_, its, key): &(String, CertificateDer<'static>, PrivateKeyDer<'static>),
    ) -> String {
        let trust = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(trust.path(), ours).unwrap();
        let secure = Secure::new(Some(trust.path())).unwrap();
        let authority = Authority::new(vec![its.clone()], key, calendar()).unwrap();
        let own = rustls::crypto::aws_lc_rs::sign::any_supported_type(key).unwrap();
        let public = own.public_key().unwrap().as_ref().to_vec();
        let leaf = authority.certify("a.test", &public, [1; 16], calendar()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(its.clone()).unwrap();
        let clients = WebPkiClientVerifier::builder(roots.into()).build().unwrap();
        let config = ServerConfig::builder()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![leaf, its.clone()], key.clone_key())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let serving = TlsAcceptor::from(Arc::new(config)).accept(server);
        // It fails, as the client has no certificate.
        tokio::spawn(async move { drop(serving.await) });
        let connected = secure.connect("a.test", Socket::plain(stream, Bytes::new())).await;
        connected.err().expect("it has no certificate to show")
    }

    #[test]
    fn a_server_that_asks_for_a_certificate_must_have_proved_itself() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (honest, other) = (authority(), authority());
            let why = refused(&honest.0, &honest).await;
            assert!(why.starts_with(PAPERS), "{why}");
            let why = refused(&other.0, &honest).await;
            assert!(why.starts_with(CERTIFICATE), "{why}");
        });
    }
}
