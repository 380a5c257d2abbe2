//! Declarations of units' setups and counts: common parts of all kinds stand here once.

/// Declares the setup of a unit: its identification, the behaviour of its caches, the clock for its delays, and the
/// settings of this kind only, with their default values.
macro_rules! setup {
    ($(#[$doc:meta])* $name:ident of $identification:ty, default: $default:literal {
        $($(#[$own_doc:meta])* $own:ident: $kind:ty = $value:expr,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            /// Identification of the unit.
            pub identification: $identification,
            /// Behaviour of its caches.
            pub temper: portolan_sim::iommu::Temper,
            $($(#[$own_doc])* pub $own: $kind,)*
            /// Clock for the unit's delays.
            pub clock: std::sync::Arc<portolan_sim::clock::VirtualClock>,
        }

        impl $name {
            /// Makes the default setup for this identification.
            pub fn of(identification: $identification) -> Self {
                Self {
                    identification,
                    ..Self::default()
                }
            }
        }

        impl Default for $name {
            #[doc = $default]
            fn default() -> Self {
                Self {
                    identification: Default::default(),
                    temper: portolan_sim::iommu::Temper::Adversarial,
                    $($own: $value,)*
                    clock: Default::default(),
                }
            }
        }

        impl $crate::unit::Conditions for $name {
            fn conditions(
                &self,
            ) -> (&portolan_sim::iommu::Temper, &std::sync::Arc<portolan_sim::clock::VirtualClock>) {
                (&self.temper, &self.clock)
            }
        }
    };
}

/// Declares counts of events: those of every unit, and those of one kind.
macro_rules! counts {
    ($name:ident { $($(#[$doc:meta])* $own:ident: $kind:ty,)* }) => {
        /// Counts of events.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $own: $kind,)*
            /// Translations that needed a walk.
            pub misses: u64,
            /// Table entries read.
            pub walk_steps: u64,
            /// Accesses that went through.
            pub accesses: u64,
            /// Accesses that did not.
            pub faults: u64,
            /// Responses without a request, or to a request that had got one already.
            pub stray_responses: u64,
        }

        impl $crate::unit::Told for $name {
            fn told(&self, sums: $crate::unit::Sums) -> Self {
                Self {
                    accesses: sums.accesses,
                    walk_steps: sums.walk_steps,
                    stray_responses: sums.stray_responses,
                    ..self.clone()
                }
            }
        }
    };
}

pub(crate) use {counts, setup};
