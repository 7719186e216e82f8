//! The messages themselves; what tunnels make of them is tested there.

use super::*;

const EPOCHS: SessionId = SessionId { local: 0x1111, remote: 0x2222 };

fn key(n: u8) -> PrivateKey {
    PrivateKey::generate([n; 32])
}

fn hello(index: u32, aes: bool, params: &[u8]) -> Hello {
    let params = Params::new(params).expect("they fit");
    Hello { index, offer: Offer::new(aes), params }
}

fn ask(hello: Hello, cookie: Option<&Cookie>) -> (Asked, Message) {
    let mut entropy = Entropy::new([3; 32]);
    let psk = PresharedKey::NONE;
    Asked::new(&key(1), key(2).public(), &psk, hello, EPOCHS, cookie, &mut entropy)
        .expect("good keys")
}

fn open(message: &Message) -> Result<Initiation, HandshakeError> {
    Initiation::open(&key(2), &mut Entropy::new([4; 32]), message.as_bytes())
}

#[test]
fn an_initiation_says_what_it_was_told_at_every_length() {
    for len in 0..=MAX_PARAMS {
        for cookie in [None, Some(Cookie::from_bytes([7; 16]))] {
            let params = vec![9; len];
            let (asked, message) = ask(hello(5, true, &params), cookie.as_ref());
            let size = message.as_bytes().len();
            assert!((MIN_INITIATION..=MAX_MESSAGE).contains(&size), "{size} bytes");
            assert_eq!(check_form(message.as_bytes()), Ok(()));
            let initiation = open(&message).expect("a good initiation");
            assert_eq!(initiation.peer(), key(1).public());
            assert_eq!(initiation.params().as_bytes(), params);
            assert_eq!(initiation.sender_index(), asked.index());
            let mirrored = SessionId { local: EPOCHS.remote, remote: EPOCHS.local };
            assert_eq!(initiation.epochs(), mirrored);
            let theirs = initiation.cookie().map(|c| *c.as_bytes());
            assert_eq!(theirs, cookie.map(|c| *c.as_bytes()));
        }
    }
}

#[test]
fn a_response_says_what_it_was_told_and_both_have_the_same_keys() {
    for len in 0..=MAX_PARAMS {
        let (mut asked, message) = ask(hello(5, true, b""), None);
        let initiation = open(&message).expect("a good initiation");
        let params = vec![9; len];
        let (theirs, response) = initiation
            .respond(&PresharedKey::NONE, hello(6, true, &params), 0x3333)
            .expect("a response");
        assert!((MIN_RESPONSE..=MAX_RESPONSE).contains(&response.as_bytes().len()));
        assert_eq!(check_form(response.as_bytes()), Ok(()));
        let read = asked.read_response(response.as_bytes()).expect("a good response");
        let ours = asked.finish(read);
        assert_eq!(ours.session, SessionId { local: 0x1111, remote: 0x3333 });
        assert_eq!(theirs.session, SessionId { local: 0x3333, remote: 0x1111 });
        assert_eq!((ours.remote_index, theirs.remote_index), (6, 5));
        assert_eq!((ours.cipher, theirs.cipher), (Cipher::Aes256Gcm, Cipher::Aes256Gcm));
        assert_eq!(ours.params.as_bytes(), params);
        let both = [&ours.keys, &theirs.keys];
        let [a, b] = both.map(|k| (*k.from_initiator.as_bytes(), *k.from_responder.as_bytes()));
        assert_eq!(a, b);
    }
}

/// L-HS-6.
#[test]
fn a_cipher_that_was_not_offered_is_refused() {
    let (mut asked, message) = ask(hello(5, false, b""), None);
    let mut initiation = open(&message).expect("a good initiation");
    initiation.offer = Offer::new(true); // the responder pretends
    let (_, response) =
        initiation.respond(&PresharedKey::NONE, hello(6, true, b""), 1).expect("a response");
    let refused = asked.read_response(response.as_bytes()).err();
    assert_eq!(refused, Some(HandshakeError::NotOffered));
}

#[test]
fn offers_with_nothing_in_common_get_no_response() {
    let (_, message) = ask(hello(5, true, b""), None);
    let mut initiation = open(&message).expect("a good initiation");
    initiation.offer = Offer(0x80);
    assert!(!initiation.suits(Offer::new(true)));
    let refused = initiation.respond(&PresharedKey::NONE, hello(6, true, b""), 1).err();
    assert_eq!(refused, Some(HandshakeError::NotOffered));
}

#[test]
fn an_epoch_of_zero_is_malformed() {
    let epochs = SessionId { local: 0, remote: 0 };
    let (psk, mut entropy) = (PresharedKey::NONE, Entropy::new([3; 32]));
    let hello_5 = hello(5, true, b"");
    let asked = Asked::new(&key(1), key(2).public(), &psk, hello_5, epochs, None, &mut entropy);
    let (_, message) = asked.expect("good keys");
    assert_eq!(open(&message).err(), Some(HandshakeError::Malformed));

    let (mut asked, message) = ask(hello_5, None);
    let (_, response) =
        open(&message).expect("good").respond(&psk, hello(6, true, b""), 0).expect("a response");
    assert_eq!(asked.read_response(response.as_bytes()).err(), Some(HandshakeError::Malformed));
}

#[test]
fn another_header_or_another_responder_does_not_open_an_initiation() {
    let (_, message) = ask(hello(5, true, b""), None);
    for at in 0..6 {
        let mut bad = message;
        bad.as_mut()[at] ^= 1;
        assert_eq!(open(&bad).err(), Some(HandshakeError::Forged), "byte {at}");
    }
    let other = Initiation::open(&key(3), &mut Entropy::new([4; 32]), message.as_bytes());
    assert_eq!(other.err(), Some(HandshakeError::Forged));
}

#[test]
fn the_form_alone_tells_version_and_length() {
    let (_, message) = ask(hello(5, true, b""), None);
    let good = message.as_bytes();
    for len in 0..MIN_INITIATION {
        assert_eq!(check_form(&good[..len]), Err(HandshakeError::Malformed), "{len} bytes");
    }
    let mut other = good.to_vec();
    other[1] = 2;
    assert_eq!(check_form(&other), Err(HandshakeError::Version));
    other[0] = 0x04;
    assert_eq!(check_form(&other), Err(HandshakeError::Malformed));
}
