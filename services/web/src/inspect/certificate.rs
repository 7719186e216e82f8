//! The operator's authority, and the certificates that it signs on the spot.
//!
//! Certificates are written here, in the few forms that are needed (RFC 5280, in DER), so that an
//! authority's own name stands in them letter by letter. Of the authority's certificate the same
//! few parts are read; hosts and servers never choose what is read here.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64ct::{Base64, Encoding as _};
use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::SigningKey;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long a server's certificate holds, and how long before it was made: clocks differ.
const LEAF_LIFE: Duration = DAY.saturating_mul(30);
const BEFORE: Duration = DAY.saturating_mul(2);
/// How long an authority that is made here holds.
const AUTHORITY_LIFE: Duration = DAY.saturating_mul(5 * 365);
/// A name of more letters does not fit into a subject.
const LONGEST_SUBJECT: usize = 64;
/// Bytes of what names a key.
const KEY_ID: usize = 20;

/// A certificate's number among those of its authority.
pub type Serial = [u8; 16];

/// Why something is no authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// There is none.
    #[error("there is no certificate in it")]
    Missing,
    /// It cannot be read.
    #[error("the first certificate in it cannot be read")]
    Unreadable,
    /// It may sign none.
    #[error("its first certificate may sign no others (basicConstraints does not say CA:TRUE)")]
    NoAuthority,
    /// Its time is over.
    #[error("its first certificate has expired, or this machine's clock is wrong")]
    Expired,
    /// The key is another's.
    #[error("the key is not that of its first certificate")]
    OtherKey,
    /// There is no way to sign with it.
    #[error("the key is of no kind that can sign: ECDSA P-256 or P-384, RSA, or Ed25519")]
    Key,
}

/// Who signs.
#[derive(Clone, Debug)]
pub struct Authority {
    chain: Vec<CertificateDer<'static>>,
    name: Vec<u8>,
    key_id: Option<Vec<u8>>,
    key: Arc<dyn SigningKey>,
    expires: Duration,
}

impl Authority {
    /// From its certificate, those that lead from it to one that devices know, and its key.
    ///
    /// # Errors
    /// If they are none, or do not belong together.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: &PrivateKeyDer<'_>,
        now: Duration,
    ) -> Result<Authority, Wrong> {
        let certificate = chain.first().ok_or(Wrong::Missing)?;
        let parts = Parts::read(certificate).ok_or(Wrong::Unreadable)?;
        let key = any_supported_type(key).map_err(|_| Wrong::Key)?;
        if !parts.is_authority {
            return Err(Wrong::NoAuthority);
        }
        if parts.expires <= now {
            return Err(Wrong::Expired);
        }
        if key.public_key().is_none_or(|public| *public != *parts.public_key) {
            return Err(Wrong::OtherKey);
        }
        let (name, expires) = (parts.name.to_vec(), parts.expires);
        let key_id = parts.key_id.map(<[u8]>::to_vec);
        Ok(Authority { chain, name, key_id, key, expires })
    }

    /// Its own certificate, and those above it.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// When it ends, since 1970.
    pub fn expires(&self) -> Duration {
        self.expires
    }

    /// A certificate for a server called `name` with this public key; before it those that lead to
    /// the authority are given out.
    ///
    /// # Errors
    /// If it cannot be signed.
    pub fn certify(
        &self,
        name: &str,
        public_key: &[u8],
        serial: Serial,
        now: Duration,
    ) -> Result<CertificateDer<'static>, Wrong> {
        let mut extensions = vec![
            extension(oid::BASIC, true, &sequence(&[])),
            extension(oid::USAGE, true, &[0x03, 0x02, 0x07, 0x80]),
            extension(oid::PURPOSE, false, &sequence(&[oid::SERVER])),
            extension(oid::NAMES, false, &sequence(&[&element(0x82, name.as_bytes())])),
        ];
        if let Some(id) = &self.key_id {
            extensions.push(extension(oid::AUTHORITY_KEY, false, &sequence(&[&element(0x80, id)])));
        }
        let subject = if name.len() <= LONGEST_SUBJECT { name } else { "a long name" };
        let it = Certificate {
            serial,
            issuer: &self.name,
            subject: &called(subject),
            from: now.saturating_sub(BEFORE),
            until: (now + LEAF_LIFE).min(self.expires),
            public_key,
            extensions: &extensions,
        };
        it.sign(&*self.key)
    }
}

/// A new authority: its certificate, and its key in PKCS #8, both in PEM.
///
/// # Errors
/// If there is no randomness for a key.
pub fn new_authority(name: &str, serial: Serial, now: Duration) -> Result<(String, String), Wrong> {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(|_| Wrong::Key)?;
    let secret = pair.to_pkcs8v1().map_err(|_| Wrong::Key)?;
    let public = pair.public_key().as_der().map_err(|_| Wrong::Key)?;
    let key = PrivateKeyDer::try_from(secret.as_ref()).map_err(|_| Wrong::Key)?;
    let key = any_supported_type(&key).map_err(|_| Wrong::Key)?;
    let id = digest(&SHA256, public.as_ref());
    let extensions = [
        // It signs servers' certificates and no authorities.
        extension(oid::BASIC, true, &sequence(&[&[0x01, 0x01, 0xff], &[0x02, 0x01, 0x00]])),
        extension(oid::USAGE, true, &[0x03, 0x02, 0x01, 0x06]),
        extension(oid::KEY, false, &element(0x04, &id.as_ref()[..KEY_ID])),
    ];
    let name = called(name);
    let it = Certificate {
        serial,
        issuer: &name,
        subject: &name,
        from: now.saturating_sub(BEFORE),
        until: now + AUTHORITY_LIFE,
        public_key: public.as_ref(),
        extensions: &extensions,
    };
    Ok((pem("CERTIFICATE", &it.sign(&*key)?), pem("PRIVATE KEY", secret.as_ref())))
}

/// Object identifiers, as they are written.
mod oid {
    pub const COMMON_NAME: &[u8] = &[0x06, 0x03, 0x55, 0x04, 0x03];
    pub const KEY: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x0e];
    pub const USAGE: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x0f];
    pub const NAMES: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x11];
    pub const BASIC: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x13];
    pub const AUTHORITY_KEY: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x23];
    pub const PURPOSE: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x25];
    pub const SERVER: &[u8] = &[0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
}

/// How certificates are signed, and how that is written.
const SIGNED: [(SignatureScheme, &[u8]); 4] = [
    (
        SignatureScheme::ECDSA_NISTP256_SHA256,
        &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02],
    ),
    (
        SignatureScheme::ECDSA_NISTP384_SHA384,
        &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03],
    ),
    (
        SignatureScheme::RSA_PKCS1_SHA256,
        &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b, 0x05, 0x00],
    ),
    (SignatureScheme::ED25519, &[0x06, 0x03, 0x2b, 0x65, 0x70]),
];

struct Certificate<'a> {
    serial: Serial,
    issuer: &'a [u8],
    subject: &'a [u8],
    from: Duration,
    until: Duration,
    public_key: &'a [u8],
    extensions: &'a [Vec<u8>],
}

impl Certificate<'_> {
    fn sign(&self, key: &dyn SigningKey) -> Result<CertificateDer<'static>, Wrong> {
        let signer = key.choose_scheme(&SIGNED.map(|(scheme, _)| scheme)).ok_or(Wrong::Key)?;
        let how = SIGNED.iter().find(|(scheme, _)| *scheme == signer.scheme()).ok_or(Wrong::Key)?;
        let algorithm = sequence(&[how.1]);
        let extensions: Vec<&[u8]> = self.extensions.iter().map(Vec::as_slice).collect();
        let mut serial = self.serial;
        // Above 0, and of the same length always.
        serial[0] = serial[0] & 0x3f | 0x40;
        let signed = sequence(&[
            // Version 3.
            &element(0xa0, &[0x02, 0x01, 0x02]),
            &element(0x02, &serial),
            &algorithm,
            self.issuer,
            &sequence(&[&time(self.from), &time(self.until)]),
            self.subject,
            self.public_key,
            &element(0xa3, &sequence(&extensions)),
        ]);
        let signature = signer.sign(&signed).map_err(|_| Wrong::Key)?;
        let bits = element(0x03, &[&[0], signature.as_slice()].concat());
        Ok(sequence(&[&signed, &algorithm, &bits]).into())
    }
}

/// An element: its kind, the length of what is in it, and that.
fn element(kind: u8, inside: &[u8]) -> Vec<u8> {
    let length = inside.len().to_be_bytes();
    let length = &length[length.iter().take_while(|b| **b == 0).count()..];
    let mut out = vec![kind];
    match inside.len() {
        short @ 0..=0x7f => out.push(short as u8),
        _ => {
            out.push(0x80 | length.len() as u8);
            out.extend_from_slice(length);
        }
    }
    out.extend_from_slice(inside);
    out
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(0x30, &parts.concat())
}

fn extension(id: &[u8], is_critical: bool, value: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if is_critical { &[0x01, 0x01, 0xff] } else { &[] };
    sequence(&[id, critical, &element(0x04, value)])
}

/// The name of somebody who is called so.
fn called(name: &str) -> Vec<u8> {
    let name = sequence(&[oid::COMMON_NAME, &element(0x0c, name.as_bytes())]);
    sequence(&[&element(0x31, &name)])
}

/// A time since 1970 (RFC 5280, section 4.1.2.5).
fn time(at: Duration) -> Vec<u8> {
    let (days, second) = (at.as_secs() / DAY.as_secs(), at.as_secs() % DAY.as_secs());
    let (mut year, mut day) = (1970, days);
    while day >= days_of(year) {
        day -= days_of(year);
        year += 1;
    }
    let mut month = 0;
    while day >= months_of(year)[month] {
        day -= months_of(year)[month];
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let rest = format!("{:02}{:02}{hour:02}{minute:02}{second:02}Z", month + 1, day + 1);
    match year < 2050 {
        true => element(0x17, format!("{:02}{rest}", year % 100).as_bytes()),
        false => element(0x18, format!("{year:04}{rest}").as_bytes()),
    }
}

/// Reads such a time; years before 1970 count as that.
fn read_time((kind, text): (u8, &[u8])) -> Option<Duration> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.is_ascii())?;
    let (year, rest) = text.split_at_checked(if kind == 0x17 { 2 } else { 4 })?;
    let year: u64 = year.parse().ok()?;
    let year = match kind {
        0x17 if year < 50 => 2000 + year,
        0x17 => 1900 + year,
        0x18 => year,
        _ => return None,
    };
    let two = |at: usize| rest.get(at..at + 2)?.parse::<u64>().ok();
    let (month, day) = (two(0)?.checked_sub(1)?, two(2)?.checked_sub(1)?);
    let (months, month) = (months_of(year), usize::try_from(month).ok().filter(|m| *m < 12)?);
    let before = months[..month].iter().sum::<u64>();
    let days = (1970..year).map(days_of).sum::<u64>() + before + day;
    let second = two(4)? * 3600 + two(6)? * 60 + two(8)?;
    Some(if year < 1970 { Duration::ZERO } else { Duration::from_secs(days * 24 * 3600 + second) })
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn months_of(year: u64) -> [u64; 12] {
    [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

/// Text around bytes, as certificates and keys are kept in files.
fn pem(what: &str, bytes: &[u8]) -> String {
    let text = Base64::encode_string(bytes);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.join("\n"))
}

/// What has to be known of an authority's certificate.
struct Parts<'a> {
    name: &'a [u8],
    public_key: &'a [u8],
    expires: Duration,
    key_id: Option<&'a [u8]>,
    is_authority: bool,
}

impl<'a> Parts<'a> {
    fn read(certificate: &'a [u8]) -> Option<Parts<'a>> {
        let mut it = Reader(certificate).inside(0x30)?.inside(0x30)?;
        it.inside(0xa0)?;
        // Number, algorithm, issuer.
        for _ in 0..3 {
            it.next()?;
        }
        let mut validity = it.inside(0x30)?;
        validity.next()?;
        let expires = validity.next()?;
        let (name, public_key) = (it.next()?.2, it.next()?.2);
        let mut parts = Parts {
            name,
            public_key,
            expires: read_time((expires.0, expires.1))?,
            key_id: None,
            is_authority: false,
        };
        while let Some((kind, inside, _)) = it.next() {
            if kind == 0xa3 {
                parts.read_extensions(Reader(inside).inside(0x30)?)?;
            }
        }
        Some(parts)
    }

    fn read_extensions(&mut self, mut all: Reader<'a>) -> Option<()> {
        while let Some((_, inside, _)) = all.next() {
            let mut it = Reader(inside);
            let id = it.next()?.2;
            let mut value = it.next()?;
            if value.0 == 0x01 {
                value = it.next()?;
            }
            if id == oid::KEY {
                self.key_id = Some(Reader(value.1).next()?.1);
            } else if id == oid::BASIC {
                let first = Reader(value.1).inside(0x30)?.next();
                self.is_authority = first.is_some_and(|(kind, is, _)| kind == 0x01 && is == [0xff]);
            }
        }
        Some(())
    }
}

/// Elements, one behind the other.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The next one's kind, what is in it, and all of it.
    fn next(&mut self) -> Option<(u8, &'a [u8], &'a [u8])> {
        let (kind, length) = (*self.0.first()?, *self.0.get(1)?);
        let (head, length) = match length {
            0..=0x7f => (2, usize::from(length)),
            0x81..=0x84 => {
                let more = self.0.get(2..2 + usize::from(length & 0x7f))?;
                let length = more.iter().fold(0, |all, b| all << 8 | usize::from(*b));
                (2 + more.len(), length)
            }
            _ => return None,
        };
        let (all, rest) = self.0.split_at_checked(head.checked_add(length)?)?;
        self.0 = rest;
        Some((kind, &all[head..], all))
    }

    /// What is in the next one, if it is of this kind.
    fn inside(&mut self, kind: u8) -> Option<Reader<'a>> {
        let (found, inside, _) = self.next()?;
        (found == kind).then_some(Reader(inside))
    }
}

#[cfg(test)]
mod tests;
