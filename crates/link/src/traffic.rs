//! What traffic is to the link: the class and the LAN host whose turn it takes, and how a packet
//! that is not split is to be treated.

use std::net::IpAddr;

use units::{BitRate, Duration};

use crate::path::CarrierNames;

/// What a stream or datagram is to the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClassId(u8);

impl ClassId {
    /// What the network itself needs: before everything else.
    pub const CONTROL: ClassId = ClassId(0);
    /// Somebody waits for each packet: before everything but control.
    pub const INTERACTIVE: ClassId = ClassId(1);
    /// The rest. What stays small in it counts as interactive.
    pub const NORMAL: ClassId = ClassId(2);
    /// Nobody waits for it.
    pub const BULK: ClassId = ClassId(3);
    /// Classes that every link has.
    pub const BUILT_IN: usize = 4;
    /// The most classes that a link has.
    pub const MAX: usize = 20;

    /// The class with this place in [`LinkConfig::classes`](crate::session::LinkConfig::classes).
    pub const fn from_index(index: usize) -> ClassId {
        ClassId(index as u8)
    }
    /// Its place there.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
    /// Does it go before all that share by weight?
    pub const fn is_strict(self) -> bool {
        self.0 <= ClassId::INTERACTIVE.0
    }
}

impl Default for ClassId {
    fn default() -> ClassId {
        ClassId::NORMAL
    }
}

/// Who chose a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChosenBy {
    /// The operator: by a rule, a service, or because nobody chose another.
    #[default]
    Operator,
    /// The host, by its code point. A strict class is its while it keeps to its part of the link.
    Host,
}

/// What a class may have of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassConfig {
    /// Percent of what control and interactive leave, 1…99; `None`: as by default.
    pub share: Option<u8>,
    /// The most it may have even where the link is free; counted on link packets.
    pub cap: Option<BitRate>,
    /// How long its datagrams wait for others, so that several share a link packet; `None`:
    /// not at all. Voice does well with one packet's time, 20 ms.
    pub hold: Option<Duration>,
    /// It goes by the first of these carriers that works, and by no other; empty: as everything
    /// else does.
    pub carriers: CarrierNames,
}

/// Names a host within a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct HostId(u16);

impl HostId {
    /// The host in this place of the table of hosts.
    pub fn from_index(index: usize) -> HostId {
        HostId(index as u16)
    }

    /// Its place there.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// How an unsplit packet is to be treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// Its class; "normal" is refined by how much its flow and its host send.
    pub class: ClassId,
    /// Who chose the class.
    pub chosen_by: ChosenBy,
    /// The LAN host that it comes from or goes to; `None`: this node.
    pub host: Option<IpAddr>,
    /// Who sends it, where nothing ever came from that host: it may be anybody's invention, and
    /// goes first only as far as the sender may.
    pub sender: Option<IpAddr>,
    /// Equal for packets of one flow and hardly ever for those of others.
    pub flow: u32,
    /// What happens when it is lost.
    pub carry: Carry,
    /// Which parts of it are compressed, where that pays.
    pub compress: Compress,
}

/// Which parts of an unsplit packet are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compress {
    /// It goes as it is.
    Nothing,
    /// Its headers.
    #[default]
    Headers,
    /// Headers and payload.
    All,
}

/// How an unsplit packet is carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carry {
    /// It leaves once.
    #[default]
    Plain,
    /// It comes in order and surely, like the bytes of a stream.
    Ordered,
}
