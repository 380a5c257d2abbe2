//! Handles to the state that a unit and its domains share.

/// Declares a handle to `$shared`, which is a queue: `Handle of Shared, AtomicU64`.
/// Submissions through it go by its `submitters`, and fail only while its `operation` owes any.
macro_rules! handle {
    ($name:ident of $shared:ident, $word:ident) => {
        /// A handle to the unit's invalidations, which its domains hold.
        ///
        /// *Context.* Atomic: its methods wait for the hardware. Interrupt to clone it, which
        /// allocates nothing; task to drop the last, which frees the shared state of the unit and
        /// its domains.
        pub struct $name<P: portolan::platform::UnitPlatform<core::sync::atomic::$word>>(
            pub(super) alloc::sync::Arc<$shared<P>>,
        );

        impl<P: portolan::platform::UnitPlatform<core::sync::atomic::$word>> Clone for $name<P> {
            fn clone(&self) -> Self {
                Self(self.0.clone())
            }
        }

        crate::chassis::opaque!($name, $word);

        impl<P: portolan::platform::UnitPlatform<core::sync::atomic::$word>>
            portolan::inval::InvalidationQueue for $name<P>
        {
            type Error = portolan::iommu::IommuError;

            #[inline]
            fn pay(
                &self,
                steps: &mut dyn Iterator<Item = portolan::inval::Step>,
                tables: portolan::inval::TablesLeft,
            ) -> Result<(), Self::Error> {
                let shared = &*self.0;
                let paid = match shared.submitters.combiner() {
                    Some(combiner) => combiner.pay(shared.cpus(), shared, steps, tables),
                    None => shared.pay(steps, tables),
                };
                shared.operation().paid(paid)
            }

            #[inline]
            fn pay_by(
                &self,
                command: portolan::inval::Command,
                tables: portolan::inval::TablesLeft,
            ) -> Result<(), Self::Error> {
                use portolan::inval::Step;
                match self.0.submitters.combiner() {
                    Some(_) => {
                        let steps = [Step::Invalidate(command), Step::Sync];
                        self.pay(&mut steps.into_iter(), tables)
                    }
                    None => self.0.operation().paid(self.0.pay_by(command, tables)),
                }
            }
        }
    };
}
pub(crate) use handle;

/// Makes `$name`, which holds what a machine has, printable by its name.
macro_rules! opaque {
    ($name:ident, $word:ident) => {
        impl<P: portolan::platform::UnitPlatform<core::sync::atomic::$word>> core::fmt::Debug
            for $name<P>
        {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use opaque;
