//! Names in the DNS messages of hosts (RFC 1035, section 4): what a host asks for, and the
//! addresses that it was told. They say what a packet is for (R-DDR), and nothing is let in or kept
//! out by them.

use std::net::IpAddr;

/// Records of an answer that are read, at most.
const MOST: usize = 64;
const HEADER: usize = 12;
const A: u16 = 1;
const AAAA: u16 = 28;
const IN: u16 = 1;

/// A question, or what it was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The message's number: an answer has its question's.
    pub id: u16,
    /// It is an answer.
    pub is_answer: bool,
    /// The type of the records that were asked for.
    pub kind: u16,
    /// The name that was asked for, without the dot at its end.
    pub name: String,
    /// Its addresses, in an answer.
    pub addresses: Vec<IpAddr>,
}

/// Reads a message with one question; `None` for what is none. Names that are no host's, with
/// bytes other than letters, digits, `-` and `_` in them, are none.
pub fn read(message: &[u8]) -> Option<Named> {
    let head: &[u8; HEADER] = message.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let (is_answer, questions, records) = (head[2] & 0x80 != 0, word(4), word(6));
    if questions != 1 {
        return None;
    }
    let (name, at) = question(message, HEADER)?;
    let mut addresses = Vec::new();
    // Behind the name: type and class.
    let fixed: &[u8; 4] = message.get(at..)?.first_chunk()?;
    let kind = u16::from_be_bytes([fixed[0], fixed[1]]);
    let mut rest = &message[at + 4..];
    let records = if is_answer { usize::from(records).min(MOST) } else { 0 };
    for _ in 0..records {
        // A packet may have been cut off: what is whole counts.
        let Some((address, behind)) = record(rest) else { break };
        addresses.extend(address);
        rest = behind;
    }
    Some(Named { id: word(0), is_answer, kind, name, addresses })
}

/// The name at `at`, and where it ends. There is nothing that a question's name could point to.
fn question(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            return (!name.is_empty()).then_some((name, at));
        }
        // Longer ones are pointers. A name has 255 bytes at most.
        let label = message.get(at..at + length).filter(|_| length < 64)?;
        let is_plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if !label.iter().all(is_plain) || name.len() + length > 253 {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|b| char::from(*b)));
        at += length;
    }
}

/// The address in the first record, if it is one of an address, and what stands behind the record.
fn record(bytes: &[u8]) -> Option<(Option<IpAddr>, &[u8])> {
    let mut at = 0;
    loop {
        match *bytes.get(at)? {
            0 => break at += 1,
            pointer if pointer >= 0xc0 => break at += 2,
            label => at += usize::from(label) + 1,
        }
    }
    let fixed: &[u8; 10] = bytes.get(at..)?.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let data = bytes.get(at + 10..at + 10 + usize::from(word(8)))?;
    let address = match (word(0), word(2)) {
        (A, IN) => data.try_into().ok().map(|four: [u8; 4]| IpAddr::from(four)),
        (AAAA, IN) => data.try_into().ok().map(|sixteen: [u8; 16]| IpAddr::from(sixteen)),
        _ => None,
    };
    Some((address, &bytes[at + 10 + data.len()..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A question for `name`, answered by records of these types and contents.
    fn message(name: &str, records: &[(u16, &[u8])]) -> Vec<u8> {
        let count = records.len() as u16;
        let mut m = vec![7, 7, if records.is_empty() { 1 } else { 0x81 }, 0x80, 0, 1];
        m.extend(count.to_be_bytes());
        m.extend([0; 4]);
        for label in name.split('.') {
            m.push(label.len() as u8);
            m.extend(label.as_bytes());
        }
        m.extend([0, 0, 1, 0, 1]);
        for (kind, data) in records {
            m.extend([0xc0, 12]);
            m.extend(kind.to_be_bytes());
            m.extend([0, 1, 0, 0, 0, 60]);
            m.extend((data.len() as u16).to_be_bytes());
            m.extend(*data);
        }
        m
    }

    #[test]
    fn a_question_has_a_name_and_an_answer_its_addresses() {
        let asked = read(&message("www.Example.org", &[])).expect("a question");
        let www = || "www.Example.org".into();
        let (id, kind) = (0x0707, A);
        let question = Named { id, is_answer: false, kind, name: www(), addresses: vec![] };
        assert_eq!(asked, question);
        let six = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let alias = [3, b'c', b'd', b'n', 0xc0, 12];
        let answer = message("a.b", &[(5, &alias), (A, &[192, 0, 2, 1]), (AAAA, &six)]);
        let told = read(&answer).expect("an answer");
        let addresses: Vec<IpAddr> =
            ["192.0.2.1", "2001:db8::1"].map(|a| a.parse().expect("one")).into();
        let name = "a.b".into();
        let addresses_told = addresses.clone();
        assert_eq!(told, Named { id, is_answer: true, kind, name, addresses: addresses_told });
        // What was cut off at its end tells what is whole.
        let cut = read(&answer[..answer.len() - 1]).expect("most of it");
        assert_eq!(cut.addresses, addresses[..1]);
    }

    #[test]
    fn what_is_no_hosts_name_is_none() {
        assert_eq!(read(&message("a b.c", &[])), None);
        assert_eq!(read(&message(&"long.".repeat(60), &[])), None);
        let mut pointer = message("x", &[]);
        pointer[12] = 0xc0;
        assert_eq!(read(&pointer), None);
        let mut two = message("a.b", &[]);
        two[5] = 2;
        assert_eq!(read(&two), None);
        // The root's name is empty.
        assert_eq!(read(&[7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]), None);
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&bytes);
        }

        #[test]
        fn so_is_an_answer_with_a_wrong_byte(at in 0..80usize, byte: u8) {
            let mut m = message("mail.example.org", &[(A, &[1, 2, 3, 4]), (A, &[1, 2, 3, 5])]);
            let at = at % m.len();
            m[at] = byte;
            if let Some(named) = read(&m) {
                prop_assert!(named.addresses.len() <= MOST && named.name.len() <= 253);
            }
        }
    }
}
