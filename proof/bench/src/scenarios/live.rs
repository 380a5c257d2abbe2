//! Buffers with many others live: in random order, after many operations of mixed sizes, and one call at a time.

use portolan::dma::Policy;

use super::buffers::passes;
use super::{LINUX, Sample, Scenario, Target};
use crate::linux::{LinuxDomainKind, buffers as linux};
use crate::live::{Before, Bursts, Live, OurBuffers};

const WHAT: &str = "a random one of the live buffers of 4 KiB unmapped and a new one mapped";

/// Passes with so many buffers live.
macro_rules! live {
    ($name:literal, $count:literal, $before:ident, $policy:ident, $kind:ident) => {
        Scenario {
            peers: &[(LINUX, || {
                let theirs = linux::live(LinuxDomainKind::$kind)?;
                Ok(Box::new(Live::new(theirs, $count, Before::$before)?))
            })],
            targets: &[Target::Linux(1.0)],
            ..passes($name, WHAT, || {
                Ok(Box::new(Live::new(OurBuffers::new(Policy::$policy)?, $count, Before::$before)?))
            })
        }
    };
}

/// Single calls with 256 buffers live.
macro_rules! calls {
    ($name:literal, $policy:ident, $kind:ident) => {
        Scenario {
            sample: Sample::Call,
            peers: &[(LINUX, || {
                Ok(Box::new(Live::one_by_one(linux::live(LinuxDomainKind::$kind)?, 256)?))
            })],
            targets: &[Target::LinuxP99(1.0)],
            ..passes($name, WHAT, || {
                Ok(Box::new(Live::one_by_one(OurBuffers::new(Policy::$policy)?, 256)?))
            })
        }
    };
}

/// Unmaps of one of 100,000 pages, each by itself.
macro_rules! bursts {
    ($name:literal, $policy:ident, $kind:ident) => {
        Scenario {
            sample: Sample::Call,
            unit: "ns per unmap",
            peers: &[(LINUX, || Ok(Box::new(Bursts::new(linux::live(LinuxDomainKind::$kind)?))))],
            targets: &[Target::LinuxP999(0.5)],
            ..passes($name, "one of 100,000 pages unmapped, in random order", || {
                Ok(Box::new(Bursts::new(OurBuffers::new(Policy::$policy)?)))
            })
        }
    };
}

pub(super) fn all() -> Vec<Scenario> {
    vec![
        bursts!("unmap_burst_lazy", Lazy, LAZY),
        bursts!("unmap_burst_strict", Strict, STRICT),
        live!("dma_live_256_lazy", 256, Fresh, Lazy, LAZY),
        live!("dma_live_256_strict", 256, Fresh, Strict, STRICT),
        live!("dma_live_65536_lazy", 65_536, Fresh, Lazy, LAZY),
        live!("dma_live_65536_strict", 65_536, Fresh, Strict, STRICT),
        live!("dma_aged_65536_lazy", 65_536, Aged, Lazy, LAZY),
        live!("dma_aged_65536_strict", 65_536, Aged, Strict, STRICT),
        calls!("dma_call_lazy", Lazy, LAZY),
        calls!("dma_call_strict", Strict, STRICT),
    ]
}
