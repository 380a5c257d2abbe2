//! Common parts of drivers as [`IommuDomains`](portolan::iommu::IommuDomains): methods that are alike, and
//! conditions for the policy.
//!
//! *Context.* Interrupt: values.

use portolan::iommu::{Conditions, Shadowing, Stage, TrapCost};

/// Methods that are alike in drivers with registers: the unit without the trait's additions, and its counts by kind.
macro_rules! common_methods {
    () => {
        fn as_iommu(self: Arc<Self>) -> Arc<dyn Iommu> {
            self
        }

        fn commands(&self, each: &mut dyn FnMut(&'static str, u64)) {
            let counts = self.counts();
            counts.iter().for_each(|(kind, count)| each(kind.name(), count));
        }
    };
}

pub(crate) use common_methods;

/// Of units whose tables no hypervisor shadows and whose queues are the hardware's.
pub(crate) const fn plain(stage: Stage) -> Conditions {
    Conditions { stage, shadowing: Shadowing::None, exits: TrapCost::None }
}

/// Of units that a hypervisor plays, with its way of following tables.
pub(crate) const fn played(stage: Stage, shadowing: Shadowing) -> Conditions {
    Conditions { stage, shadowing, exits: TrapCost::Expensive }
}
