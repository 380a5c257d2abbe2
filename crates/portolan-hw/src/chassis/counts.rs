//! Counters of a driver's writes, by kind.

/// Declares the kinds, the counters of a driver, and their values as its user sees them:
/// `Kinds, Counts { Kind = "name" => "description"; }`.
macro_rules! counters {
    ($(#[$of_kinds:meta])* $kinds:ident, $(#[$of_counts:meta])* $counts:ident {
        $($(#[$doc:meta])* $kind:ident = $name:expr $(=> $text:literal)?;)*
    }) => {
        $(#[$of_kinds])*
        ///
        /// *Context.* Interrupt: a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $kinds {$($(#[$doc])* $(#[doc = $text])? $kind),*}

        impl $kinds {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The name in the specification.
            pub const fn name(self) -> &'static str {
                match self {$(Self::$kind => $name),*}
            }
        }

        $(#[$of_counts])*
        ///
        /// *Context.* Interrupt: a value.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $counts([u64; $kinds::ALL.len()]);

        impl $counts {
            /// Of one kind.
            pub fn of(&self, kind: $kinds) -> u64 {
                self.0[kind as usize]
            }

            /// Of all kinds.
            pub fn total(&self) -> u64 {
                self.0.iter().sum()
            }

            /// Each kind that there is, with its number.
            pub fn iter(&self) -> impl Iterator<Item = ($kinds, u64)> {
                $kinds::ALL.iter().copied().zip(self.0)
            }

            /// Numbers of these and `other` together.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                Self(core::array::from_fn(|kind| self.0[kind].wrapping_add(other.0[kind])))
            }

            /// Numbers of commands since `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self(core::array::from_fn(|kind| self.0[kind].wrapping_sub(earlier.0[kind])))
            }
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters([core::sync::atomic::AtomicU64; $kinds::ALL.len()]);

        impl Counters {
            pub(super) fn add(&self, kind: $kinds) {
                self.0[kind as usize].fetch_add(1, core::sync::atomic::Ordering::Relaxed);
            }

            pub(super) fn read(&self) -> $counts {
                let read = |of: &core::sync::atomic::AtomicU64| {
                    of.load(core::sync::atomic::Ordering::Relaxed)
                };
                $counts(core::array::from_fn(|kind| read(&self.0[kind])))
            }
        }
    };
}
pub(crate) use counters;
