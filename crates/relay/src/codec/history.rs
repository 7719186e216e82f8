//! The history that a peer makes this node keep, and who gives way when it is too much (L-CO-3).
//!
//! A peer counts the history of a stream until the stream is over, that is, until all of it has
//! arrived here. But as long as the host does not read, the stream's bytes wait as blocks, and what
//! they refer to must be kept. The peer does not know of that history, so it is no fault of its
//! when the sum is too large: such streams give way, those first whose hosts have taken nothing for
//! longest. Where they do not suffice the peer has broken the rule.

use link::PeerId;
use link::session::StreamCodec;
use squeeze::stream::BlockDecoder;

use super::{ActiveFlow, Codecs, LENIENCE};
use crate::flows::{FlowId, Flows};

impl Codecs {
    /// The active flow keeps more than before. Does everything that the peer's streams keep fit,
    /// after others have given way ([`Codecs::poll_gives_way`])?
    pub(super) fn has_room_for_history(
        &mut self,
        active: &ActiveFlow<'_>,
        codec: StreamCodec,
        flows: &Flows,
    ) -> bool {
        let peer = active.f.peer;
        let kept = self.links.get(&peer).map_or(0, |link| link.kept_here);
        let limit = codec.own_history.saturating_mul(LENIENCE);
        let Some(excess) = kept.checked_sub(limit).filter(|excess| *excess > 0) else {
            return true;
        };
        let mut arrived: Vec<_> = flows
            .in_session((peer, active.f.session))
            .filter(|(id, _)| *id != active.flow)
            .filter_map(|(id, f)| {
                let kept = self.flows.get(&id)?.decoder.kept() as u64;
                (kept > 0 && active.session.is_complete(f.stream)).then_some((f.moved, id, kept))
            })
            .collect();
        arrived.sort_unstable();
        let mut freed = 0;
        let enough = arrived.iter().position(|(.., kept)| {
            freed += kept;
            freed >= excess
        });
        let Some(last) = enough else { return false };
        for (_, flow, _) in &arrived[..=last] {
            self.drop_history(*flow, peer);
            if let Some(flow_codec) = self.flows.get_mut(flow) {
                flow_codec.gives_way = true;
            }
            self.give_way.push(*flow);
        }
        true
    }

    /// A flow that gives way: it is to be ended.
    pub fn poll_gives_way(&mut self) -> Option<FlowId> {
        self.give_way.pop()
    }

    /// Nothing more of the flow will be decompressed.
    pub(super) fn drop_history(&mut self, flow: FlowId, peer: PeerId) {
        let (Some(flow_codec), Some(link)) = (self.flows.get_mut(&flow), self.links.get_mut(&peer))
        else {
            return;
        };
        // Of a block that waits more may be kept than of the history before it.
        link.kept_here -= flow_codec.decoder.kept() as u64;
        self.waiting -= flow_codec.waiting();
        flow_codec.forget_waiting();
        flow_codec.decoder = BlockDecoder::default();
    }
}
