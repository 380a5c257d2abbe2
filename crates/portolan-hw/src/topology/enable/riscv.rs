//! RISC-V IOMMUs, by RIMT or a device tree.
//!
//! *Context.* Task.

use portolan::addr::{PciFunction, PhysAddr, PhysRange};
use portolan::platform::Platform;
use portolan_tables::describe::{RiscvSettings, UnitDescription, Window};

use super::super::EnableError;
use super::super::survey::Place;
use super::former::{FormerState, NamedUnit, OfUnit, by_record};
use super::{Enabling, Outcome, lg2_of, window_of};
use crate::interrupt::Remapping;
use crate::riscv::{Config, Features, Messages, RiscvIommu, Signal};

/// Offset in configuration space of a function's first window.
const BASE: u16 = 0x10;
/// Bits of that window's word: ports instead of memory; kind of memory; all that are not of the address.
const PORTS: u32 = 1;
const KIND: u32 = 3 << 1;
const KIND_64: u32 = 2 << 1;
const FLAGS: u32 = 0xf;
/// Bytes of a RISC-V unit's registers.
const RISCV_WINDOW: u64 = 0x1000;

impl<P: Platform> Enabling<'_, '_, P> {
    /// Starts a RISC-V IOMMU. Without wires, even if the table names some, it does not tell of faults.
    pub(super) fn riscv(
        &self,
        number: usize,
        unit: &UnitDescription,
        settings: &RiscvSettings,
    ) -> Outcome {
        let window = match unit.place {
            Place::Function(at) => riscv_window(self.platform, at, settings.windows.as_deref())?,
            place => window_of(place)?,
        };
        self.powered(unit, window)?;
        let mut config = Config {
            combining: self.options.combining,
            reserved: self.reserved(unit),
            ..Config::default()
        };
        self.add_to(number, &mut config.reserved);
        if let Some(last) = unit.last_stream {
            config.streams_lg2 = lg2_of(last);
        }
        if settings.wired {
            config.signal = Signal::Wired;
        }
        let messages = |wanted: Remapping| {
            let mut messages = Messages::new(settings.files?, self.description);
            messages.lg2_entries = wanted.lg2_entries;
            Some(messages)
        };
        config.interrupts = self.options.interrupts.and_then(messages);
        let named = NamedUnit { number, kind: unit.kind, window };
        let former = self.of_former(named, |parts, state, claims| {
            let OfUnit { registers, memory, clock } = parts;
            let mut config = config.clone();
            if !RiscvIommu::<P>::can_signal(&registers, config.signal)? {
                config.signal = Signal::None;
            }
            let memory = memory.below(Features::read(&registers)?.output_lg2);
            match state {
                FormerState::Recorded(state) => {
                    RiscvIommu::adopt(registers, memory, clock, config, state, claims)
                        .map(by_record)
                }
                FormerState::Crashed(keep, former) => {
                    RiscvIommu::take_over(registers, memory, clock, config, keep, former, claims)
                }
            }
        });
        if let Some(unit) = former {
            return Ok(unit);
        }
        self.at(window, |registers, memory, clock| {
            if !RiscvIommu::<P>::can_signal(&registers, config.signal)? {
                config.signal = Signal::None;
            }
            let lg2 = Features::read(&registers)?.output_lg2;
            RiscvIommu::enable(registers, memory.below(lg2), clock, config)
        })
    }
}

/// The registers of a unit that is the PCI function `at`: its first window, on a bus whose memory
/// processors reach by `windows`.
fn riscv_window(
    platform: &impl Platform,
    at: PciFunction,
    windows: Option<&[Window]>,
) -> Result<PhysRange, EnableError> {
    let none = EnableError::NoWindow { function: at };
    let low = platform.pci_config(at, BASE).ok_or(none)?;
    let high = match low & KIND {
        KIND_64 => platform.pci_config(at, BASE + 4).ok_or(none)?,
        _ => 0,
    };
    let base = u64::from(high) << 32 | u64::from(low & !FLAGS);
    if low & PORTS != 0 || base == 0 {
        return Err(none);
    }
    let base = match windows {
        Some(windows) => windows.iter().find_map(|window| window.reached(base)).ok_or(none)?,
        None => base,
    };
    window_of(Place::of(PhysAddr::new(base), RISCV_WINDOW))
}
