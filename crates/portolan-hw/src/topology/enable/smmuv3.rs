//! SMMUs of version 3, by IORT or a device tree.
//!
//! *Context.* Task.

use portolan::addr::PhysRange;
use portolan::platform::Platform;
use portolan_tables::describe::{SmmuV3Settings, UnitDescription};

use super::super::EnableError;
use super::former::{FormerState, NamedUnit, by_record};
use super::{Enabling, Outcome, lg2_of, window_of};
use crate::promise;
use crate::smmuv3::{
    Config, Features, MoreQueues, RegisterPages, Smmu, TableUpdate, Want, enhanced_queues,
};

impl<P: Platform> Enabling<'_, '_, P> {
    pub(super) fn smmu_v3(
        &self,
        number: usize,
        unit: &UnitDescription,
        settings: &SmmuV3Settings,
    ) -> Outcome {
        let window = window_of(unit.place)?;
        self.powered(unit, window)?;
        let mut reserved = self.reserved(unit);
        // They pass through until they are opened, as Linux has it.
        let mut at_work = reserved.passing(self.description).map_err(|_| EnableError::Memory)?;
        self.add_to(number, &mut reserved);
        if settings.node.is_none() {
            at_work = reserved.passing(self.description).map_err(|_| EnableError::Memory)?;
        }
        let mut config = Config {
            coherency: settings.coherency,
            pages: match settings.one_page {
                true => RegisterPages::OnlyFirst,
                false => RegisterPages::Two,
            },
            combining: self.options.combining,
            at_work,
            reserved,
            stream_lg2: unit.last_stream.map_or(Config::default().stream_lg2, lg2_of),
            ..Config::default()
        };
        if let Some(node) = settings.node {
            config.update = Some(update(node.flags));
            // A line without a listener is not heard.
            config.interrupts = Want::IfThere;
            config.stream_lg2 = unit.last_stream.map_or(0, lg2_of);
        }
        let named = NamedUnit { number, kind: unit.kind, window };
        let former = self.of_former(named, |parts, state, claims| {
            let memory = parts.memory.below(Features::read(&parts.registers)?.output_lg2);
            let (registers, clock, config) = (parts.registers, parts.clock, config.clone());
            match state {
                FormerState::Recorded(state) => {
                    Smmu::adopt(registers, memory, clock, config, state, claims).map(by_record)
                }
                FormerState::Crashed(keep, former) => {
                    Smmu::take_over(registers, memory, clock, config, keep, former, claims)
                }
            }
        });
        if let Some(unit) = former {
            return Ok(unit);
        }
        let (window, more) = match self.control_pages(window)? {
            Some(wide) => (wide, MoreQueues::Enhanced),
            None => (window, MoreQueues::None),
        };
        self.at(window, |registers, memory, clock| {
            let lg2 = Features::read(&registers)?.output_lg2;
            Smmu::enable_with(registers, more, memory.below(lg2), clock, config)
        })
    }

    /// The unit's registers with the control pages of its enhanced command queues, if they are wanted and there.
    fn control_pages(&self, window: PhysRange) -> Result<Option<PhysRange>, EnableError> {
        if !self.options.enhanced_queues {
            return Ok(None);
        }
        let registers = promise::registers_of_unit(self.platform, window, self.description);
        let registers = registers.ok_or(EnableError::NoRegisters { window })?;
        let queues = enhanced_queues(&registers);
        let queues = queues.map_err(|error| EnableError::Iommu { window, error })?;
        let bytes = queues.map(|queues| queues.window_bytes() as u64);
        Ok(bytes.and_then(|bytes| PhysRange::from_len(window.start(), bytes)))
    }
}

/// State that an SMMU may update in table entries, by the flags of its node (HTTU override).
fn update(flags: u32) -> TableUpdate {
    match flags >> 1 & 3 {
        1 => TableUpdate::Access,
        2 => TableUpdate::Dirty,
        _ => TableUpdate::None,
    }
}
