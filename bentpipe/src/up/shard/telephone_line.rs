//! A telephone line that answers for all peers, and the call on it.

use control::TelephoneReport;
use link::{CarrierId, PeerId, Remote};
use units::Instant;

use crate::config::Telephone;
use crate::up::peer_table::{KnownPeer, PeerTable};

/// A line.
pub struct TelephoneLine {
    pub settings: Telephone,
    pub carrier: CarrierId,
    /// Its modem answers.
    pub is_ready: bool,
    pub call: Option<Call>,
    /// Calls that were answered, and those of them that no peer made.
    pub calls: u64,
    pub strangers: u64,
    /// How the last call ended, or what ails the modem.
    pub cause: String,
}

/// A call that is there.
pub struct Call {
    pub since: Instant,
    pub peer: Option<PeerId>,
    /// It is being hung up.
    pub ending: bool,
}

impl TelephoneLine {
    /// One whose modem has not answered yet.
    pub fn new(settings: Telephone, carrier: CarrierId) -> TelephoneLine {
        let (is_ready, call, cause) = (false, None, String::new());
        TelephoneLine { settings, carrier, is_ready, call, calls: 0, strangers: 0, cause }
    }

    /// The far end of its call.
    pub fn place(&self) -> Remote {
        Remote { carrier: self.carrier, addr: None }
    }

    /// What the operator is told of it.
    pub fn report(&self, now: Instant, peers: &PeerTable<KnownPeer>) -> TelephoneReport {
        let call = self.call.as_ref();
        let peer = call.and_then(|call| peers.with_id(call.peer?));
        TelephoneReport {
            name: self.settings.name.clone(),
            device: self.settings.modem.device.display().to_string(),
            ready: self.is_ready,
            peer: peer.map(|peer| peer.config.name.clone()),
            call_ms: call.map(|call| now.since(call.since).as_millis()),
            calls: self.calls,
            strangers: self.strangers,
            cause: self.cause.clone(),
        }
    }
}
