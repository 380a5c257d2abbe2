//! Names of devices, and the devices of operations that name none.

use std::collections::HashMap;

use super::op::DeviceId;
use super::summary::Summary;

/// Limit of devices with separate names; the others share one.
const MOST_DEVICES: usize = 1 << 16;
/// Longest name; no bus of Linux has one.
const LONGEST: usize = 128;
/// Name of the device if only table events show a mapping.
const UNNAMED: &[u8] = b"iommu";
const OTHERS: &[u8] = b"(others)";

/// The devices whose mappings are in tables of the trace.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Translated {
    #[default]
    None,
    One(DeviceId),
    Several,
}

/// The devices by name.
#[derive(Default)]
pub(super) struct Devices {
    ids: HashMap<Box<[u8]>, DeviceId>,
    translated: Translated,
}

impl Devices {
    pub(super) fn id(&mut self, name: &[u8], summary: &mut Summary) -> DeviceId {
        let name = name.get(..LONGEST).unwrap_or(name);
        if let Some(known) = self.ids.get(name) {
            return *known;
        }
        let name = if self.ids.len() < MOST_DEVICES { name } else { OTHERS };
        if let Some(known) = self.ids.get(name) {
            return *known;
        }
        let id = DeviceId(self.ids.len() as u32);
        self.ids.insert(name.into(), id);
        summary.devices.push(name.escape_ascii().to_string());
        id
    }

    /// A `dma:*` event of `device` has claimed pieces of a table.
    pub(super) fn note_translated(&mut self, device: DeviceId) {
        self.translated = match self.translated {
            Translated::None => Translated::One(device),
            Translated::One(known) if known == device => Translated::One(known),
            _ => Translated::Several,
        };
    }

    /// Device of pieces that no `dma:*` event names: the only one with mappings in tables, if there is one.
    pub(super) fn of_unclaimed(&mut self, summary: &mut Summary) -> DeviceId {
        match self.translated {
            Translated::One(device) => {
                summary.inferred_devices += 1;
                device
            }
            Translated::None | Translated::Several => self.id(UNNAMED, summary),
        }
    }
}
