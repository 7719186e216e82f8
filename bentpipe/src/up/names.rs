//! Names become addresses on threads of their own, because the system's resolver blocks.
//!
//! A name that does not answer holds a thread for some seconds, and whoever asks is a
//! peer's client. So every peer has a queue of its own, they have turns, and no peer has
//! more than [`AT_ONCE`] of the threads for its clients, and for its own endpoint (R-MANY).
//!
//! Where this node's own traffic goes into the link (`own = true`) its questions for names do,
//! too, and a peer could not be found by way of itself. Endpoints are then asked for with the
//! carrier's mark ([`question`]), and nothing else passes the tunnel by.

mod question;

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use link::PeerId;
use link::keys::PublicKey;
use os::OsError;
use os::poll::Waker;
use relay::Caller;

/// Threads that resolve, of all shards together, as far as each then has [`LEAST`].
const THREADS: usize = 8;
/// Of them, those that may work for one peer's clients, and for its own endpoint.
const AT_ONCE: usize = 2;
/// One is left for others, whatever one peer asks.
const LEAST: usize = 2 * AT_ONCE + 1;
/// Names of one peer that may wait.
const WAITING: usize = 64;

/// What a name is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A peer's endpoint. Its key: another peer may have its place when the answer comes.
    Endpoint(PublicKey),
    /// A server that a peer's client named, or a service for it; to be connected to as this
    /// address.
    Server(Caller, Option<SocketAddr>),
    /// A service wants to know the addresses alone; which of the shard's questions that is.
    Addresses(u64),
}

/// A name's addresses; none where it does not resolve.
pub struct Answer {
    pub purpose: Purpose,
    pub addresses: Vec<SocketAddr>,
}

struct Question {
    purpose: Purpose,
    name: String,
    port: u16,
}

/// Who asks: a peer's clients, or this node itself for the peer's endpoint.
type Asker = (PeerId, bool);

/// One asker's questions; there is one only while some wait or are being answered.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<Question>,
    working: usize,
}

#[derive(Default)]
struct Lanes {
    lanes: BTreeMap<Asker, Lane>,
    /// Those that have questions and may have a thread, in the order of their turns.
    turns: VecDeque<Asker>,
    ended: bool,
}

impl Lanes {
    fn push(&mut self, asker: Asker, question: Question) -> bool {
        let lane = self.lanes.entry(asker).or_default();
        if lane.waiting.len() >= WAITING {
            return false;
        }
        lane.waiting.push_back(question);
        if lane.waiting.len() == 1 && lane.working < AT_ONCE {
            self.turns.push_back(asker);
        }
        true
    }

    /// The next question; [`Lanes::done`] must follow.
    fn take(&mut self) -> Option<(Asker, Question)> {
        let asker = self.turns.pop_front()?;
        let lane = self.lanes.get_mut(&asker)?;
        let question = lane.waiting.pop_front()?;
        lane.working += 1;
        if !lane.waiting.is_empty() && lane.working < AT_ONCE {
            self.turns.push_back(asker);
        }
        Some((asker, question))
    }

    fn done(&mut self, asker: Asker) {
        let Some(lane) = self.lanes.get_mut(&asker) else { return };
        lane.working -= 1;
        if lane.waiting.is_empty() {
            if lane.working == 0 {
                self.lanes.remove(&asker);
            }
        } else if lane.working == AT_ONCE - 1 {
            // It had its share of threads and is in the row no more.
            self.turns.push_back(asker);
        }
    }
}

type Resolve = fn(&str, u16) -> Vec<SocketAddr>;

/// How names are resolved.
#[derive(Clone, Copy)]
struct How {
    system: Resolve,
    /// The mark of questions for endpoints, where they are to pass the tunnel by.
    mark: Option<u32>,
}

impl How {
    fn resolve(self, question: &Question) -> Vec<SocketAddr> {
        let (name, port) = (&question.name, question.port);
        let marked = self.mark.filter(|_| matches!(question.purpose, Purpose::Endpoint(_)));
        let found = marked.map_or(vec![], |mark| question::resolve(name, mark));
        match found.is_empty() {
            // The system knows names that no name server does.
            true => (self.system)(name, port),
            false => found.into_iter().map(|addr| SocketAddr::new(addr, port)).collect(),
        }
    }
}

fn resolve(name: &str, port: u16) -> Vec<SocketAddr> {
    (name, port).to_socket_addrs().map_or(vec![], Iterator::collect)
}

#[derive(Default)]
struct Shared {
    lanes: Mutex<Lanes>,
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The resolver threads, started with the first question.
pub struct Names {
    shared: Arc<Shared>,
    threads: usize,
    started: bool,
    how: How,
    answers: Receiver<Answer>,
    answer_to: Sender<Answer>,
    pub waker: Waker,
}

impl Names {
    /// The system's resolver, at rest, for one of so many shards: with its part of the threads.
    /// With a `mark` endpoints are asked for past the tunnel.
    pub fn new(shards: usize, mark: Option<u32>) -> Result<Names, OsError> {
        let how = How { system: resolve, mark };
        Names::with((THREADS / shards.max(1)).max(LEAST), how)
    }

    fn with(threads: usize, how: How) -> Result<Names, OsError> {
        let (answer_to, answers) = channel();
        let (shared, waker) = (Arc::default(), Waker::new()?);
        Ok(Names { shared, threads, started: false, how, answers, answer_to, waker })
    }

    /// Asks for a peer, or on behalf of its clients; false if too many names of its wait
    /// already.
    pub fn ask(&mut self, peer: PeerId, purpose: Purpose, name: &str, port: u16) -> bool {
        let question = Question { purpose, name: name.to_owned(), port };
        let asker = (peer, !matches!(purpose, Purpose::Endpoint(_)));
        if !self.shared.lock().push(asker, question) {
            return false;
        }
        if !self.started {
            self.started = true;
            self.start();
        }
        self.shared.news.notify_one();
        true
    }

    /// The next answer; the waker tells when there is one.
    pub fn next(&mut self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }

    fn start(&self) {
        for _ in 0..self.threads {
            let (shared, how) = (self.shared.clone(), self.how);
            let (answers, waker) = (self.answer_to.clone(), self.waker.clone());
            // A thread that cannot start leaves the work to the others.
            let _ = thread::Builder::new()
                .name("names".into())
                .spawn(move || work(&shared, how, &answers, &waker));
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.news.notify_all();
    }
}

fn work(shared: &Shared, how: How, answers: &Sender<Answer>, waker: &Waker) {
    let mut lanes = shared.lock();
    loop {
        if lanes.ended {
            return;
        }
        let Some((asker, question)) = lanes.take() else {
            lanes = shared.news.wait(lanes).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(lanes);
        let addresses = how.resolve(&question);
        let told = answers.send(Answer { purpose: question.purpose, addresses });
        waker.wake();
        lanes = shared.lock();
        lanes.done(asker);
        if told.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::FlowId;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    fn by(system: Resolve) -> How {
        How { system, mark: None }
    }

    fn server(n: u64) -> Purpose {
        Purpose::Server(Caller::Flow(FlowId::from_u64(n)), None)
    }

    static HELD: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);

    /// Names that end in "slow" hold their thread as a dead name server does.
    fn sometimes_slow(name: &str, port: u16) -> Vec<SocketAddr> {
        if name.ends_with("slow") {
            MOST.fetch_max(HELD.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_secs(3));
            HELD.fetch_sub(1, Ordering::SeqCst);
            return vec![];
        }
        vec![SocketAddr::from(([192, 0, 2, 1], port))]
    }

    #[test]
    fn a_peer_whose_names_do_not_answer_starves_no_other() {
        let mut names = Names::with(LEAST, by(sometimes_slow)).unwrap();
        let [greedy, modest] = [0, 1].map(PeerId::from_index);
        let taken = (0..300).filter(|n| names.ask(greedy, server(*n), "slow", 80)).count();
        assert!((WAITING..=WAITING + AT_ONCE).contains(&taken), "{taken} were taken");
        for n in 0..20 {
            assert!(
                names.ask(modest, server(1_000 + n), "quick", 443),
                "it has a queue of its own"
            );
        }
        // Nor does it hold up the search for its own endpoint.
        assert!(names.ask(
            greedy,
            Purpose::Endpoint(PublicKey::from_bytes([1; 32])),
            "quick",
            4500
        ));
        let (begin, mut quick, mut slow) = (Instant::now(), 0, 0);
        while quick < 21 && begin.elapsed() < Duration::from_secs(20) {
            match names.next() {
                Some(answer) if answer.addresses.is_empty() => slow += 1,
                Some(_) => quick += 1,
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
        assert_eq!(quick, 21);
        assert!(slow < WAITING / 2, "{slow} of the greedy peer's names came first");
        assert!(MOST.load(Ordering::SeqCst) <= AT_ONCE);
    }

    #[test]
    fn a_peer_whose_clients_and_endpoint_do_not_answer_leaves_a_thread_to_others() {
        let forever = |name: &str, port| {
            if name == "slow" {
                thread::sleep(Duration::MAX);
            }
            vec![([192, 0, 2, 1], port).into()]
        };
        let mut names = Names::with(LEAST, by(forever)).unwrap();
        let [greedy, modest] = [0, 1].map(PeerId::from_index);
        for n in 0..10 {
            assert!(names.ask(
                greedy,
                Purpose::Endpoint(PublicKey::from_bytes([1; 32])),
                "slow",
                4500
            ));
            assert!(names.ask(greedy, server(n), "slow", 80));
        }
        assert!(names.ask(modest, server(100), "quick", 443));
        let begin = Instant::now();
        let answer = loop {
            match names.next() {
                Some(answer) => break answer,
                None => thread::sleep(Duration::from_millis(1)),
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "it has no thread");
        };
        assert_eq!(answer.addresses.len(), 1);
    }

    #[test]
    fn every_question_that_is_taken_has_its_answer() {
        let mut names =
            Names::with(THREADS, by(|_, port| vec![([192, 0, 2, 1], port).into()])).unwrap();
        let mut open = std::collections::BTreeSet::new();
        let (begin, mut asked) = (Instant::now(), 0u64);
        while (asked < 5_000 || !open.is_empty()) && begin.elapsed() < Duration::from_secs(30) {
            let peer = PeerId::from_index(asked as usize % 7);
            let purpose = server(asked);
            if asked < 5_000 && names.ask(peer, purpose, "name", 1) {
                open.insert(asked);
                asked += 1;
            }
            while let Some(answer) = names.next() {
                let Purpose::Server(Caller::Flow(flow), _) = answer.purpose else {
                    panic!("nobody asked that")
                };
                assert!(open.remove(&flow.to_u64()), "answered twice");
            }
        }
        assert!(open.is_empty());
        while !names.shared.lock().lanes.is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(60), "a queue that is empty goes");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
