//! What a run with many nodes is: who is joined to whom, by which channels, and what hosts do.

use std::collections::VecDeque;

use link::session::RateMode;
use units::{BitRate, ByteCount, Duration, Instant, Ratio, Rng};

use crate::plan::Host;

/// A link between two nodes.
#[derive(Clone, Copy, Debug)]
pub struct NetLink {
    /// The nodes. The first knows where the second is; the second waits to be called.
    pub ends: [usize; 2],
    /// The rate that each is told to send at.
    pub rates: [BitRate; 2],
    /// The channel that each sends by, which other links may share.
    pub channels: [usize; 2],
}

/// A client, a server, and how much each sends.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// When the client connects.
    pub at: Instant,
    /// The nodes that client and server are behind.
    pub nodes: [usize; 2],
    /// The two hosts: client, server.
    pub hosts: [Host; 2],
}

impl Demand {
    /// A client that asks with `request` bytes and is answered with `answer`.
    pub fn fetch(at: Instant, nodes: [usize; 2], request: u64, answer: u64) -> Demand {
        let host = |bytes, after| Host {
            bytes,
            pace: None,
            after,
            after_end: false,
            resets: false,
            resets_at: None,
            socket: 256 << 10,
            reads: None,
            pause: None,
        };
        Demand { at, nodes, hosts: [host(request, 0), host(answer, request)] }
    }
}

/// Something that goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetFault {
    /// When it begins.
    pub from: Instant,
    /// When it is over.
    pub until: Instant,
    /// What it is.
    pub kind: NetFaultKind,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetFaultKind {
    /// A node dies, and starts anew when the fault is over. It knows where its peers were.
    Restart(usize),
    /// Nothing arrives by this channel.
    Dark(usize),
}

/// Everything about a run that is decided before it starts.
#[derive(Clone, Debug)]
pub struct NetPlan {
    /// What draws follow from.
    pub seed: u64,
    /// How the run is repeated, for failures.
    pub arguments: String,
    /// How many nodes there are.
    pub nodes: usize,
    /// The links between them: a tree, or all pairs.
    pub links: Vec<NetLink>,
    /// The channels' rates.
    pub channels: Vec<BitRate>,
    /// The one-way delay of all.
    pub delay: Duration,
    /// How long each may queue, at its rate; `None`: what pacers may send ahead.
    pub queue: Option<Duration>,
    /// Of each packet, on all.
    pub loss: Ratio,
    /// How nodes know their rates.
    pub mode: RateMode,
    /// Memory for stream bytes, of each node.
    pub memory: ByteCount,
    /// How late a node's driver may wake up.
    pub lateness: Duration,
    /// Connections, in the order of their beginnings.
    pub demands: Vec<Demand>,
    /// Faults.
    pub faults: Vec<NetFault>,
    /// When the last fault ends.
    pub heal_at: Instant,
    /// How soon after that everything must be over.
    pub patience: Duration,
    /// When what hosts get is counted for [`NetReport::window`](super::NetReport::window).
    pub window: [Instant; 2],
}

/// After the start.
pub(crate) fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

impl NetPlan {
    fn new(seed: u64, arguments: String, nodes: usize, channels: Vec<BitRate>) -> NetPlan {
        NetPlan {
            seed,
            arguments: format!("{arguments} --seed {seed}"),
            nodes,
            links: Vec::new(),
            channels,
            delay: Duration::from_millis(280),
            queue: None,
            loss: Ratio::ZERO,
            mode: RateMode::Fixed,
            memory: ByteCount(64 << 20),
            lateness: Duration::from_micros(300),
            demands: Vec::new(),
            faults: Vec::new(),
            heal_at: Instant::ZERO,
            patience: Duration::from_secs(60),
            window: [Instant::ZERO; 2],
        }
    }

    /// `terminals` around a hub, node 0, which divides its channel of rate `forward` among them;
    /// each has one of rate `back` to itself.
    pub fn star(seed: u64, terminals: usize, forward: BitRate, back: BitRate) -> NetPlan {
        let channels = [vec![forward], vec![back; terminals]].concat();
        let mut plan = NetPlan::new(seed, format!("--star {terminals}"), terminals + 1, channels);
        let share = BitRate::from_bps(forward.as_bps() / terminals as u64);
        let link = |n| NetLink { ends: [n, 0], rates: [back, share], channels: [n, 0] };
        plan.links = (1..=terminals).map(link).collect();
        plan
    }

    /// `nodes` of which each reaches every other directly, and divides its channel of rate `up`
    /// among them.
    pub fn mesh(seed: u64, nodes: usize, up: BitRate) -> NetPlan {
        let mut plan = NetPlan::new(seed, format!("--mesh {nodes}"), nodes, vec![up; nodes]);
        let share = BitRate::from_bps(up.as_bps() / (nodes as u64 - 1));
        let pairs = (0..nodes).flat_map(|a| (0..a).map(move |b| [a, b]));
        plan.links =
            pairs.map(|ends| NetLink { ends, rates: [share; 2], channels: ends }).collect();
        plan
    }

    /// So many hops in a row, each with a channel of `rate` each way.
    pub fn row(seed: u64, hops: usize, rate: BitRate) -> NetPlan {
        let channels = vec![rate; 2 * hops];
        let mut plan = NetPlan::new(seed, format!("--row {hops}"), hops + 1, channels);
        let hop = |n| NetLink { ends: [n, n + 1], rates: [rate; 2], channels: [2 * n, 2 * n + 1] };
        plan.links = (0..hops).map(hop).collect();
        plan
    }

    /// The star that `seed` means: everybody fetches, some from each other, while packets are lost
    /// and a node dies or the channels are dark.
    pub fn drawn_star(seed: u64, terminals: usize) -> NetPlan {
        let forward = BitRate::from_kbps(500).as_bps() * terminals as u64;
        let plan =
            NetPlan::star(seed, terminals, BitRate::from_bps(forward), BitRate::from_kbps(128));
        plan.with_trouble(60_000)
    }

    /// The mesh that `seed` means.
    pub fn drawn_mesh(seed: u64, nodes: usize) -> NetPlan {
        NetPlan::mesh(seed, nodes, BitRate::from_kbps(512 * nodes as u64)).with_trouble(200_000)
    }

    /// The row that `seed` means.
    pub fn drawn_row(seed: u64, hops: usize) -> NetPlan {
        NetPlan::row(seed, hops, BitRate::from_mbps(2)).with_trouble(400_000)
    }

    /// Draws what goes wrong, and what hosts want meanwhile: up to `most` bytes each.
    fn with_trouble(mut self, most: u64) -> NetPlan {
        let mut rng = Rng::new(self.seed ^ 0x7e11_0000);
        self.loss = Ratio::from_f64(rng.below(4) as f64 * 0.005);
        self.delay = Duration::from_millis(rng.between(20, 320));
        let nodes = self.nodes as u64;
        for node in 0..nodes {
            for _ in 0..rng.between(1, 3) {
                // A hub has the servers, as a rule.
                let other = if rng.below(4) > 0 { 0 } else { rng.below(nodes) };
                let other = if other == node { (node + 1) % nodes } else { other };
                let begin = at(rng.between(1_000, 40_000));
                let nodes = [node as usize, other as usize];
                let (up, down) = (rng.below(5_000), rng.below(most));
                let mut demand = Demand::fetch(begin, nodes, up, down);
                demand.hosts[1].resets = rng.below(20) == 0;
                if rng.below(8) == 0 {
                    let stop = Duration::from_millis(rng.between(500, 5_000));
                    demand.hosts[0].pause = Some((rng.below(down.max(1)), stop));
                }
                self.demands.push(demand);
            }
        }
        self.demands.sort_by_key(|demand| demand.at);
        for _ in 0..rng.between(1, 3) {
            let from = at(rng.between(5_000, 30_000));
            let until = from + Duration::from_millis(rng.between(500, 12_000));
            let kind = match rng.below(3) {
                0 => NetFaultKind::Restart(0),
                1 => NetFaultKind::Restart(rng.below(nodes) as usize),
                _ => NetFaultKind::Dark(rng.below(self.channels.len() as u64) as usize),
            };
            self.faults.push(NetFault { from, until, kind });
        }
        self.faults.sort_by_key(|fault| (fault.from, fault.until));
        // A node that is dead does not die.
        let mut free = Instant::ZERO;
        self.faults.retain(|fault| {
            let fits = fault.from >= free;
            free = if fits { fault.until } else { free };
            fits
        });
        self.heal_at = at(45_000);
        self.patience = Duration::from_secs(600);
        self
    }

    /// By node and destination, the neighbour on the shortest way there.
    pub(crate) fn next_hops(&self) -> Vec<Vec<usize>> {
        let mut neighbours = vec![Vec::new(); self.nodes];
        for link in &self.links {
            let [a, b] = link.ends;
            neighbours[a].push(b);
            neighbours[b].push(a);
        }
        (0..self.nodes).map(|node| next_hops_of(node, &neighbours)).collect()
    }
}

/// By destination, the neighbour of `node` on the shortest way there.
fn next_hops_of(node: usize, neighbours: &[Vec<usize>]) -> Vec<usize> {
    let mut by = vec![usize::MAX; neighbours.len()];
    by[node] = node;
    let mut queue = VecDeque::from([node]);
    while let Some(at) = queue.pop_front() {
        for next in &neighbours[at] {
            if by[*next] == usize::MAX {
                by[*next] = if at == node { *next } else { by[at] };
                queue.push_back(*next);
            }
        }
    }
    by
}
