//! Which DNS questions of hosts are open: [`Questions`]. A datagram counts as an answer only if
//! it answers one of them. Any other from a server's port, such as one that an authenticated peer
//! makes up, says nothing to a line's rules by name.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use dial::books::Name;
use relay::dns::{self, Named};
use units::{Duration, Instant, Shares, host_in_network};

const PORT: u16 = 53;
/// Questions that are remembered; the oldest of the host that has the most give way.
const MOST: usize = 1_024;
/// An answer that comes later answers nothing. A line may have to be raised for it first.
const OPEN: Duration = Duration::from_secs(120);

/// A question, or the question that a message says it answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    host: SocketAddr,
    server: SocketAddr,
    id: u16,
    kind: u16,
    name: Name,
}

impl Question {
    /// What a host's message asks of a server.
    pub fn asked(host: SocketAddr, server: SocketAddr, message: &[u8]) -> Option<Question> {
        Question::read(host, server, message, false).map(|(question, _)| question)
    }

    /// Which question a message to a host says that it answers, and how.
    pub fn answered(
        host: SocketAddr,
        server: SocketAddr,
        message: &[u8],
    ) -> Option<(Question, Named)> {
        Question::read(host, server, message, true)
    }

    fn read(
        host: SocketAddr,
        server: SocketAddr,
        message: &[u8],
        is_answer: bool,
    ) -> Option<(Question, Named)> {
        let message = Some(message).filter(|_| server.port() == PORT)?;
        let named = dns::read(message).filter(|named| named.is_answer == is_answer)?;
        let name = named.name.to_ascii_lowercase().into();
        Some((Question { host, server, id: named.id, kind: named.kind, name }, named))
    }
}

/// Open questions, and when they were asked.
#[derive(Default)]
pub(in crate::up::shard) struct Questions {
    open: BTreeMap<Question, Instant>,
    shares: Shares<IpAddr, IpAddr, (Instant, Question)>,
}

impl Questions {
    /// A host has asked.
    pub fn note(&mut self, now: Instant, question: Question) {
        self.forget(&question);
        let holder = host_in_network(question.host.ip());
        self.shares.add(&holder, (now, question.clone()), 1);
        self.open.insert(question, now);
        while self.open.len() > MOST
            && let Some((_, oldest)) = self.shares.gives_way().cloned()
        {
            self.forget(&oldest);
        }
    }

    /// Is it open? The first answer closes it.
    pub fn take(&mut self, now: Instant, question: &Question) -> bool {
        self.forget(question).is_some_and(|at| now.since(at) < OPEN)
    }

    fn forget(&mut self, question: &Question) -> Option<Instant> {
        let at = self.open.remove(question)?;
        let holder = host_in_network(question.host.ip());
        self.shares.remove(&holder, &(at, question.clone()));
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "10.1.0.2:4000";
    const SERVER: &str = "192.0.2.53:53";

    fn message(id: u8, name: &str, kind: u8, is_answer: bool) -> Vec<u8> {
        let mut m = vec![0, id, if is_answer { 0x81 } else { 1 }, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        m[7] = u8::from(is_answer);
        for label in name.split('.') {
            m.push(label.len() as u8);
            m.extend(label.as_bytes());
        }
        m.extend([0, 0, kind, 0, 1]);
        if is_answer {
            m.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 9]);
        }
        m
    }

    fn addr(addr: &str) -> SocketAddr {
        addr.parse().expect("an address")
    }

    fn asked(host: &str, id: u8, name: &str) -> Question {
        let message = message(id, name, 1, false);
        Question::asked(addr(host), addr(SERVER), &message).expect("a question")
    }

    fn counts(questions: &mut Questions, seconds: u64, from: &str, to: &str, m: &[u8]) -> bool {
        let now = Instant::ZERO + Duration::from_secs(seconds);
        let answer = Question::answered(addr(to), addr(from), m);
        answer.is_some_and(|(question, _)| questions.take(now, &question))
    }

    #[test]
    fn only_the_first_answer_to_an_open_question_counts() {
        let mut questions = Questions::default();
        let good = message(7, "www.example.org", 1, true);
        assert!(!counts(&mut questions, 0, SERVER, HOST, &good), "nobody has asked");
        questions.note(Instant::ZERO, asked(HOST, 7, "WWW.example.org"));
        for (what, from, to, m) in [
            ("of another server", "192.0.2.54:53", HOST, &good),
            ("from another port", "192.0.2.53:54", HOST, &good),
            ("to another port", SERVER, "10.1.0.2:4001", &good),
            ("to another host", SERVER, "10.1.0.3:4000", &good),
            ("another number", SERVER, HOST, &message(8, "www.example.org", 1, true)),
            ("another name", SERVER, HOST, &message(7, "www.example.com", 1, true)),
            ("another type", SERVER, HOST, &message(7, "www.example.org", 28, true)),
            ("a question", SERVER, HOST, &message(7, "www.example.org", 1, false)),
        ] {
            assert!(!counts(&mut questions, 1, from, to, m), "{what}");
        }
        assert!(counts(&mut questions, 1, SERVER, HOST, &good));
        assert!(!counts(&mut questions, 1, SERVER, HOST, &good), "a second answer");
        questions.note(Instant::ZERO, asked(HOST, 7, "www.example.org"));
        assert!(!counts(&mut questions, 120, SERVER, HOST, &good), "too late");
    }

    #[test]
    fn a_host_that_asks_without_end_leaves_the_others_their_questions() {
        let mut questions = Questions::default();
        questions.note(Instant::ZERO, asked(HOST, 7, "www.example.org"));
        for n in 0..10 * MOST {
            let hog = format!("10.1.0.9:{}", 1_024 + n);
            questions.note(Instant::ZERO, asked(&hog, 1, "a.example"));
        }
        assert_eq!((questions.open.len(), questions.shares.sum()), (MOST, MOST));
        let good = message(7, "www.example.org", 1, true);
        assert!(counts(&mut questions, 1, SERVER, HOST, &good));
    }
}
