//! Handles to what a unit and its domains share.

/// Declares a handle to `$shared`: `Handle<R, M, C> of Shared`.
macro_rules! handle {
    ($name:ident<R, M $(: $bound:path)?, C> of $shared:ident) => {
        /// A handle to the unit's invalidations, which its domains hold.
        ///
        /// *Context.* Atomic: its methods wait for the hardware. Interrupt to clone it, which
        /// allocates nothing; task to drop the last, which frees what the unit and its domains share.
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
    };
}
pub(crate) use handle;
