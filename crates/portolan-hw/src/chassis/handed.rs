//! Units that change hands while devices are at work: the state that a driver's books come to, and domains of a
//! former kernel that no caller has opened yet.
//!
//! *Context.* Task.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{InvalTag, IovaRange, StreamId};
use portolan::iommu::handover::{
    AdoptedDomain, DomainHandover, DomainTables, HandoverTarget, StreamHandover, UnitHandover,
};
use portolan::iommu::{Attach, BoundDomain, DeviceTlb, Domain, IommuError, Requester};
use portolan::platform::{Cpus, Guarded, Mmio};

use super::Present as _;
use super::book::Hold;
use crate::handover::AdoptError;
use crate::promise;

/// Methods of [`IommuDomains`](portolan::iommu::IommuDomains) of a unit that changes hands: a kernel without the
/// feature has none of their code.
macro_rules! handover_methods {
    () => {
        #[cfg(feature = "handover")]
        fn handover(&self) -> Result<portolan::iommu::handover::UnitHandover, IommuError> {
            self.state()
        }

        #[cfg(feature = "handover")]
        fn leave(&self) -> Result<(), IommuError> {
            self.leave_unit()
        }

        #[cfg(feature = "handover")]
        fn adopted(
            self: Arc<Self>,
            stream: portolan::addr::StreamId,
        ) -> Option<portolan::iommu::handover::AdoptedDomain> {
            self.adopted.open(Arc::clone(&self), stream)
        }
    };
}
pub(crate) use handover_methods;

/// Attachment as a driver's book has it.
pub(crate) struct Booked<'b> {
    pub(crate) requester: Requester,
    /// Identifier and handle of the domain, unless accesses pass through.
    pub(crate) domain: Option<(InvalTag, &'b Hold)>,
    pub(crate) tlb: Option<DeviceTlb>,
}

/// Puts the attachments `booked` into `state`, in order of streams, with their domains; has interrupts be in order.
///
/// # Errors
/// [`IommuError::Unsupported`] if a domain has no tables of its own.
pub(crate) fn record<'b>(
    state: &mut UnitHandover,
    booked: impl Iterator<Item = Booked<'b>>,
) -> Result<(), IommuError> {
    let mut domains = BTreeMap::new();
    for Booked { requester, domain, tlb } in booked {
        let target = match domain {
            None => HandoverTarget::Everything,
            Some((tag, Hold(domain))) => {
                if let alloc::collections::btree_map::Entry::Vacant(place) = domains.entry(tag) {
                    place.insert(domain.tables().ok_or(IommuError::Unsupported)?);
                }
                HandoverTarget::Domain(tag)
            }
        };
        state.streams.push(StreamHandover { requester, target, tlb });
    }
    state.streams.sort_unstable_by_key(|stream| stream.requester);
    state.interrupts.sort_unstable_by_key(|interrupt| (interrupt.source, interrupt.index));
    let domains = domains.into_iter().map(|(tag, tables)| DomainHandover { tag, tables });
    state.domains.extend(domains);
    Ok(())
}

/// Word of a record's features: interrupts are remapped.
pub(crate) const REMAPS: usize = 3;

/// Checks that a unit has the features that were recorded.
pub(crate) fn same_features(found: [u64; 4], recorded: [u64; 4]) -> Result<(), AdoptError> {
    match found == recorded {
        true => Ok(()),
        false if found[REMAPS] != recorded[REMAPS] => Err(AdoptError::Interrupts),
        false => Err(AdoptError::Features { found, recorded }),
    }
}

/// Checks that the record of a unit whose interrupts have no table of its own names none.
pub(crate) fn without_interrupt_root(recorded: &UnitHandover) -> Result<(), AdoptError> {
    if recorded.interrupt_root == 0 { Ok(()) } else { Err(AdoptError::Interrupts) }
}

/// Checks that the record of a unit whose interrupts are not handed over has none.
pub(crate) fn without_interrupts(recorded: &UnitHandover) -> Result<(), AdoptError> {
    without_interrupt_root(recorded)?;
    if recorded.interrupts.is_empty() { Ok(()) } else { Err(AdoptError::Interrupts) }
}

/// Checks that the register of 64 bits at `offset` holds what was recorded.
pub(crate) fn as_recorded(
    regs: &impl Mmio,
    offset: usize,
    recorded: u64,
) -> Result<(), AdoptError> {
    match regs.present64(offset)? {
        value if value == recorded => Ok(()),
        value => Err(AdoptError::Register { offset, value, recorded }),
    }
}

/// Checks that a domain over the tables `recorded` is as they say.
pub(crate) fn same_tables(domain: &impl Domain, recorded: &DomainTables) -> Result<(), AdoptError> {
    match domain.tables().as_ref() == Some(recorded) {
        true => Ok(()),
        false => Err(AdoptError::Shape { root: recorded.root }),
    }
}

/// Makes a domain and its unit of another type.
type Bind<U> = Box<dyn FnOnce(Arc<U>) -> BoundDomain + Send>;

/// Domain of a former kernel that no caller has opened yet.
struct Unopened<U> {
    streams: Vec<StreamId>,
    in_use: Vec<IovaRange>,
    bind: Bind<U>,
}

/// Domains of a former kernel that no caller has opened yet.
pub(crate) struct Adopted<C: Cpus, U>(Guarded<C, Vec<Unopened<U>>>);

impl<C: Cpus, U> Default for Adopted<C, U> {
    fn default() -> Self {
        Self(Guarded::new(Vec::new()))
    }
}

impl<C: Cpus, U> Adopted<C, U> {
    /// Those of `domains`, of the unit's state `from`.
    pub(crate) fn new<D: Domain + 'static>(
        domains: impl Iterator<Item = (InvalTag, Arc<D>)>,
        from: &UnitHandover,
    ) -> Self
    where
        U: Attach<D> + 'static,
    {
        let unopened = domains.map(|(tag, domain)| {
            let its = |stream: &&StreamHandover| stream.target == HandoverTarget::Domain(tag);
            let whole = from.streams.iter().filter(its);
            let whole = whole.filter(|stream| stream.requester.pasid.is_none());
            let streams: Vec<_> = whole.map(|stream| stream.requester.stream).collect();
            let in_use = from.domain(tag).map(|domain| domain.tables.mapped.clone());
            let mut in_use = in_use.unwrap_or_default();
            let reserved = from.reserved.iter().filter(|one| streams.contains(&one.stream));
            in_use.extend(reserved.map(|one| one.range));
            Unopened {
                streams,
                in_use,
                bind: Box::new(|unit| BoundDomain::new(unit, domain, promise::drivers()))
                    as Bind<U>,
            }
        });
        Self(Guarded::new(unopened.collect()))
    }

    /// Adds those of `other`.
    pub(crate) fn and(self, other: Self) -> Self {
        let mut all = self.0.into_inner();
        all.extend(other.0.into_inner());
        Self(Guarded::new(all))
    }

    /// The domain to which `stream` is attached, for `unit`.
    pub(crate) fn open(&self, unit: Arc<U>, stream: StreamId) -> Option<AdoptedDomain> {
        let mut all = self.0.lock();
        let at = all.iter().position(|one| one.streams.contains(&stream))?;
        let Unopened { in_use, bind, .. } = all.swap_remove(at);
        drop(all);
        Some(AdoptedDomain { bound: bind(unit), in_use })
    }
}
