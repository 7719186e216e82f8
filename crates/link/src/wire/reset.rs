//! Why a stream or a session ended, and the number that says so on the wire.

/// Why a stream ended without an orderly close (spec/link.md, "Reset reasons").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetReason {
    /// The host at the other end reset its connection.
    HostReset,
    /// The server refused the connection.
    Refused,
    /// No way leads to the server, and no router said why.
    Unreachable,
    /// The server did not answer in time.
    TimedOut,
    /// The far node's `allow`/`deny` forbids this destination.
    Denied,
    /// A name did not resolve at the far node.
    NoSuchName,
    /// The far node has no memory, descriptor, port or money left for it.
    Exhausted,
    /// The peer restarted and knows nothing of this stream.
    PeerRestarted,
    /// The peer is shutting down.
    ShuttingDown,
    /// The peer broke the protocol on this stream.
    Protocol,
    /// The far node has no such service, or it does not run now.
    NoSuchService,
    /// An ICMP "destination unreachable" (type 3) with this code, 0…15 (RFC 792, RFC 1812).
    Icmp(u8),
    /// An ICMPv6 "destination unreachable" (type 1) with this code, 0…15 (RFC 4443).
    Icmpv6(u8),
}

/// Reasons without a code; their numbers start at 1.
const REASONS: [ResetReason; 11] = {
    use ResetReason::*;
    [
        HostReset,
        Refused,
        Unreachable,
        TimedOut,
        Denied,
        NoSuchName,
        Exhausted,
        PeerRestarted,
        ShuttingDown,
        Protocol,
        NoSuchService,
    ]
};
/// The numbers of the reasons with an ICMP, and an ICMPv6, code start here.
const ICMP_REASON: u8 = 32;
const ICMPV6_REASON: u8 = 48;

impl ResetReason {
    pub(super) fn from_u8(n: u8) -> Option<ResetReason> {
        match n {
            ICMP_REASON..ICMPV6_REASON => Some(ResetReason::Icmp(n - ICMP_REASON)),
            ICMPV6_REASON..64 => Some(ResetReason::Icmpv6(n - ICMPV6_REASON)),
            _ => REASONS.get(usize::from(n.checked_sub(1)?)).copied(),
        }
    }

    /// Codes beyond 15 do not exist; they travel as what they have in common.
    pub(super) fn to_u8(self) -> u8 {
        match self {
            ResetReason::Icmp(code @ 0..16) => ICMP_REASON + code,
            ResetReason::Icmpv6(code @ 0..16) => ICMPV6_REASON + code,
            ResetReason::Icmp(_) | ResetReason::Icmpv6(_) => ResetReason::Unreachable.to_u8(),
            plain => 1 + REASONS.iter().position(|r| *r == plain).unwrap_or(0) as u8,
        }
    }
}
