//! Commands that the operator has given to services, until they are answered.

use units::{Duration, Instant};

use super::words::printable;
use crate::admin::Answer;

/// How long a service may take. The client waits longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The control socket's number for the client.
    pub token: u64,
    /// Which of all clients that is.
    pub serial: u64,
}

#[derive(Debug)]
struct Open {
    request: u64,
    service: usize,
    asker: Asker,
    since: Instant,
}

/// All that are open: no more than the control socket has clients.
#[derive(Debug, Default)]
pub struct Commands {
    last: u64,
    open: Vec<Open>,
}

impl Commands {
    /// One more; its number.
    pub fn begin(&mut self, now: Instant, service: usize, asker: Asker) -> u64 {
        self.last += 1;
        self.open.push(Open { request: self.last, service, asker, since: now });
        self.last
    }

    /// A service has answered; for whom that is, and what.
    pub fn end(
        &mut self,
        service: usize,
        request: u64,
        failed: bool,
        bytes: &[u8],
    ) -> Option<(Asker, Answer)> {
        let its = |open: &Open| open.service == service && open.request == request;
        let open = self.open.swap_remove(self.open.iter().position(its)?);
        let answer = match (failed, serde_json::from_slice(bytes)) {
            (true, _) => Answer::Error(printable(bytes)),
            (false, Ok(value)) => Answer::Service(value),
            (false, Err(_)) => {
                Answer::Error("the service answers something that is no JSON".into())
            }
        };
        Some((open.asker, answer))
    }

    /// Those that are not answered any more: the service has ended, or takes too long.
    pub fn give_up(&mut self, now: Instant, ended: Option<usize>) -> Vec<(Asker, Answer)> {
        let over = |open: &mut Open| {
            ended == Some(open.service) || ended.is_none() && now.since(open.since) >= PATIENCE
        };
        let why = match ended {
            Some(_) => "the service has ended; it is started again".to_owned(),
            None => format!("the service has not answered for {PATIENCE}: does it take commands?"),
        };
        self.open.extract_if(.., over).map(|it| (it.asker, Answer::Error(why.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(serial: u64) -> Asker {
        Asker { token: 7, serial }
    }

    #[test]
    fn an_answer_reaches_who_asked_the_service_that_gives_it_and_only_once() {
        let mut commands = Commands::default();
        let now = Instant::ZERO;
        let first = commands.begin(now, 0, asker(1));
        let second = commands.begin(now, 1, asker(2));
        assert_eq!(commands.end(1, first, false, b"1"), None, "another service's");
        let (to, answer) = commands.end(1, second, false, b"{\"a\":1}").unwrap();
        assert_eq!((to, answer), (asker(2), Answer::Service(serde_json::json!({ "a": 1 }))));
        assert_eq!(commands.end(1, second, false, b"1"), None);
        let refused = commands.end(0, first, true, b"no\x1b[2J").unwrap().1;
        assert_eq!(refused, Answer::Error("no?[2J".into()), "no terminal obeys a service");
        let third = commands.begin(now, 0, asker(3));
        assert!(matches!(commands.end(0, third, false, b"{"), Some((_, Answer::Error(_)))));
    }

    #[test]
    fn nobody_waits_for_a_service_that_has_ended_or_says_nothing() {
        let mut commands = Commands::default();
        let now = Instant::ZERO;
        commands.begin(now, 0, asker(1));
        commands.begin(now, 1, asker(2));
        assert_eq!(commands.give_up(now, Some(1)).len(), 1);
        assert_eq!(commands.give_up(now + Duration::from_secs(4), None), []);
        let told = commands.give_up(now + PATIENCE, None);
        assert!(matches!(&told[..], [(to, Answer::Error(_))] if *to == asker(1)));
        assert!(commands.open.is_empty());
    }
}
