//! Names become addresses on threads of their own, because the system's resolver blocks.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use link::PeerId;
use os::OsError;
use os::poll::Waker;
use relay::FlowId;

/// Threads that resolve; a name that does not answer holds one for some seconds.
const THREADS: usize = 4;
/// Names that may wait.
const WAITING: usize = 256;

/// What a name is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A peer's endpoint.
    Endpoint(PeerId),
    /// A server that a peer's client named.
    Server(FlowId),
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

/// The resolver threads, started with the first question.
pub struct Names {
    questions: Option<SyncSender<Question>>,
    answers: Receiver<Answer>,
    answer_to: Sender<Answer>,
    pub waker: Waker,
}

impl Names {
    /// A resolver at rest.
    pub fn new() -> Result<Names, OsError> {
        let (answer_to, answers) = channel();
        Ok(Names { questions: None, answers, answer_to, waker: Waker::new()? })
    }

    /// Asks; false if too many names wait already.
    pub fn ask(&mut self, purpose: Purpose, name: &str, port: u16) -> bool {
        let question = Question { purpose, name: name.to_owned(), port };
        let questions = self.questions.get_or_insert_with(|| start(&self.answer_to, &self.waker));
        match questions.try_send(question) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// The next answer; the waker tells when there is one.
    pub fn next(&mut self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

fn start(answer_to: &Sender<Answer>, waker: &Waker) -> SyncSender<Question> {
    let (sender, receiver) = sync_channel::<Question>(WAITING);
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..THREADS {
        let (receiver, answers, waker) = (receiver.clone(), answer_to.clone(), waker.clone());
        // A thread that cannot start leaves the work to the others.
        let _ = thread::Builder::new().name("names".into()).spawn(move || {
            loop {
                let next = receiver.lock().ok().and_then(|r| r.recv().ok());
                let Some(q) = next else { return };
                let addresses =
                    (q.name.as_str(), q.port).to_socket_addrs().map_or(vec![], Iterator::collect);
                if answers.send(Answer { purpose: q.purpose, addresses }).is_err() {
                    return;
                }
                waker.wake();
            }
        });
    }
    sender
}
