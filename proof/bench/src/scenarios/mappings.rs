//! Buffers through the DMA layer: by policy and interface, in pieces, by walkers that snoop and not, by one
//! thread and by two.

use portolan::dma::Policy;
use portolan::inval::Walker;

use super::buffers::{by_two, passes};
use super::{LINUX, NEWER_LINUX, Scenario, Target};
use crate::linux::{LinuxDomainKind, buffers as linux};
use crate::mappings::Buffers;
use crate::owned::{How, Owned};
use crate::rig::{PAGE, pieces};

/// Linux's strict policy, where the lazy one is compared first.
const LINUX_STRICT: &str = "linux-6.12 strict";

pub(super) fn all() -> Vec<Scenario> {
    let mut all = pages();
    all.extend(not_snooped());
    all.extend(lists());
    all.extend(by_threads());
    all.push(passes(
        "dma_4k_copied",
        "a 4 KiB buffer owned by its mapping, copied to a pool that stays mapped: no invalidation",
        || Ok(Box::new(Owned::copied()?)),
    ));
    all
}

fn pages() -> Vec<Scenario> {
    let lazy = Scenario {
        peers: &[
            (LINUX, || Ok(Box::new(linux::LinuxBuffers::new(LinuxDomainKind::LAZY)?))),
            (NEWER_LINUX, || Ok(Box::new(linux::LinuxBuffers::newer(LinuxDomainKind::LAZY)?))),
        ],
        targets: &[Target::Linux(1.0)],
        ..passes(
            "dma_4k_lazy",
            "a 4 KiB buffer mapped and unmapped, lazy: addresses, tables, queue; hardware free",
            || Ok(Box::new(Buffers::new(Policy::Lazy, Walker::Coherent)?)),
        )
    };
    let strict = Scenario {
        peers: &[
            (LINUX, || Ok(Box::new(linux::LinuxBuffers::new(LinuxDomainKind::STRICT)?))),
            (NEWER_LINUX, || Ok(Box::new(linux::LinuxBuffers::newer(LinuxDomainKind::STRICT)?))),
        ],
        targets: &[Target::Linux(1.0)],
        ..passes(
            "dma_4k_strict",
            "the same, strict: the commands of each unmap built; hardware free",
            || Ok(Box::new(Buffers::new(Policy::Strict, Walker::Coherent)?)),
        )
    };
    let owned = Scenario {
        peers: &[(LINUX, || Ok(Box::new(linux::LinuxBuffers::new(LinuxDomainKind::STRICT)?)))],
        ..passes("dma_4k_owned", "the same, strict, as a mapping that owns its buffer", || {
            Ok(Box::new(Owned::pages(How::STRICT)?))
        })
    };
    let deferred = Scenario {
        peers: &[
            (LINUX, || Ok(Box::new(linux::LinuxBuffers::new(LinuxDomainKind::LAZY)?))),
            (LINUX_STRICT, || Ok(Box::new(linux::LinuxBuffers::new(LinuxDomainKind::STRICT)?))),
        ],
        targets: &[Target::Linux(1.0)],
        ..passes(
            "dma_4k_deferred",
            "the same as a mapping that owns its buffer, deferred and reclaimed by 64",
            || Ok(Box::new(Owned::pages(How::DEFERRED)?)),
        )
    };
    vec![lazy, strict, owned, deferred]
}

/// Scenarios with written-back table lines. Their only target is Linux's own path.
fn not_snooped() -> Vec<Scenario> {
    let lazy = Scenario {
        peers: &[(LINUX, || {
            Ok(Box::new(linux::LinuxBuffers::new(LinuxDomainKind::LAZY_NON_COHERENT)?))
        })],
        targets: &[Target::Linux(1.0)],
        ..passes(
            "dma_4k_lazy_noncoherent",
            "a 4 KiB buffer mapped and unmapped, lazy; the walker does not snoop",
            || Ok(Box::new(Buffers::new(Policy::Lazy, Walker::NonCoherent)?)),
        )
    };
    let strict = Scenario {
        peers: &[(LINUX, || {
            Ok(Box::new(linux::LinuxBuffers::new(LinuxDomainKind::STRICT_NON_COHERENT)?))
        })],
        targets: &[Target::Linux(1.0)],
        ..passes(
            "dma_4k_strict_noncoherent",
            "a 4 KiB buffer mapped and unmapped, strict; the walker does not snoop",
            || Ok(Box::new(Buffers::new(Policy::Strict, Walker::NonCoherent)?)),
        )
    };
    let deferred = Scenario {
        peers: &[
            (LINUX, || Ok(Box::new(linux::LinuxBuffers::new(LinuxDomainKind::LAZY_NON_COHERENT)?))),
            (LINUX_STRICT, || {
                Ok(Box::new(linux::LinuxBuffers::new(LinuxDomainKind::STRICT_NON_COHERENT)?))
            }),
        ],
        targets: &[Target::Linux(1.0)],
        ..passes(
            "dma_4k_deferred_noncoherent",
            "the same as a mapping that owns its buffer, deferred and reclaimed by 64",
            || Ok(Box::new(Owned::pages(How::DEFERRED.noncoherent())?)),
        )
    };
    vec![lazy, strict, deferred]
}

/// A scatter list of `$pieces` pages, owned by its mapping, compared with Linux's domains of the kinds `$theirs`.
macro_rules! list {
    ($name:literal, $pieces:literal, $what:literal, $how:expr, [$(($peer:expr, $theirs:expr)),+]) => {
        Scenario {
            size_bytes: $pieces * PAGE,
            peers: &[$(($peer, || {
                Ok(Box::new(linux::Lists::new($theirs, &pieces($pieces))?))
            })),+],
            targets: &[Target::Linux(1.0)],
            ..passes(
                $name,
                concat!("a scatter list of ", $pieces, " pages, owned by its mapping, ", $what),
                || Ok(Box::new(Owned::lists($pieces, $how)?)),
            )
        }
    };
}

/// The three ways of a list for a walker that snoops.
macro_rules! lists {
    ($pieces:literal: $strict:literal, $lazy:literal, $deferred:literal) => {
        [
            list!($strict, $pieces, "strict", How::STRICT, [(LINUX, LinuxDomainKind::STRICT)]),
            list!($lazy, $pieces, "lazy", How::LAZY, [(LINUX, LinuxDomainKind::LAZY)]),
            list!(
                $deferred,
                $pieces,
                "deferred and reclaimed by 64",
                How::DEFERRED,
                [(LINUX, LinuxDomainKind::LAZY), (LINUX_STRICT, LinuxDomainKind::STRICT)]
            ),
        ]
    };
}

fn lists() -> Vec<Scenario> {
    let mut all = Vec::new();
    all.extend(lists!(2: "dma_sg_2_strict", "dma_sg_2_lazy", "dma_sg_2_deferred"));
    all.extend(lists!(16: "dma_sg_16_strict", "dma_sg_16_lazy", "dma_sg_16_deferred"));
    all.extend(lists!(256: "dma_sg_256_strict", "dma_sg_256_lazy", "dma_sg_256_deferred"));
    all.push(list!(
        "dma_sg_16_strict_noncoherent",
        16,
        "strict; the walker does not snoop",
        How::STRICT.noncoherent(),
        [(LINUX, LinuxDomainKind::STRICT_NON_COHERENT)]
    ));
    all.push(list!(
        "dma_sg_16_deferred_noncoherent",
        16,
        "deferred and reclaimed by 64; the walker does not snoop",
        How::DEFERRED.noncoherent(),
        [
            (LINUX, LinuxDomainKind::LAZY_NON_COHERENT),
            (LINUX_STRICT, LinuxDomainKind::STRICT_NON_COHERENT)
        ]
    ));
    all
}

fn by_threads() -> Vec<Scenario> {
    let lazy = Scenario {
        peers: &[(LINUX, || Ok(Box::new(linux::two_buffers(LinuxDomainKind::LAZY)?)))],
        targets: &[Target::Linux(1.0)],
        limit: "the same by one thread",
        make_limit: || Ok(Box::new(Buffers::threads(1, Policy::Lazy)?)),
        ..by_two(
            "dma_4k_lazy_2",
            "a 4 KiB buffer mapped and unmapped by each of two threads at once, in one space, lazy",
            || Ok(Box::new(Buffers::threads(2, Policy::Lazy)?)),
        )
    };
    let strict = Scenario {
        peers: &[(LINUX, || Ok(Box::new(linux::two_buffers(LinuxDomainKind::STRICT)?)))],
        targets: &[Target::Linux(1.0)],
        limit: "the same by one thread",
        make_limit: || Ok(Box::new(Buffers::threads(1, Policy::Strict)?)),
        ..by_two(
            "dma_4k_strict_2",
            "a 4 KiB buffer mapped and unmapped by each of two threads at once, in one space, strict",
            || Ok(Box::new(Buffers::threads(2, Policy::Strict)?)),
        )
    };
    let owned = Scenario {
        peers: &[(LINUX, || Ok(Box::new(linux::two_buffers(LinuxDomainKind::STRICT)?)))],
        targets: &[Target::Linux(1.0)],
        limit: "the same by one thread",
        make_limit: || Ok(Box::new(Owned::threads(1, How::STRICT)?)),
        ..by_two(
            "dma_4k_owned_2",
            "a 4 KiB buffer owned by its mapping, strict, by each of two threads at once, of one device",
            || Ok(Box::new(Owned::threads(2, How::STRICT)?)),
        )
    };
    vec![lazy, strict, owned]
}
