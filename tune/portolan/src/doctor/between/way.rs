//! The way of a peer-to-peer access from one function to another, and the ports on it that send it up.
//!
//! PCI Express Base Specification 6.0, section 6.12.3 (peer-to-peer control), as `calc_map_type_and_dist` of Linux
//! reads it: a port with request or completion redirect, or with egress control, sends what it gets from below up to
//! the root complex. Not supported: the vector of egress control.

use portolan::addr::PciFunction;
use portolan_hw::topology::pci::Acs;

use crate::doctor::pci::{AcsKnown, KnownFunction, Pci};

/// Services that keep an access from going straight to a peer.
pub const REDIRECT: Acs =
    Acs::REQUEST_REDIRECT.union(Acs::COMPLETION_REDIRECT).union(Acs::EGRESS_CONTROL);

/// A port that redirects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirecting {
    /// The port, or the function itself.
    pub at: PciFunction,
    /// Its services that do it.
    pub by: Acs,
}

/// The way between two functions.
#[derive(Clone, Debug)]
pub struct PeerWay {
    /// The nearest bridge above both.
    pub common: Option<PciFunction>,
    /// Ports on the way that redirect.
    pub redirecting: Vec<Redirecting>,
    /// Ports on the way whose ACS was not readable.
    pub unread: Vec<PciFunction>,
}

impl PeerWay {
    /// Makes the way between `a` and `b`.
    pub fn between(pci: &Pci, a: &KnownFunction, b: &KnownFunction) -> Self {
        let [above_a, above_b] = [a, b].map(|one| pci.way_up(one.at));
        let common = above_a.iter().find(|one| above_b.iter().any(|other| other.at == one.at));
        let common = common.map(|node| node.at);
        let mut ports = vec![a.at, b.at];
        for above in [&above_a, &above_b] {
            for node in above.iter().take_while(|node| Some(node.at) != common) {
                ports.push(node.at);
            }
        }
        ports.extend(common);
        let mut way = Self { common, redirecting: Vec::new(), unread: Vec::new() };
        for at in ports {
            match pci.acs(at) {
                AcsKnown::Present(acs) if acs.on.intersects(REDIRECT) => {
                    way.redirecting.push(Redirecting { at, by: acs.on & REDIRECT });
                }
                AcsKnown::Unknown if pci.node(at).is_some_and(|node| node.is_bridge()) => {
                    way.unread.push(at)
                }
                AcsKnown::Present(_) | AcsKnown::Absent | AcsKnown::Unknown => {}
            }
        }
        way
    }

    /// Tells if accesses stay below the common bridge; nothing if ACS decides that was not readable.
    pub fn is_local(&self) -> Option<bool> {
        match (self.common, self.redirecting.is_empty(), self.unread.is_empty()) {
            (None, ..) | (Some(_), false, _) => Some(false),
            (Some(_), true, true) => Some(true),
            (Some(_), true, false) => None,
        }
    }
}
