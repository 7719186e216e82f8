//! What a seed means: the link, the faults and the traffic of one run.

use channel::GilbertElliott;
use link::endpoint::MAX_KEY_LIFETIME;
use relay::{Open, ResetReason, Share};
use units::{BitRate, ByteCount, Duration, Instant, Ratio, Rng};

/// Everything about a run that is decided before it starts.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it was drawn from.
    pub seed: u64,
    /// The link's rates, by sender.
    pub rates: [BitRate; 2],
    /// One-way delays, by sender.
    pub delays: [Duration; 2],
    /// A second carrier between the nodes, which node 0 opens a path over.
    pub second: Option<Second>,
    /// Both carry streams' bytes at once.
    pub spread: bool,
    /// Classes of traffic name their carriers: bulk the second alone, normal both.
    pub bound: bool,
    /// What the profile says of the round trip; never exactly true.
    pub promised_rtt: Duration,
    /// The largest IP packet, by node.
    pub mtus: [u16; 2],
    /// The largest IP packet that each node sends.
    pub packets: [u16; 2],
    /// The bit-error ratio that the profile promises.
    pub bit_errors: Ratio,
    /// Framing that the link adds to each packet.
    pub overhead: u16,
    /// Memory for stream bytes, by node.
    pub memories: [ByteCount; 2],
    /// The most that one stream may have buffered.
    pub stream_buffer: Option<ByteCount>,
    /// Memory for the history of compressed streams, by node; 0: it does not compress.
    pub histories: [ByteCount; 2],
    /// Can what servers send be compressed?
    pub shrinks: bool,
    /// What streams share chunks with, by node; `None`: the node does not deduplicate.
    pub dedup: [Option<Share>; 2],
    /// How many different contents hosts have to send; `None`: no two are alike.
    pub contents: Option<u64>,
    /// A node that starts anew has lost the files of its chunks.
    pub loses_files: bool,
    /// Bits of these files flip.
    pub disks_rot: bool,
    /// The most streams, by node.
    pub max_streams: [u32; 2],
    /// Keepalive intervals, by node.
    pub keepalives: [Option<Duration>; 2],
    /// How long a key may be in use.
    pub key_lifetime: Duration,
    /// Does node 1 know at first where node 0 is? (Node 0 always knows node 1.)
    pub hub_knows: bool,
    /// Are the nodes' addresses IPv6?
    pub ipv6: bool,
    /// When clients are answered whose SYN comes to a node.
    pub open: Open,
    /// How late a node's driver may wake up.
    pub lateness: Duration,
    /// How far each node's clock is ahead of the world's: nodes agree on no time.
    pub clocks: [Duration; 2],
    /// Do drivers see to actions before they send?
    pub actions_first: bool,
    /// Faults, in the order of their beginnings.
    pub faults: Vec<Fault>,
    /// When the last fault ends.
    pub heal_at: Instant,
    /// Connections, in the order of their beginnings.
    pub connections: Vec<Connection>,
    /// Unsplit packets, in the order of their times.
    pub datagrams: Vec<Datagram>,
}

impl Plan {
    /// A link of these rates, by sender, that is what its profile says and on which nothing
    /// happens: node 0 is the clients' side.
    pub(crate) fn quiet(rates: [BitRate; 2], rtt: Duration) -> Plan {
        const MTU: u16 = 1500;
        Plan {
            seed: 1,
            rates,
            delays: [rtt.divided_by(2); 2],
            second: None,
            spread: false,
            bound: false,
            promised_rtt: rtt,
            mtus: [MTU; 2],
            packets: [MTU; 2],
            bit_errors: Ratio::ZERO,
            overhead: 0,
            memories: [ByteCount(256 << 20); 2],
            histories: [ByteCount(0); 2],
            shrinks: false,
            dedup: [None; 2],
            contents: None,
            loses_files: false,
            disks_rot: false,
            stream_buffer: None,
            max_streams: [1000; 2],
            keepalives: [None; 2],
            key_lifetime: MAX_KEY_LIFETIME,
            hub_knows: true,
            ipv6: false,
            open: Open::Fast,
            clocks: [Duration::ZERO; 2],
            lateness: Duration::ZERO,
            actions_first: false,
            faults: Vec::new(),
            heal_at: Instant::ZERO,
            connections: Vec::new(),
            datagrams: Vec::new(),
        }
    }
}

/// What a second carrier is. Faults but those of its own do not meet it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    /// Its rates, by sender.
    pub rates: [BitRate; 2],
    /// One-way delays, by sender.
    pub delays: [Duration; 2],
}

/// Something that goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When it begins.
    pub from: Instant,
    /// When it is over.
    pub until: Instant,
    /// What it is.
    pub kind: FaultKind,
}

/// What goes wrong. `way`: the packets of node 0, of node 1, or of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Independent losses.
    Loss(Way, Ratio),
    /// Losses in bursts.
    Bursts(Way, GilbertElliott),
    /// Bit errors that lose packets by their length.
    BitErrors(Way, Ratio),
    /// Some packets are overtaken.
    Reordering(Way, Ratio, Duration),
    /// Some packets arrive twice.
    Duplication(Way, Ratio, Duration),
    /// Some packets arrive with a flipped bit.
    Corruption(Way, Ratio),
    /// IP packets longer than this do not arrive.
    Narrow(Way, u16),
    /// No handshake arrives: somebody on the path drops them.
    NoHandshakes,
    /// Nothing arrives.
    Outage(Way),
    /// Nothing leaves: the modem holds what it is given, as much as its queue takes.
    Hold(Way),
    /// A node's clock leaps forward, as one that counts sleep does when the machine wakes; its
    /// keys are used no more (L-PP-9).
    /// (Setting the wall clock moves none of the kernel's other clocks.)
    Leap(usize, Duration),
    /// A node has another address from then on; nothing reaches it at the old one.
    Move(usize),
    /// A node dies, and starts anew when the fault is over.
    Restart(usize),
    /// The first carrier has a tenth of its rate, and loses one packet in five.
    Weak(Way),
    /// Nothing arrives over the second carrier.
    SecondDead(Way),
    /// A command at this node: everything goes by the second path, and later by the first.
    UseSecond(usize),
    /// Both nodes put the path over this carrier down.
    PathDown(usize),
}

impl FaultKind {
    /// The kind's name for reports.
    pub fn name(&self) -> &'static str {
        match self {
            FaultKind::Loss(..) => "loss",
            FaultKind::Bursts(..) => "bursts",
            FaultKind::BitErrors(..) => "bit errors",
            FaultKind::Reordering(..) => "reordering",
            FaultKind::Duplication(..) => "duplication",
            FaultKind::Corruption(..) => "corruption",
            FaultKind::Narrow(..) => "narrow path",
            FaultKind::NoHandshakes => "no handshakes",
            FaultKind::Outage(Way { both: true, .. }) => "outage",
            FaultKind::Outage(..) => "one-way outage",
            FaultKind::Hold(_) => "held packets",
            FaultKind::Leap(..) => "clock leap",
            FaultKind::Move(_) => "move",
            FaultKind::Restart(_) => "restart",
            FaultKind::Weak(_) => "weak carrier",
            FaultKind::SecondDead(_) => "second carrier dead",
            FaultKind::UseSecond(_) => "path by command",
            FaultKind::PathDown(_) => "path down",
        }
    }
}

/// Which packets a fault meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Those of this node,
    pub sender: usize,
    /// or those of both.
    pub both: bool,
}

impl Way {
    /// Are the packets of `sender` met?
    pub fn meets(self, sender: usize) -> bool {
        self.both || self.sender == sender
    }
}

/// A client, a server, and what they say to each other.
#[derive(Clone, Debug)]
pub struct Connection {
    /// When the client connects.
    pub at: Instant,
    /// The node on the client's side.
    pub node: usize,
    /// Does the client wait for the server to stand before it sends?
    pub sure: bool,
    /// Is the server named, not addressed? Then the name's length.
    pub name: Option<usize>,
    /// What the server does about the connection, and after how long.
    pub answer: (Answer, Duration),
    /// The two hosts: client, server.
    pub hosts: [Host; 2],
}

impl Connection {
    /// A client of node 0 that asks with `request` bytes and is answered with `answer`.
    pub(crate) fn fetch(at: Instant, request: u64, answer: u64) -> Connection {
        let host = |bytes, after| Host {
            bytes,
            pace: None,
            after,
            after_end: false,
            resets: false,
            resets_at: None,
            socket: 4 << 20,
            reads: None,
            pause: None,
        };
        Connection {
            at,
            node: 0,
            sure: false,
            name: None,
            answer: (Answer::Accept, Duration::ZERO),
            hosts: [host(request, 0), host(answer, request)],
        }
    }

    /// Does the client come by a SYN that its gateway withholds? The others are joined to
    /// the gateway already when they begin.
    pub fn knocks(&self) -> bool {
        self.sure && self.name.is_none() && self.answer.0 != Answer::Forbidden
    }
}

/// What a server does about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It accepts.
    Accept,
    /// There is no connection, for this reason.
    Refuse(ResetReason),
    /// The far node's policy forbids to ask.
    Forbidden,
}

/// One host's part in a connection.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Bytes it sends,
    pub bytes: u64,
    /// at this rate (as fast as its socket takes them),
    pub pace: Option<BitRate>,
    /// once it has received so many bytes,
    pub after: u64,
    /// or the peer's end.
    pub after_end: bool,
    /// Then it resets the connection; otherwise it closes its direction.
    pub resets: bool,
    /// Having received so many bytes it resets the connection.
    pub resets_at: Option<u64>,
    /// What each direction of its socket buffers.
    pub socket: u64,
    /// How fast it reads.
    pub reads: Option<BitRate>,
    /// Having received so many bytes it stops reading for so long.
    pub pause: Option<(u64, Duration)>,
}

/// An IP packet that is not split.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// When it comes.
    pub at: Instant,
    /// To which node.
    pub node: usize,
    /// Its length as an IP packet.
    pub len: usize,
}

/// Every run lasts this long before all faults end.
const TROUBLE: Duration = Duration::from_secs(60);
/// Faults begin after this, so that most runs have something under way by then.
const CALM: Duration = Duration::from_secs(3);

impl Plan {
    /// The run that `seed` means.
    pub fn of_seed(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let mut link = rng.fork();
        let mut plan = draw_link(seed, &mut link);
        let mut faults = rng.fork();
        plan.faults = draw_faults(&mut faults, &plan);
        plan.keepalives = std::array::from_fn(|node| {
            // Whoever moves must say something from its new place now and then.
            let moves = plan.faults.iter().any(|f| f.kind == FaultKind::Move(node));
            (moves || one_in(&mut faults, 4)).then(|| secs(&mut faults, 5, 25))
        });
        draw_narrow_path(seed, &mut plan);
        draw_second(seed, &mut plan);
        let mut traffic = rng.fork();
        plan.connections = draw_connections(&mut traffic, &plan);
        plan.datagrams = draw_datagrams(&mut traffic, &plan);
        plan.clocks = draw_clocks(&mut rng.fork());
        plan
    }

    /// The round trip of the link without anything waiting.
    pub fn rtt(&self) -> Duration {
        self.delays[0] + self.delays[1]
    }

    /// The longest round trip of all carriers, and the lowest rate.
    pub(crate) fn worst(&self) -> (Duration, BitRate) {
        let mut first = (self.rtt(), self.rates[0].min(self.rates[1]));
        if self.faults.iter().any(|f| matches!(f.kind, FaultKind::Weak(_))) {
            // What it carries again is found out within a minute (L-RA-4), not at once.
            first.1 = BitRate::from_bps(first.1.as_bps() / 10);
        }
        let second = self.second.map(|s| (s.delays[0] + s.delays[1], s.rates[0].min(s.rates[1])));
        second.map_or(first, |(rtt, rate)| (first.0.max(rtt), first.1.min(rate)))
    }

    /// Stream bytes that cross if nothing goes wrong.
    pub fn bytes(&self) -> u64 {
        self.connections.iter().flat_map(|c| &c.hosts).map(|h| h.bytes).sum()
    }

    /// Names of the kinds of fault, each once.
    pub fn fault_kinds(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.faults.iter().map(|f| f.kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Three days: what a clock may be off by.
pub const THREE_DAYS: Duration = Duration::from_secs(3 * 24 * 3_600);

/// Half of the pairs agree; in the others one is three days ahead of the other.
fn draw_clocks(rng: &mut Rng) -> [Duration; 2] {
    let mut clocks = [Duration::ZERO; 2];
    if let Some(ahead) = clocks.get_mut(rng.below(4) as usize) {
        *ahead = THREE_DAYS;
    }
    clocks
}

fn one_in(rng: &mut Rng, n: u64) -> bool {
    rng.below(n) == 0
}

fn secs(rng: &mut Rng, low: u64, high: u64) -> Duration {
    Duration::from_millis(rng.between(low * 1000, high * 1000))
}

/// Between `low` and `high` so that each order of magnitude is as likely.
fn magnitude(rng: &mut Rng, low: u64, high: u64) -> u64 {
    let steps = (high / low.max(1)).max(1).ilog2();
    let base = low << rng.below(u64::from(steps) + 1);
    rng.between(base, (base * 2).min(high).max(base)).min(high)
}

fn share(rng: &mut Rng, most: f64) -> Ratio {
    Ratio::from_f64(rng.between(1, 1000) as f64 / 1000.0 * most)
}

/// A third of the seeds compresses streams, with much memory or little; of another third one
/// node would. Not drawn, so that seeds mean what they meant before.
fn histories(seed: u64) -> [ByteCount; 2] {
    let some = ByteCount(8192 << (seed % 10));
    match seed % 3 {
        0 => [ByteCount(0), ByteCount(0)],
        1 => [some, ByteCount(0)],
        _ => [some, ByteCount(64 << 10)],
    }
}

/// Half of the seeds deduplicates; of an eighth one node would.
fn shares(seed: u64) -> [Option<Share>; 2] {
    let share = if (seed / 16) % 4 == 1 { Share::Host } else { Share::Lan };
    match seed % 8 {
        1 | 3 | 4 | 6 => [Some(share); 2],
        5 => [Some(share), None],
        _ => [None, None],
    }
}

fn draw_link(seed: u64, rng: &mut Rng) -> Plan {
    let mut rate = || BitRate::from_bps(magnitude(rng, 64_000, 50_000_000));
    let forward = rate();
    let backward = rate();
    let backward = if one_in(rng, 2) { forward } else { backward };
    let mut rates = [forward, backward];
    if one_in(rng, 2) {
        rates.reverse();
    }
    let one_way = magnitude(rng, 10_000, 750_000);
    let other_way = if one_in(rng, 3) { rng.between(10_000, 750_000) } else { one_way };
    let delays = [one_way, other_way].map(Duration::from_micros);
    let truth = one_way + other_way;
    let mtu = [1500, 1500, 1400, 576, 256, 128][rng.below(6) as usize];
    let other_mtu = if one_in(rng, 5) { rng.between(128, 1500) as u16 } else { mtu };
    let memory = magnitude(rng, 256 << 10, 16 << 20);
    let other_memory = if one_in(rng, 4) { magnitude(rng, 256 << 10, 16 << 20) } else { memory };
    let few = if one_in(rng, 6) { rng.between(2, 12) as u32 } else { 1000 };
    Plan {
        seed,
        rates,
        delays,
        second: None,
        spread: false,
        bound: false,
        promised_rtt: Duration::from_micros(rng.between(truth / 2, truth + truth / 2)),
        mtus: [mtu, other_mtu],
        packets: [mtu, other_mtu],
        bit_errors: Ratio::ZERO,
        overhead: [0, 0, 8, 38][rng.below(4) as usize],
        memories: [memory, other_memory].map(ByteCount),
        histories: histories(seed),
        shrinks: histories(seed).iter().all(|h| h.0 > 0),
        dedup: shares(seed),
        contents: shares(seed)[0].map(|_| 1 + seed % 2),
        loses_files: (seed / 8).is_multiple_of(2),
        disks_rot: (seed / 8) % 4 == 1,
        stream_buffer: one_in(rng, 4).then(|| ByteCount(magnitude(rng, 16 << 10, 256 << 10))),
        max_streams: [few, if one_in(rng, 2) { few } else { 1000 }],
        keepalives: [None, None],
        key_lifetime: MAX_KEY_LIFETIME,
        hub_knows: !one_in(rng, 3),
        open: if seed.is_multiple_of(2) { Open::Sure } else { Open::Auto },
        ipv6: one_in(rng, 4),
        clocks: [Duration::ZERO; 2],
        lateness: [Duration::ZERO, Duration::from_micros(rng.below(8_000))][rng.below(2) as usize],
        actions_first: one_in(rng, 2),
        faults: Vec::new(),
        heal_at: Instant::ZERO + TROUBLE,
        connections: Vec::new(),
        datagrams: Vec::new(),
    }
}

fn draw_faults(rng: &mut Rng, plan: &Plan) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    let kinds = |faults: &[Fault]| {
        let mut names: Vec<_> = faults.iter().map(|f| f.kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    };
    let wanted = 3 + rng.below(4) as usize;
    while kinds(&faults) < wanted {
        let kind = draw_fault(rng, plan);
        let from = Instant::ZERO + CALM + secs(rng, 0, 45);
        let longest = match kind {
            FaultKind::Outage(_) | FaultKind::Hold(_) | FaultKind::Restart(_) => 15,
            _ => 50,
        };
        let until = (from + secs(rng, 0, longest)).min(plan.heal_at);
        // A node that is down cannot die again before it is up.
        let clashes = |f: &&Fault| f.kind == kind && from <= f.until && f.from <= until;
        if matches!(kind, FaultKind::Restart(_)) && faults.iter().any(|f| clashes(&f)) {
            continue;
        }
        faults.push(Fault { from, until, kind });
    }
    faults.sort_by_key(|f| f.from);
    faults
}

/// Every third run meets a path that takes smaller packets for a while. It has dice of its
/// own, so that the rest of a run is as it was before there was such a fault.
fn draw_narrow_path(seed: u64, plan: &mut Plan) {
    let mut rng = Rng::new(seed ^ 0x7061_7468_206d_7475);
    if !one_in(&mut rng, 3) {
        return;
    }
    let way = Way { sender: rng.below(2) as usize, both: one_in(&mut rng, 2) };
    let mtu = [1492, 1400, 1280, 1000, 576][rng.below(5) as usize];
    let from = Instant::ZERO + CALM + secs(&mut rng, 0, 45);
    let until = (from + secs(&mut rng, 0, 50)).min(plan.heal_at);
    plan.faults.push(Fault { from, until, kind: FaultKind::Narrow(way, mtu) });
    plan.faults.sort_by_key(|f| f.from);
}

/// Every fourth run has a second carrier, and what happens to paths happens to it. It has dice
/// of its own, too.
fn draw_second(seed: u64, plan: &mut Plan) {
    let mut rng = Rng::new(seed ^ 0x0074_776f_2077_6179);
    if !one_in(&mut rng, 4) {
        return;
    }
    let rates = [0, 1].map(|_| BitRate::from_bps(magnitude(&mut rng, 64_000, 20_000_000)));
    let delays = [0, 1].map(|_| Duration::from_micros(magnitude(&mut rng, 5_000, 500_000)));
    plan.second = Some(Second { rates, delays });
    plan.spread = one_in(&mut rng, 2);
    for _ in 0..2 + rng.below(5) {
        let way = Way { sender: rng.below(2) as usize, both: one_in(&mut rng, 2) };
        let kind = match rng.below(6) {
            5 => FaultKind::Weak(way),
            0 => FaultKind::SecondDead(way),
            1 => FaultKind::PathDown(way.sender),
            2 => FaultKind::Outage(way),
            _ => FaultKind::UseSecond(way.sender),
        };
        let from = Instant::ZERO + CALM + secs(&mut rng, 0, 45);
        let until = (from + secs(&mut rng, 0, 25)).min(plan.heal_at);
        let clashes = |f: &&Fault| f.kind == kind && from <= f.until && f.from <= until;
        if !plan.faults.iter().any(|f| clashes(&f)) {
            plan.faults.push(Fault { from, until, kind });
        }
    }
    plan.faults.sort_by_key(|f| f.from);
    plan.bound = one_in(&mut rng, 3);
}

fn draw_fault(rng: &mut Rng, plan: &Plan) -> FaultKind {
    let way = Way { sender: rng.below(2) as usize, both: one_in(rng, 2) };
    let detour = Duration::from_micros(rng.between(100, plan.rtt().as_micros() / 2));
    match rng.below(12) {
        0 => FaultKind::Loss(way, share(rng, 0.3)),
        1 => FaultKind::Bursts(
            way,
            GilbertElliott {
                p: share(rng, 0.05),
                r: Ratio::from_f64(rng.between(30, 500) as f64 / 1000.0),
                h: share(rng, 0.2),
                k: Ratio::ONE,
            },
        ),
        2 => FaultKind::BitErrors(way, share(rng, 3e-5)),
        3 => FaultKind::Reordering(way, share(rng, 0.3), detour),
        4 => FaultKind::Duplication(way, share(rng, 0.3), detour),
        5 => FaultKind::Corruption(way, share(rng, 0.2)),
        6 => FaultKind::Outage(Way { both: true, ..way }),
        7 => FaultKind::Outage(Way { both: false, ..way }),
        8 => FaultKind::Move(way.sender),
        9 => FaultKind::Hold(way),
        10 => FaultKind::Leap(way.sender, THREE_DAYS),
        _ => FaultKind::Restart(way.sender),
    }
}

/// Packets that a run may cost each way, roughly.
const PACKETS: u64 = 4_000;

fn draw_connections(rng: &mut Rng, plan: &Plan) -> Vec<Connection> {
    let mtu = u64::from(plan.mtus[0].min(plan.mtus[1]));
    let mut budgets = plan.rates.map(|r| {
        let in_time = r.bytes_in(Duration::from_secs(15)).0;
        in_time.min(PACKETS * mtu)
    });
    let count = magnitude(rng, 2, 60);
    let mut all: Vec<Connection> = (0..count)
        .map(|_| {
            let node = rng.below(2) as usize;
            draw_connection(rng, node, &mut budgets)
        })
        .collect();
    all.sort_by_key(|c| c.at);
    all
}

fn draw_connection(rng: &mut Rng, node: usize, budgets: &mut [u64; 2]) -> Connection {
    let delay = Duration::from_millis(rng.below(200));
    let answer = match rng.below(14) {
        0 => {
            let kinds = [ResetReason::Refused, ResetReason::Icmp(1), ResetReason::Icmp(13)];
            (Answer::Refuse(kinds[delay.as_millis() as usize % 3]), delay)
        }
        1 => (Answer::Refuse(ResetReason::TimedOut), secs(rng, 1, 20)),
        2 => (Answer::Forbidden, Duration::ZERO),
        _ => (Answer::Accept, if one_in(rng, 8) { secs(rng, 0, 10) } else { delay }),
    };
    let mut hosts = [node, 1 - node].map(|at| {
        let bytes = draw_size(rng, budgets[at]);
        budgets[at] -= bytes.min(budgets[at]);
        draw_host(rng, bytes)
    });
    let sizes = hosts.each_ref().map(|h| h.bytes);
    for (host, incoming) in hosts.iter_mut().zip([sizes[1], sizes[0]]) {
        host.reads = host.reads.map(|r| r.max(in_twenty_seconds(incoming)));
    }
    let [client, server] = &mut hosts;
    match rng.below(4) {
        0 => server.after = rng.between(0, client.bytes),
        1 => server.after_end = true,
        _ => {}
    }
    Connection {
        at: Instant::ZERO + Duration::from_millis(rng.below(58_000)),
        node,
        sure: one_in(rng, 3),
        name: one_in(rng, 5).then(|| rng.between(10, 253) as usize),
        answer,
        hosts,
    }
}

fn draw_size(rng: &mut Rng, budget: u64) -> u64 {
    match rng.below(10) {
        0 => 0,
        1..=4 => rng.below(2_000),
        5..=7 => magnitude(rng, 1_000, 64_000),
        _ => magnitude(rng, 16_000, (budget / 2).max(16_001)),
    }
    .min(budget)
}

fn draw_host(rng: &mut Rng, bytes: u64) -> Host {
    let slow = |rng: &mut Rng| {
        let rate = BitRate::from_bps(magnitude(rng, 30_000, 20_000_000));
        one_in(rng, 4).then(|| rate.max(in_twenty_seconds(bytes)))
    };
    Host {
        bytes,
        pace: slow(rng),
        after: 0,
        after_end: false,
        resets: one_in(rng, 10),
        resets_at: one_in(rng, 16).then(|| rng.below(20_000)),
        socket: magnitude(rng, 2_000, 512_000),
        reads: one_in(rng, 6).then(|| BitRate::from_bps(magnitude(rng, 200_000, 20_000_000))),
        pause: one_in(rng, 6).then(|| (rng.below(100_000), secs(rng, 1, 30))),
    }
}

/// The slowest rate of a host: whatever the size it must be over in time.
fn in_twenty_seconds(bytes: u64) -> BitRate {
    BitRate::from_bps(bytes * 8 / 20 + 1)
}

fn draw_datagrams(rng: &mut Rng, plan: &Plan) -> Vec<Datagram> {
    let mut all = Vec::new();
    for node in 0..2 {
        let count = magnitude(rng, 1, 300);
        for _ in 0..count {
            let at = Instant::ZERO + Duration::from_millis(rng.below(58_000));
            let largest = if one_in(rng, 10) { 9_000 } else { 1_500 };
            let len = rng.between(MIN_DATAGRAM as u64, largest) as usize;
            // Now and then several at once.
            let burst = if one_in(rng, 8) { rng.between(2, 12) } else { 1 };
            all.extend((0..burst).map(|_| Datagram { at, node, len }));
        }
    }
    let slowest = plan.rates[0].min(plan.rates[1]);
    let most = slowest.bytes_in(Duration::from_secs(10)).0 as usize;
    let mut sum = 0;
    all.retain(|d| {
        sum += d.len;
        sum <= most
    });
    all.sort_by_key(|d| d.at);
    all
}

/// An IPv4 header, a UDP header and eight bytes that name the packet.
pub(crate) const MIN_DATAGRAM: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_has_a_minute_of_trouble_of_at_least_three_kinds() {
        for seed in 0..500 {
            let plan = Plan::of_seed(seed);
            assert!(plan.fault_kinds().len() >= 3, "seed {seed}");
            assert!(plan.heal_at >= Instant::ZERO + Duration::from_secs(60));
            assert!(plan.faults.iter().all(|f| f.until <= plan.heal_at));
            assert!(!plan.connections.is_empty());
        }
    }

    #[test]
    fn the_seeds_reach_all_kinds_of_fault_and_the_ends_of_the_ranges() {
        let plans: Vec<Plan> = (0..500).map(Plan::of_seed).collect();
        let mut kinds: Vec<_> = plans.iter().flat_map(Plan::fault_kinds).collect();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds.len(), 17, "{kinds:?}");
        let rates: Vec<_> = plans.iter().flat_map(|p| p.rates).collect();
        assert!(rates.iter().any(|r| *r < BitRate::from_kbps(100)));
        assert!(rates.iter().any(|r| *r > BitRate::from_mbps(25)));
        assert!(plans.iter().any(|p| p.rtt() < Duration::from_millis(50)));
        assert!(plans.iter().any(|p| p.rtt() > Duration::from_secs(1)));
    }
}
