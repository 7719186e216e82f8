//! A QUIC server and client, as hosts of the bench have them (RFC 9000; the congestion
//! control is CUBIC, the default of its library).
//!
//! ```text
//! quic-host serve 10.2.0.2:443
//! quic-host get 10.2.0.2:443 10      # downloads for 10 s, prints the bytes that came
//! ```

use std::error::Error;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig, TransportConfig, VarInt};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::time::{Instant, timeout_at};

const NAME: &str = "server";
const PROTOCOL: &[u8] = b"bench";
/// More than any link of the bench holds, so that flow control is no limit.
const WINDOW: u32 = 64 << 20;
const USAGE: &str = "usage: quic-host serve ADDRESS | quic-host get ADDRESS SECONDS";

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => serve(address.parse()?).await,
        ["get", address, seconds] => {
            let bytes = get(address.parse()?, Duration::from_secs_f64(seconds.parse()?)).await?;
            println!("{bytes}");
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into());
    Arc::new(transport)
}

/// Sends to whoever connects, without end.
async fn serve(address: SocketAddr) -> Outcome<()> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.key_pair.serialize_der());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())?;
    tls.alpn_protocols = vec![PROTOCOL.to_vec()];
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport());
    let endpoint = Endpoint::server(config, address)?;
    println!("listening on {address}");
    io::stdout().flush()?;
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            // Ends when the client goes.
            let _ = send(incoming.await).await;
        });
    }
    Ok(())
}

async fn send(connection: Result<Connection, quinn::ConnectionError>) -> Outcome<()> {
    let mut stream = connection?.open_uni().await?;
    // Nothing that could be made smaller on the way: each block differs (splitmix64).
    let mut state = 1_u64;
    let mut block = vec![0; 64 * 1024];
    loop {
        for word in block.chunks_exact_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes());
        }
        stream.write_all(&block).await?;
    }
}

/// Downloads for so long; answers how many bytes came.
async fn get(address: SocketAddr, time: Duration) -> Outcome<u64> {
    let end = Instant::now() + time;
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    tls.alpn_protocols = vec![PROTOCOL.to_vec()];
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport());
    let mut endpoint = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())?;
    endpoint.set_default_client_config(config);
    let connecting = endpoint.connect(address, NAME)?;
    let Ok(connection) = timeout_at(end, connecting).await else { return Ok(0) };
    let connection = connection?;
    let Ok(stream) = timeout_at(end, connection.accept_uni()).await else { return Ok(0) };
    let mut stream = stream?;
    let mut bytes = 0;
    while let Ok(chunk) = timeout_at(end, stream.read_chunk(usize::MAX, true)).await {
        let Some(chunk) = chunk? else { break };
        bytes += chunk.bytes.len() as u64;
    }
    connection.close(0_u32.into(), b"");
    // The news of it leaves within this time.
    let _ = timeout_at(Instant::now() + Duration::from_millis(200), endpoint.wait_idle()).await;
    Ok(bytes)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The bench's own server, in a network of its own, need not prove who it is.
#[derive(Debug)]
struct Anyone;

impl rustls::client::danger::ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("QUIC has TLS 1.3".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
