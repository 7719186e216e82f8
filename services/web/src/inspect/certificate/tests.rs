//! Certificates signed and verified, and read by openssl.

use std::process::Command;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{ServerName, UnixTime};

use super::*;

/// 2026-11-24.
const NOW: Duration = Duration::from_secs(1_795_500_000);

fn authority(now: Duration) -> (Authority, String, String) {
    let (certificate, key) = new_authority("the fleet's", [7; 16], now).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let secret = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    (Authority::new(chain, &secret, now).unwrap(), certificate, key)
}

/// Somebody's public key.
fn public_key() -> Vec<u8> {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
    pair.public_key().as_der().unwrap().as_ref().to_vec()
}

#[test]
fn what_an_authority_signs_is_verified_for_its_name_and_time_and_for_no_other() {
    let (authority, ..) = authority(NOW);
    let mut roots = RootCertStore::empty();
    roots.add(authority.chain()[0].clone()).unwrap();
    let verifier = WebPkiServerVerifier::builder(roots.into()).build().unwrap();
    let long = format!("{}test", "long.".repeat(40));
    for name in ["a.test", "xn--bcher-kva.test", &long] {
        let it = authority.certify(name, &public_key(), [0xff; 16], NOW).unwrap();
        let judge = |name: &str, at: Duration| {
            let name = ServerName::try_from(name.to_owned()).unwrap();
            let at = UnixTime::since_unix_epoch(at);
            verifier.verify_server_cert(&it, &[], &name, &[], at).map(drop)
        };
        assert_eq!(judge(name, NOW), Ok(()));
        assert_eq!(judge(name, NOW - DAY), Ok(()));
        assert_eq!(judge(name, NOW + LEAF_LIFE), Ok(()));
        assert!(judge("b.test", NOW).is_err() && judge("www.a.test", NOW).is_err());
        assert!(judge(name, NOW + LEAF_LIFE + DAY).is_err());
        assert!(judge(name, NOW - BEFORE - DAY).is_err());
    }
}

#[test]
fn an_authority_is_refused_that_is_none() {
    let (certificate, key) = new_authority("one", [1; 16], NOW).unwrap();
    let (_, other_key) = new_authority("another", [2; 16], NOW).unwrap();
    let read = |certificate: &CertificateDer<'static>, key: &str, now| {
        let secret = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        Authority::new(vec![certificate.clone()], &secret, now).map(|a| a.expires())
    };
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    assert_eq!(read(&certificate, &key, NOW), Ok(NOW + AUTHORITY_LIFE));
    assert_eq!(read(&certificate, &other_key, NOW), Err(Wrong::OtherKey));
    assert_eq!(read(&certificate, &key, NOW + AUTHORITY_LIFE), Err(Wrong::Expired));
    let secret = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    assert_eq!(Authority::new(Vec::new(), &secret, NOW).err(), Some(Wrong::Missing));
    let (authority, ..) = authority(NOW);
    let leaf = authority.certify("a.test", &public_key(), [1; 16], NOW).unwrap();
    assert_eq!(read(&leaf, &key, NOW), Err(Wrong::NoAuthority));
    // Whatever is cut off or changed, nothing panics.
    for n in 0..certificate.len() {
        assert_eq!(read(&certificate[..n].to_vec().into(), &key, NOW), Err(Wrong::Unreadable));
        let mut other = certificate.to_vec();
        other[n] ^= 0x81;
        let _ = read(&other.into(), &key, NOW);
    }
}

#[test]
fn openssl_reads_and_verifies_what_is_written_here_and_its_authorities_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let openssl = |args: &str| {
        let output = Command::new("openssl").current_dir(&dir).args(args.split(' ')).output();
        let output = output.expect("openssl");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "openssl {args}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    let (ours, certificate, key) = authority(now);
    write("ours.pem", &certificate);
    write("ours.key", &key);
    for kind in ["rsa:2048", "ec -pkeyopt ec_paramgen_curve:P-384", "ed25519"] {
        let make = format!(
            "req -x509 -utf8 -newkey {kind} -nodes -days 9999 -subj /C=AQ/O=Flotte/CN=Äußere \
             -addext keyUsage=critical,keyCertSign -keyout theirs.key -out theirs.pem"
        );
        openssl(&make);
        let file = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(&file("theirs.pem")).unwrap()];
        let secret = PrivateKeyDer::from_pem_slice(&file("theirs.key")).unwrap();
        let theirs = Authority::new(chain, &secret, now).expect(kind);
        assert!(theirs.key_id.is_some(), "{kind}");
        for (authority, root) in [(&ours, "ours.pem"), (&theirs, "theirs.pem")] {
            let leaf = authority.certify("a.test", &public_key(), [3; 16], now).unwrap();
            write("leaf.pem", &pem("CERTIFICATE", &leaf));
            let verify = format!("verify -x509_strict -verify_hostname a.test -CAfile {root}");
            let said = openssl(&format!("{verify} leaf.pem"));
            assert!(said.contains("leaf.pem: OK"), "{kind} {root}: {said}");
        }
    }
    let text = openssl("x509 -in ours.pem -noout -text");
    assert!(text.contains("CN = the fleet's") && text.contains("CA:TRUE, pathlen:0"), "{text}");
}

#[test]
fn times_are_written_as_calendars_have_them_and_read_back() {
    for (at, kind, text) in [
        (0, 0x17, "700101000000Z"),
        (951_782_399, 0x17, "000228235959Z"),
        (951_782_400, 0x17, "000229000000Z"),
        (1_795_500_000, 0x17, "261124060000Z"),
        (2_524_607_999, 0x17, "491231235959Z"),
        (2_524_608_000, 0x18, "20500101000000Z"),
        (4_107_542_400, 0x18, "21000301000000Z"),
    ] {
        let at = Duration::from_secs(at);
        assert_eq!(time(at), element(kind, text.as_bytes()), "{text}");
        assert_eq!(read_time((kind, text.as_bytes())), Some(at), "{text}");
    }
    for (kind, text) in [(0x17, "26"), (0x17, "261324054000Z"), (0x18, "äöü"), (0x02, "2611")] {
        assert_eq!(read_time((kind, text.as_bytes())), None, "{text}");
    }
    assert_eq!(read_time((0x17, b"500101000000Z")), Some(Duration::ZERO));
}
