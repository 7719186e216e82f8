//! Counts of a peer's sessions, summed.

use std::ops::AddAssign;

use super::SessionStats;

impl AddAssign for SessionStats {
    fn add_assign(&mut self, more: SessionStats) {
        // Named one by one, so that none can be forgotten.
        let SessionStats {
            stream_bytes_in,
            stream_bytes_out,
            retransmitted,
            datagrams_in,
            datagrams_out,
            datagrams_dropped,
            datagram_bytes_in,
            datagram_bytes_out,
            datagram_bytes_saved_out,
            datagram_bytes_saved_in,
            datagram_cpu,
            packets_arrived,
            packets_lost,
            packets_late,
            violations,
            contradictions,
            too_dear,
            streams_total,
            recovered,
            peer_recovered,
            repairs_sent,
            reports,
            probes,
        } = more;
        self.datagram_cpu += datagram_cpu;
        for (sum, more) in [
            (&mut self.stream_bytes_in, stream_bytes_in),
            (&mut self.stream_bytes_out, stream_bytes_out),
            (&mut self.retransmitted, retransmitted),
            (&mut self.datagrams_in, datagrams_in),
            (&mut self.datagrams_out, datagrams_out),
            (&mut self.datagrams_dropped, datagrams_dropped),
            (&mut self.datagram_bytes_in, datagram_bytes_in),
            (&mut self.datagram_bytes_out, datagram_bytes_out),
            (&mut self.datagram_bytes_saved_out, datagram_bytes_saved_out),
            (&mut self.datagram_bytes_saved_in, datagram_bytes_saved_in),
            (&mut self.packets_arrived, packets_arrived),
            (&mut self.packets_lost, packets_lost),
            (&mut self.packets_late, packets_late),
            (&mut self.violations, violations),
            (&mut self.contradictions, contradictions),
            (&mut self.too_dear, too_dear),
            (&mut self.streams_total, streams_total),
            (&mut self.recovered, recovered),
            (&mut self.peer_recovered, peer_recovered),
            (&mut self.repairs_sent, repairs_sent),
            (&mut self.reports, reports),
            (&mut self.probes, probes),
        ] {
            *sum += more;
        }
    }
}
