//! Requests and answers over a link on which nothing else happens: how long each takes, in
//! virtual time, through the very code that runs over sockets.

use link::session::{SessionStats, best_packet};
use relay::Share;
use units::{BitRate, ByteCount, Duration, Instant, Ratio};

use crate::Trace;
use crate::check::Failure;
use crate::plan::{Connection, Fault, FaultKind, Plan};
use crate::world::World;

/// Clients that fetch one after the other.
#[derive(Clone, Debug)]
pub struct Exchanges {
    /// What the draws of losses follow from.
    pub seed: u64,
    /// The link's rates: from the clients to the servers, and back.
    pub rates: [BitRate; 2],
    /// Both ways together.
    pub rtt: Duration,
    /// What goes wrong from the first packet on, in at most one kind each.
    pub faults: Vec<FaultKind>,
    /// The bit-error ratio that the profile promises.
    pub bit_errors: Ratio,
    /// When the first client connects: the link is up long before.
    pub begin: Duration,
    /// From one client's connecting to the next one's.
    pub spacing: Duration,
    /// All but the first connect at once, as the objects of a page.
    pub together: bool,
    /// How many there are.
    pub count: u64,
    /// Bytes of a request, and of its answer.
    pub request: u64,
    /// See `request`.
    pub answer: u64,
    /// Bytes of one more answer, which begins with the first client and goes on beside.
    pub beside: u64,
    /// The same the other way: a client of the servers' side fetches from the clients' side.
    pub beside_up: u64,
    /// Memory for the history of compressed streams, at both nodes; 0: no stream is
    /// compressed.
    pub history: ByteCount,
    /// Can what servers send be compressed?
    pub shrinks: bool,
    /// What streams share chunks with, by node; `None`: the node does not deduplicate.
    pub dedup: [Option<Share>; 2],
}

/// How they went.
#[derive(Clone, Debug)]
pub struct Exchanged {
    /// From connecting to the last byte of the answer.
    pub times: Vec<Duration>,
    /// What the sessions count, the clients' side first.
    pub stats: [SessionStats; 2],
    /// Link bytes that each node sent since the first client connected.
    pub bytes: [u64; 2],
    /// Those until each answer had come.
    pub bytes_by: Vec<[u64; 2]>,
}

/// More than any answer takes.
const PATIENCE: Duration = Duration::from_secs(3_600);

impl Exchanges {
    /// One client that fetches `answer` bytes.
    pub fn one(rates: [BitRate; 2], rtt: Duration, request: u64, answer: u64) -> Exchanges {
        Exchanges {
            seed: 1,
            rates,
            rtt,
            faults: Vec::new(),
            bit_errors: Ratio::ZERO,
            begin: Duration::from_secs(60),
            spacing: Duration::from_secs(1),
            together: false,
            count: 1,
            request,
            answer,
            beside: 0,
            beside_up: 0,
            history: ByteCount(0),
            shrinks: false,
            dedup: [None; 2],
        }
    }

    /// Lets them run.
    ///
    /// # Errors
    /// The first promise of the simulator that did not hold; an answer that did not come.
    pub fn run(&self, trace: Option<Trace<'_>>) -> Result<Exchanged, Failure> {
        let plan = self.plan();
        let mut world = World::new(&plan, trace);
        world.most_steps = u64::MAX;
        world.run(Instant::ZERO + self.begin, |_| false)?;
        let before = world.report.packet_bytes;
        let clients = &plan.connections[..self.count as usize];
        let came = |w: &World<'_>, i: usize| {
            let client = w.talks[i].hosts[0].as_ref();
            client.is_some_and(|c| c.received >= self.answer)
        };
        // Answers come in any order.
        let mut ended = vec![None; clients.len()];
        while let Some(first) = ended.iter().position(Option::is_none) {
            let waiting = |w: &World<'_>| {
                let begun = clients[first..].iter().take_while(|c| c.at <= w.now).count();
                first..first + begun
            };
            let one = |w: &World<'_>| waiting(w).find(|i| ended[*i].is_none() && came(w, *i));
            if !world.run(clients[first].at + PATIENCE, |w| one(w).is_some())? {
                return world.fail(format!("answer {first} did not come"));
            }
            if let Some(i) = one(&world) {
                let bytes = world.report.packet_bytes;
                let sent = [bytes[0] - before[0], bytes[1] - before[1]];
                ended[i] = Some((world.now.since(clients[i].at), sent));
            }
        }
        let (times, bytes_by) = ended.into_iter().flatten().unzip();
        let after = world.report.packet_bytes;
        Ok(Exchanged {
            times,
            stats: [0, 1].map(|n| world.nodes[n].session().map(|s| s.stats()).unwrap_or_default()),
            bytes: [after[0] - before[0], after[1] - before[1]],
            bytes_by,
        })
    }

    /// When client `i` connects.
    pub fn begins(&self, i: u64) -> Duration {
        self.begin + self.spacing.times(if self.together { i.min(1) } else { i })
    }

    fn plan(&self) -> Plan {
        let begin = Instant::ZERO + self.begin;
        let at = |i| Instant::ZERO + self.begins(i);
        let end = at(self.count) + PATIENCE;
        let fault = |kind: &FaultKind| Fault { from: Instant::ZERO, until: end, kind: *kind };
        let mut connections: Vec<Connection> =
            (0..self.count).map(|i| Connection::fetch(at(i), self.request, self.answer)).collect();
        if self.beside > 0 {
            connections.push(Connection::fetch(begin, self.request, self.beside));
        }
        if self.beside_up > 0 {
            let up = Connection::fetch(begin, self.request, self.beside_up);
            connections.push(Connection { node: 1, ..up });
        }
        Plan {
            seed: self.seed,
            faults: self.faults.iter().map(fault).collect(),
            heal_at: end,
            connections,
            bit_errors: self.bit_errors,
            packets: [best_packet(1500, self.bit_errors); 2],
            histories: [self.history; 2],
            shrinks: self.shrinks,
            dedup: self.dedup,
            contents: self.dedup.iter().any(Option::is_some).then_some(1),
            ..Plan::quiet(self.rates, self.rtt)
        }
    }
}
