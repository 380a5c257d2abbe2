//! SMMUs of version 2, by IORT. Not supported: those of a device tree.
//!
//! *Context.* Task.

use portolan::platform::Platform;
use portolan_tables::describe::UnitDescription;
use portolan_tables::iort;
use portolan_tables::sdt::Maker;

use super::super::{EnableError, FirmwareMemory};
use super::{Enabling, Outcome, window_of};
use crate::promise;
use crate::smmuv2::{Config, Features, Implementation, Inherited, SmmuV2};

impl<P: Platform> Enabling<'_, '_, P> {
    /// Enables an SMMU of version 2. Those of version 1 are refused by their registers.
    pub(super) fn smmu(
        &self,
        number: usize,
        unit: &UnitDescription,
        smmu: &iort::Smmu,
        maker: Maker,
    ) -> Outcome {
        let (model, window) = (smmu.model, smmu.registers);
        let known = Implementation::of_iort(maker, model, self.banks.get());
        let implementation = known.ok_or(EnableError::UnknownModel { window, model })?;
        let mut reserved = self.reserved(unit);
        let at_work = reserved.passing(self.description).map_err(|_| EnableError::Memory)?;
        self.add_to(number, &mut reserved);
        let mut config = Config {
            implementation,
            coherency: smmu.coherency(),
            at_work,
            reserved,
            ..Config::default()
        };
        let qualcomm = matches!(config.implementation, Implementation::Qualcomm(_));
        if qualcomm && self.options.reserved == FirmwareMemory::Reached {
            // A display: firmware's tables do not name what it uses.
            config.inherited =
                Inherited::PassThrough(promise::of_devices_at_work(self.description));
        }
        let bytes = smmu.registers.len_minus_one().saturating_add(1);
        self.at(window_of(unit.place)?, |registers, memory, clock| {
            let features = Features::read(&registers)?;
            features.fits(bytes)?;
            let memory = memory.below(features.output_lg2);
            let unit = SmmuV2::enable(registers, memory, clock, config)?;
            self.banks.set(self.banks.get().saturating_add(features.banks as u16));
            Ok(unit)
        })
    }
}
