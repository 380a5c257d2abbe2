//! I/O APICs of the MADT, as far as the remapping of interrupts needs them.
//!
//! ACPI Specification, version 6.5, sections 5.2.12 (MADT) and 5.2.12.3 (I/O APIC structure). Nothing else of the
//! table is read.
//!
//! *Context.* Interrupt: a walk of the table.

/// Bytes of the table's fixed part.
const FIXED: usize = 44;
/// An I/O APIC.
const IO_APIC: u8 = 1;

/// I/O APICs by their identifiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoApics([u128; 2]);

impl IoApics {
    /// Those of a MADT; a structure whose length cannot be ends it.
    pub fn of(table: &[u8]) -> Self {
        let mut found = Self::default();
        let mut rest = table.get(FIXED..).unwrap_or_default();
        while let [kind, length, ..] = *rest {
            let Some((one, next)) = rest.split_at_checked(length.into()) else {
                break;
            };
            if length < 2 {
                break;
            }
            if let (IO_APIC, Some(id)) = (kind, one.get(2)) {
                found.insert(*id);
            }
            rest = next;
        }
        found
    }

    /// Adds one; returns `true` if it was not there.
    pub fn insert(&mut self, id: u8) -> bool {
        let (half, bit) = (usize::from(id >> 7), 1 << (id & 0x7f));
        let Some(half) = self.0.get_mut(half) else {
            return false;
        };
        let new = *half & bit == 0;
        *half |= bit;
        new
    }

    /// Tells if all of `others` are among them.
    pub fn has_all(&self, others: &Self) -> bool {
        let mut halves = self.0.iter().zip(&others.0);
        halves.all(|(own, others)| others & !own == 0)
    }

    /// Tells if there are none.
    pub fn is_empty(&self) -> bool {
        self.0 == [0, 0]
    }
}
