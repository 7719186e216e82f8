//! What the rules and routes of the interception are made of, as the configuration has it.

use os::intercept::InterceptConfig;
use units::IpPrefix;

use crate::config::{Config, OnFailure, Peer, Source};

/// Networks that are reached past the tunnel, also where a shorter prefix leads into it: those
/// that the file names, and those beyond links without a gateway.
pub(super) fn past_the_tunnel(config: &Config) -> Vec<IpPrefix> {
    let beyond = config.split.iter().flat_map(|link| &link.routes).filter(|p| p.len() > 0);
    config.node.direct.iter().chain(beyond).copied().collect()
}

/// `base` with the prefixes of `peers`.
pub(super) fn intercept_config<'a>(
    peers: impl Iterator<Item = &'a Peer> + Clone,
    base: InterceptConfig,
) -> InterceptConfig {
    let prefixes = |wanted: fn(&Peer) -> bool| {
        peers.clone().filter(|p| wanted(p)).flat_map(|p| p.routes.iter().copied()).collect()
    };
    let mut with_routes = peers.clone().filter(|p| !p.routes.is_empty());
    InterceptConfig {
        // What is connected for one may lead behind another.
        onward: with_routes.nth(1).is_some(),
        routes: prefixes(|_| true),
        masquerade: prefixes(|p| p.source == Source::Nat),
        in_clear: prefixes(|p| p.on_failure == OnFailure::Wire),
        ..base
    }
}
