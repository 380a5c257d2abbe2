//! How the setups and the numbers of units are declared: what all kinds have in common stands here once.

/// What a unit is made from: its identification, how its caches behave, the clock by which it is slow, and
/// what only this kind has, with the values that the default has.
macro_rules! setup {
    ($(#[$doc:meta])* $name:ident of $identification:ty, default: $default:literal {
        $($(#[$own_doc:meta])* $own:ident: $kind:ty = $value:expr,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            /// What it is.
            pub identification: $identification,
            /// How its caches behave.
            pub temper: $crate::iommu::Temper,
            $($(#[$own_doc])* pub $own: $kind,)*
            /// The clock by which it is slow.
            pub clock: std::sync::Arc<$crate::clock::VirtualClock>,
        }

        impl Default for $name {
            #[doc = $default]
            fn default() -> Self {
                Self {
                    identification: Default::default(),
                    temper: $crate::iommu::Temper::Adversarial,
                    $($own: $value,)*
                    clock: Default::default(),
                }
            }
        }

        impl $crate::unit::Conditions for $name {
            fn conditions(
                &self,
            ) -> (&$crate::iommu::Temper, &std::sync::Arc<$crate::clock::VirtualClock>) {
                (&self.temper, &self.clock)
            }
        }
    };
}

/// Numbers of what happened: those of every unit, and those that only this kind counts.
macro_rules! counts {
    ($name:ident { $($(#[$doc:meta])* $own:ident: $kind:ty,)* }) => {
        /// Numbers of what happened.
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
            /// Responses to what nobody had asked, or had got one already.
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
