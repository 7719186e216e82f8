//! What hosts send, by kind: what it becomes, and that it comes back as it was.

use units::Rng;

use super::tests::{SLOW, megabyte_of_code, random, round_trip};
use super::zstd::DICTIONARY;

const FAST: u64 = 20_000_000;

fn words(rng: &mut Rng, count: u64) -> String {
    const WORDS: [&str; 24] = [
        "harbour", "the", "of", "ship", "pilot", "and", "to", "crew", "weather", "in", "report",
        "is", "cargo", "a", "at", "noon", "berth", "for", "anchor", "on", "wind", "with", "fuel",
        "north",
    ];
    let word = |_| WORDS[rng.below(WORDS.len() as u64) as usize];
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}

fn html() -> Vec<u8> {
    let mut rng = Rng::new(1);
    let mut page =
        "<!DOCTYPE html>\n<html lang=\"en\"><head><title>News</title></head><body>".to_owned();
    for n in 0..400 {
        page += &format!(
            "<div class=\"article\" id=\"a{}\"><h2><a href=\"/news/{n}.html\">{}</a></h2>\
             <p>{}.</p><img src=\"/images/{}.jpg\" width=\"{}\" alt=\"\"></div>\n",
            rng.below(1 << 20),
            words(&mut rng, 5),
            words(&mut rng, 40),
            rng.below(1 << 30),
            rng.below(1000),
        );
    }
    (page + "</body></html>\n").into_bytes()
}

/// A short text, and 150 kB that look random in lines of base64 (RFC 2045, section 6.8).
fn mail() -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = words(&mut Rng::new(2), 200);
    let mut mail = format!(
        "From: Chief Mate <mate@aurora.example>\r\nTo: agent@harbour.example\r\nSubject: Survey\r\n\
         MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=\"b1\"\r\n\r\n--b1\r\n\
         Content-Type: text/plain\r\n\r\n{text}\r\n--b1\r\nContent-Type: image/jpeg\r\n\
         Content-Transfer-Encoding: base64\r\n\r\n"
    )
    .into_bytes();
    let digits: Vec<u8> =
        random(200_000).iter().map(|byte| ALPHABET[usize::from(byte % 64)]).collect();
    for line in digits.chunks(76) {
        mail.extend_from_slice(line);
        mail.extend_from_slice(b"\r\n");
    }
    mail.extend_from_slice(b"--b1--\r\n");
    mail
}

/// A megabyte of archives: what zstd makes of source code, one file of 100 kB after another.
fn archive() -> Vec<u8> {
    let code = megabyte_of_code();
    let mut archive = Vec::new();
    for at in (0..).step_by(7_000) {
        let piece = &code[at % 900_000..][..100_000];
        let mut file = vec![0; zstd_safe::compress_bound(piece.len())];
        let len = zstd_safe::compress(&mut file[..], piece, 9).expect("there is room");
        archive.extend_from_slice(&file[..len]);
        if archive.len() >= 1_000_000 {
            archive.truncate(1_000_000);
            return archive;
        }
    }
    unreachable!("steps have no end")
}

/// A megabyte like the scans of JPEG: entropy-coded bytes that are not all as frequent, a zero
/// after each 0xff, and now and then a restart marker (ITU-T T.81, B.1.1).
fn images() -> Vec<u8> {
    let mut rng = Rng::new(3);
    let mut image = Vec::with_capacity(1_000_002);
    while image.len() < 1_000_000 {
        // One byte in sixteen has fewer ones than most.
        let byte = rng.below(256) as u8;
        let byte = if rng.below(16) == 0 { byte & rng.below(256) as u8 } else { byte };
        image.push(byte);
        if byte == 0xff {
            image.push(0);
        }
        if rng.below(2_000) == 0 {
            image.extend_from_slice(&[0xff, 0xd0 + rng.below(8) as u8]);
        }
    }
    image
}

#[test]
fn pages_and_mails_shrink_and_archives_and_images_grow_by_a_thousandth_at_most() {
    // So many thousandths at the most.
    let kinds = [
        ("HTML", html(), 300),
        ("mail", mail(), 800),
        ("archive", archive(), 1001),
        ("image", images(), 1001),
    ];
    for (kind, content, most) in kinds {
        for (rate, piece) in [(FAST, 64 * 1024), (FAST, 1448), (SLOW, 1448)] {
            let cost = round_trip(&content, rate, piece);
            let part = (cost * 1000).div_ceil(content.len());
            println!("{kind} by {piece} at {rate} bit/s: {cost} of {} ({part})", content.len());
            assert!(part <= most, "{kind} at {rate} bit/s: {cost} of {}", content.len());
        }
    }
}

/// Each has nothing before it but the dictionary.
#[test]
fn first_messages_of_what_the_dictionary_knows_shrink() {
    let messages: [(&str, &str, usize); 6] = [
        (
            "SMTP",
            "250-mx.harbour.example Hello\r\n250-PIPELINING\r\n250-SIZE 30720000\r\n\
             250-STARTTLS\r\n250-AUTH PLAIN LOGIN\r\n250-8BITMIME\r\n250 SMTPUTF8\r\n",
            50,
        ),
        ("SMTP client", "MAIL FROM:<mate@aurora.example> SIZE=4711 BODY=8BITMIME\r\n", 85),
        (
            "POP3",
            "+OK Capability list follows\r\nUSER\r\nUIDL\r\nTOP\r\nRESP-CODES\r\nPIPELINING\r\n\
             SASL PLAIN LOGIN\r\n.\r\n",
            50,
        ),
        (
            "IMAP",
            "* OK [CAPABILITY IMAP4rev1 SASL-IR LOGIN-REFERRALS ID ENABLE IDLE LITERAL+ STARTTLS \
             AUTH=PLAIN] Harbour IMAP ready.\r\n",
            35,
        ),
        ("IMAP client", "b7 UID FETCH 12:* (FLAGS)\r\n", 85),
        (
            "XML",
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<soap:Envelope \
             xmlns:soap=\"http://schemas.xmlsoap.org/soap/envelope/\"><soap:Body><Position>\
             <Lat>53.54</Lat><Lon>9.98</Lon></Position></soap:Body></soap:Envelope>\n",
            40,
        ),
    ];
    // So many percent at the most.
    for (kind, message, most) in messages {
        let cost = round_trip(message.as_bytes(), SLOW, 1000);
        let percent = cost * 100 / message.len();
        println!("{kind}: {cost} of {} ({percent} %)", message.len());
        assert!(percent <= most, "{kind}: {cost} of {}", message.len());
    }
}

/// Blocks do not say which dictionary they were made with. An edit would let two releases that
/// take each other for equal give hosts wrong bytes: another dictionary is another parameter,
/// which both ends have to know before they use it.
#[test]
fn the_dictionary_is_the_one_of_the_protocol() {
    use blake2::Digest;
    let hash = blake2::Blake2s256::digest(DICTIONARY);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "a157554aa7883de45f37acec3e76257fff3b05e260419c5a62b283d52773b186");
}
