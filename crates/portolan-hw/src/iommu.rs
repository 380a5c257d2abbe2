//! Each driver as an [`IommuDomains`]: the kind of domain that suits it, and the conditions for its
//! policy.
//!
//! *Context.* Task to make domains; interrupt to ask for conditions.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU32;

use portolan::addr::{PageSize, StreamId};
use portolan::iommu::{
    AttachError, BoundDomain, Conditions, DeviceTlb, InterruptTarget, Iommu, IommuDomains,
    IommuError, RecoverableFaults, RemapInterrupts, Shadowing, Stage, TrapCost,
};
use portolan::platform::{AllMemory, Cpus, UnitPlatform};
use portolan::table::format::VtdFirstLevels;

use crate::amd::AmdVi;
use crate::promise;
use crate::riscv::RiscvIommu;
use crate::smmuv2::{self, SmmuV2};
use crate::smmuv3::{self, Smmu, StallModel};
use crate::tegra_smmu::TegraSmmu;
use crate::virtio::{Transport, Viommu};
use crate::vtd::{Mode, Vtd, VtdFeature};

/// Methods that are alike in drivers with registers: the unit without the trait's additions, and its counts by kind.
macro_rules! common {
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

/// Of units whose tables no hypervisor shadows and whose queues are the hardware's.
const fn plain(stage: Stage) -> Conditions {
    Conditions { stage, shadowing: Shadowing::None, exits: TrapCost::None }
}

/// Of units that a hypervisor plays, with its way of following tables.
const fn played(stage: Stage, shadowing: Shadowing) -> Conditions {
    Conditions { stage, shadowing, exits: TrapCost::Expensive }
}

impl<P: UnitPlatform> IommuDomains for Vtd<P> {
    /// First-stage tables in scalable mode: a hypervisor need not shadow them. Second-stage tables
    /// otherwise.
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        match self.new_stage() {
            Stage::First => {
                let domain = Arc::new(self.first_stage(VtdFirstLevels::Four)?);
                Ok(BoundDomain::new(self, domain, promise::drivers()))
            }
            Stage::Second => {
                let domain = Arc::new(self.second_stage()?);
                Ok(BoundDomain::new(self, domain, promise::drivers()))
            }
        }
    }

    fn conditions(&self) -> Conditions {
        let stage = self.new_stage();
        // Virtual units have caching mode, and there an invalidation is an exit.
        match self.features().has.contains(VtdFeature::CACHING_MODE) {
            false => plain(stage),
            true => played(stage, Shadowing::CachingMode),
        }
    }

    fn recoverable_faults(&self) -> RecoverableFaults {
        let requests = self.features().has.contains(VtdFeature::PAGE_REQUESTS);
        match (self.config.mode, requests) {
            (Mode::Scalable, true) => RecoverableFaults::Present,
            _ => RecoverableFaults::Absent,
        }
    }

    fn interrupts(&self) -> Option<&dyn RemapInterrupts> {
        self.config.interrupts.map(|_| self as _)
    }

    fn signal_faults(&self, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        self.signal(target)
    }

    fn use_device_tlb(
        &self,
        stream: StreamId,
        tlb: DeviceTlb,
        all: AllMemory,
    ) -> Result<(), IommuError> {
        Vtd::use_device_tlb(self, stream, tlb, all)
    }

    common!();
}

impl<P: UnitPlatform> IommuDomains for Smmu<P> {
    /// First-stage tables with the smallest granule, as Linux has it; second-stage tables where there
    /// is no first stage.
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        let options = smmuv3::SmmuDomainOptions::default();
        let has = |granule| self.features().granules.contains(granule);
        macro_rules! domain {
            ($make:ident, $lg2:literal) => {{
                let domain = Arc::new(self.$make::<$lg2>(&options)?);
                Ok(BoundDomain::new(self, domain, promise::drivers()))
            }};
        }
        let stage = self.conditions().stage;
        match stage {
            Stage::First if has(PageSize::SIZE_4K) => domain!(first_stage, 12),
            Stage::First if has(PageSize::of_lg2(14)) => domain!(first_stage, 14),
            Stage::First => domain!(first_stage, 16),
            Stage::Second if has(PageSize::SIZE_4K) => domain!(second_stage, 12),
            Stage::Second if has(PageSize::of_lg2(14)) => domain!(second_stage, 14),
            Stage::Second => domain!(second_stage, 16),
        }
    }

    fn conditions(&self) -> Conditions {
        plain(if self.features().stage1 { Stage::First } else { Stage::Second })
    }

    fn recoverable_faults(&self) -> RecoverableFaults {
        let features = self.features();
        match (features.stalls, features.pri) {
            (StallModel::Terminate, false) => RecoverableFaults::Absent,
            _ => RecoverableFaults::Present,
        }
    }

    /// The stream has to be blocked, and must not stall.
    fn use_device_tlb(
        &self,
        stream: StreamId,
        _: DeviceTlb,
        all: AllMemory,
    ) -> Result<(), IommuError> {
        self.enable_ats(stream, all).map_err(|error| match error {
            AttachError::Iommu(error) => error,
            _ => IommuError::Unsupported,
        })
    }

    common!();
}

impl<P: UnitPlatform> IommuDomains for SmmuV2<P> {
    /// First-stage tables; second-stage tables where there is no first stage.
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        let options = smmuv2::SmmuV2DomainOptions::default();
        match self.conditions().stage {
            Stage::First => {
                let domain = Arc::new(self.first_stage::<12>(&options)?);
                Ok(BoundDomain::new(self, domain, promise::drivers()))
            }
            Stage::Second => {
                let domain = Arc::new(self.second_stage::<12>(&options)?);
                Ok(BoundDomain::new(self, domain, promise::drivers()))
            }
        }
    }

    fn conditions(&self) -> Conditions {
        plain(if self.features().stage1 { Stage::First } else { Stage::Second })
    }

    common!();
}

impl<P: UnitPlatform<AtomicU32>> IommuDomains for TegraSmmu<P> {
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        let domain = Arc::new(self.domain()?);
        Ok(BoundDomain::new(self, domain, promise::drivers()))
    }

    fn conditions(&self) -> Conditions {
        plain(Stage::Second)
    }

    common!();
}

impl<P: UnitPlatform> IommuDomains for AmdVi<P> {
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        let domain = Arc::new(self.domain()?);
        Ok(BoundDomain::new(self, domain, promise::drivers()))
    }

    /// Units that cache absence (`NpCache`) are virtual ones, which follow tables by invalidations.
    fn conditions(&self) -> Conditions {
        match self.features().shadowing() {
            Shadowing::None => plain(Stage::Second),
            shadowing => played(Stage::Second, shadowing),
        }
    }

    fn interrupts(&self) -> Option<&dyn RemapInterrupts> {
        self.config.interrupts.map(|_| self as _)
    }

    fn signal_faults(&self, target: Option<InterruptTarget>) -> Result<(), IommuError> {
        self.signal_events(target.is_some())
    }

    common!();
}

impl<P: UnitPlatform> IommuDomains for RiscvIommu<P> {
    /// First-stage tables; second-stage tables where there is no first stage, or where interrupts go
    /// through MSI page tables.
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        if let Some(levels) = self.best_first().filter(|_| self.interrupts().is_none()) {
            let domain = Arc::new(self.first_stage(levels)?);
            return Ok(BoundDomain::new(self, domain, promise::drivers()));
        }
        let levels = self.best_second().ok_or(IommuError::Unsupported)?;
        let domain = Arc::new(self.second_stage(levels)?);
        Ok(BoundDomain::new(self, domain, promise::drivers()))
    }

    fn conditions(&self) -> Conditions {
        plain(match (self.best_first(), self.interrupts()) {
            (Some(_), None) => Stage::First,
            _ => Stage::Second,
        })
    }

    fn interrupts(&self) -> Option<&dyn RemapInterrupts> {
        self.interrupts_config().map(|_| self as _)
    }

    fn recoverable_faults(&self) -> RecoverableFaults {
        match self.reads_requests() {
            Some(()) => RecoverableFaults::Present,
            None => RecoverableFaults::Absent,
        }
    }

    fn use_device_tlb(
        &self,
        stream: StreamId,
        tlb: DeviceTlb,
        all: AllMemory,
    ) -> Result<(), IommuError> {
        RiscvIommu::use_device_tlb(self, stream, tlb, all)
    }

    common!();
}

impl<T: Transport + Send + Sync + 'static, C: Cpus> IommuDomains for Viommu<T, C> {
    fn new_domain(self: Arc<Self>) -> Result<BoundDomain, IommuError> {
        let domain = self.domain()?;
        Ok(BoundDomain::new(self, domain, promise::drivers()))
    }

    fn as_iommu(self: Arc<Self>) -> Arc<dyn Iommu> {
        self
    }

    /// Each map and unmap is a request to the hypervisor.
    fn conditions(&self) -> Conditions {
        played(Stage::Second, Shadowing::Requests)
    }

    fn commands(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let counts = self.counts();
        each("ATTACH", counts.attach);
        each("DETACH", counts.detach);
        each("MAP", counts.map);
        each("UNMAP", counts.unmap);
        each("PROBE", counts.probe);
    }
}

#[cfg(test)]
mod tests;
