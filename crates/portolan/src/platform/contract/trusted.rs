//! Parts that isolation rests on besides this library.

/// A promise for parts of a machine that isolation rests on: of its *trusted computing base*.
///
/// An implementer of an [`Iommu`](crate::iommu::Iommu) or a queue needs no `unsafe` for that. But
/// one that forgets an invalidation, or a lock that lets two in, hands memory back to its owner
/// while a device still reaches it. So functions that make an address space of such parts take this
/// value.
///
/// An embedder needs none: a [`Platform`](super::Platform) has made the promise, and the drivers of
/// `portolan-hw` make it for themselves.
///
/// ```
/// # use portolan::iommu::{Attach, BoundDomain, Domain};
/// # use portolan::platform::TrustedBase;
/// # use std::sync::Arc;
/// /// # Safety
/// /// Unit and domain do what their traits say.
/// unsafe fn bind<U: Attach<D> + 'static, D: Domain + 'static>(unit: U, domain: D) -> BoundDomain {
///     // SAFETY: the caller's promise.
///     let base = unsafe { TrustedBase::new() };
///     BoundDomain::new(Arc::new(unit), Arc::new(domain), base)
/// }
/// ```
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug)]
pub struct TrustedBase(());

impl TrustedBase {
    /// A promise for the values that are handed over with it.
    ///
    /// # Safety
    /// The values that it, or a copy of it, is handed over with keep the contracts of the traits that they
    /// implement, and so do those that they are made of:
    ///
    /// * [`Iommu`](crate::iommu::Iommu) and [`Attach`](crate::iommu::Attach): a stream leads to the domain that
    ///   it is attached to, or nowhere;
    /// * [`Domain`](crate::iommu::Domain), its [`Format`](crate::table::Format),
    ///   [`Word`](crate::platform::Word), [`TableMem`](crate::platform::TableMem),
    ///   [`InvalidationQueue`](crate::inval::InvalidationQueue) and
    ///   [`TagPool`](crate::iommu::TagPool): devices reach mapped memory, and nothing of it once a
    ///   sync has returned `Ok` for its unmap;
    /// * [`Cpus`](crate::platform::Cpus), their [`SharedWord`](crate::platform::SharedWord),
    ///   [`Lock`](crate::platform::Lock) and [`Interrupts`](crate::platform::Interrupts): words change in one
    ///   step and in the order asked for, and locks let one holder in;
    /// * [`DataCache`](crate::platform::DataCache): lines are written back and dropped as it says, and no longer than
    ///   it says.
    ///
    /// Of a simulated machine, whose devices reach no memory of the process, there is nothing to promise.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}
