//! Handles to the state that a unit and its domains share.

/// Declares a handle to `$shared`, which is a queue: `Handle<R, M, C> of Shared, AtomicU64`.
/// Submissions through it go by its `submitters`.
macro_rules! handle {
    ($name:ident<R, M $(: $bound:path)?, C> of $shared:ident, $word:ident) => {
        /// A handle to the unit's invalidations, which its domains hold.
        ///
        /// *Context.* Atomic: its methods wait for the hardware. Interrupt to clone it, which
        /// allocates nothing; task to drop the last, which frees the shared state of the unit and
        /// its domains.
        pub struct $name<R, M $(: $bound)?, C: Cpus>(
            pub(super) alloc::sync::Arc<$shared<R, M, C>>,
        );

        impl<R, M $(: $bound)?, C: Cpus> Clone for $name<R, M, C> {
            fn clone(&self) -> Self {
                Self(self.0.clone())
            }
        }

        impl<R, M $(: $bound)?, C: Cpus> core::fmt::Debug for $name<R, M, C> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }

        impl<R, M, C: Cpus> portolan::inval::InvalidationQueue for $name<R, M, C>
        where
            R: portolan::platform::Mmio,
            M: portolan::platform::TableMem<core::sync::atomic::$word>,
        {
            type Error = portolan::iommu::IommuError;

            #[inline]
            fn pay(
                &self,
                steps: &mut dyn Iterator<Item = portolan::inval::Step>,
                tables: portolan::inval::TablesLeft,
            ) -> Result<(), Self::Error> {
                let shared = &*self.0;
                shared.submitters.pay(shared.cpus(), shared, steps, tables)
            }
        }
    };
}
pub(crate) use handle;
