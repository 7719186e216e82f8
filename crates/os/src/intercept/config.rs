//! What to intercept, by which marks, and what happens when the program is gone.

use std::net::IpAddr;

use units::IpPrefix;

use crate::OsError;
use crate::error::OrCannot;
use crate::tun;

/// What becomes of traffic for the peers' prefixes while the program is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// Hosts' TCP is reset, the rest gets "unreachable": nothing may leave in clear.
    #[default]
    Block,
    /// The system's other routes carry it, in clear.
    Wire,
}

/// Routing marks that must not clash with those of other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Packets of intercepted connections, to be delivered here.
    pub local: u32,
    /// SYNs on their way to the syn device.
    pub syn: u32,
    /// The carrier's own packets: give it to [`crate::udp::UdpConfig::mark`].
    pub carrier: u32,
    /// Packets of this host's own connections that are split, to be delivered here, and, as
    /// the kernel tracks them, these connections.
    pub own: u32,
    /// Connections that the program makes for one peer and that may lead behind another:
    /// give it to [`crate::tcp::Connect::mark`].
    pub onward: u32,
    /// Connections that the program makes and that are not to be split, whatever
    /// [`InterceptConfig::own`] says.
    pub unsplit: u32,
    /// Packets that this host sends itself and that a default route of the tunnel is for:
    /// answers to what came out of it.
    pub inward: u32,
    /// As the kernel tracks them, connections that begin at this host and come from outside the
    /// link, where [`InterceptConfig::own`] would have them answered into it.
    pub outward: u32,
    /// Asks whether the rules stand: a rule of its own leads it to the syn device, and to no device
    /// when the program is gone.
    pub guard: u32,
}

impl Default for Marks {
    /// The letters "bp" and a number.
    fn default() -> Marks {
        Marks {
            local: 0x6270_0001,
            syn: 0x6270_0002,
            carrier: 0x6270_0003,
            own: 0x6270_0004,
            onward: 0x6270_0005,
            unsplit: 0x6270_0006,
            inward: 0x6270_0007,
            outward: 0x6270_0008,
            guard: 0x6270_0009,
        }
    }
}

/// What to intercept and where to send it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterceptConfig {
    /// The tunnel device, already open.
    pub tun: String,
    /// The interfaces whose TCP is split. Empty: everything passes as packets.
    pub lan: Vec<String>,
    /// The port of the [`crate::tcp::TransparentListener`].
    pub listener_port: u16,
    /// The UDP ports that carriers listen on, so that their packets are told apart.
    pub carrier_ports: Vec<u16>,
    /// The prefixes behind the peers.
    pub routes: Vec<IpPrefix>,
    /// Networks that are reached past the tunnel although a shorter prefix of these leads into
    /// it, beside those that this host is in.
    pub direct: Vec<IpPrefix>,
    /// Of the routes, the prefixes whose datagrams leave with this node's own address
    /// (`source = "nat"`).
    pub masquerade: Vec<IpPrefix>,
    /// The name servers that hosts' questions for this host itself go to, one of a family at
    /// most. Empty: such questions are this host's own affair.
    pub dns: Vec<IpAddr>,
    /// What happens when the program is gone.
    pub on_failure: OnFailure,
    /// Of the routes, those that fall back to [`OnFailure::Wire`] whatever `on_failure` says.
    pub in_clear: Vec<IpPrefix>,
    /// This host's own TCP towards the routes is split, too.
    pub own: bool,
    /// Connections marked [`Marks::onward`] are split where they lead into the tunnel.
    pub onward: bool,
    /// The marks.
    pub marks: Marks,
}

impl InterceptConfig {
    /// Interception from nowhere to nobody, for the fields to be filled in.
    pub fn new(tun: &str, listener_port: u16) -> InterceptConfig {
        InterceptConfig {
            tun: tun.to_owned(),
            lan: Vec::new(),
            listener_port,
            carrier_ports: Vec::new(),
            routes: Vec::new(),
            direct: Vec::new(),
            masquerade: Vec::new(),
            dns: Vec::new(),
            on_failure: OnFailure::default(),
            in_clear: Vec::new(),
            own: false,
            onward: false,
            marks: Marks::default(),
        }
    }

    /// The name of the syn device: the tunnel's, cut to fit, with "-syn".
    pub fn syn_device(&self) -> String {
        format!("{:.11}-syn", self.tun)
    }

    pub(super) fn blocks(&self, prefix: &IpPrefix) -> bool {
        self.on_failure == OnFailure::Block && !self.in_clear.contains(prefix)
    }

    /// Does all that has no longer route lead into the tunnel?
    pub(super) fn has_default(&self) -> bool {
        self.routes.iter().any(|p| p.len() == 0)
    }

    /// The same of those peers whose clients keep their addresses.
    pub(super) fn keeps_default(&self) -> bool {
        self.routes.iter().any(|p| p.len() == 0 && !self.masquerade.contains(p))
    }

    /// May this host have anything to forward? Not one that splits its own connections, serves no
    /// LAN, and leads nobody from one peer to another.
    pub(super) fn forwards(&self) -> bool {
        !self.own || !self.lan.is_empty() || self.onward
    }

    pub(super) fn check(&self) -> Result<(), OsError> {
        tun::check_name(&self.tun)?;
        tun::index_of(&self.tun)
            .or_cannot(|| format!("intercept traffic for the device {}", self.tun))?;
        for lan in &self.lan {
            tun::check_name(lan)?;
            tun::index_of(lan).map_err(|e| {
                OsError::new(format!("split the TCP of {lan}"), e)
                    .mend("`ip link` shows the interfaces that exist")
            })?;
        }
        Ok(())
    }
}
