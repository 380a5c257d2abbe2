//! Posted interrupts: pending where a monitor finds them, in each form that units have.

use portolan::addr::PhysAddr;
use portolan::iommu::{
    ApicPosting, DescriptorPosting, FilePosting, GuestCpu, GuestTag, InterruptError,
    InterruptRefusal, Iommu as _, Posting, Vector,
};

use super::basic::PAGE;
use super::interrupts::{FIRST, Raised, SECOND, must_be_refused, remapper, set_up, target};
use super::{Has, Host as _, Machine, Outcome, Run, Verdict, expect, fail, must};
use crate::promise::{descriptor_at, file_at, page_at};

/// All scenarios of this module.
pub(super) fn all<M: Machine>() -> [(&'static str, Run<M>); 1] {
    [("posted-interrupts-are-pending", posted_interrupts_are_pending)]
}

/// Interrupt of the monitor that tells of one that is pending.
const NOTICE: Raised = Raised { vector: 0xf2, destination: 1 };
/// Number of the interrupt that is posted, where it is not the device's own word.
const GUEST: u8 = 0x61;
/// Offset of a descriptor's control word: an outstanding notification, its vector and its destination.
const CONTROL: u64 = 32;

/// A place for an interrupt.
struct Form {
    to: Posting,
    /// Interrupts of the monitor: at first, and after that.
    told: [Option<Raised>; 2],
    /// Offset of the word that has its bit.
    offset: u64,
    bit: u8,
}

/// All places that units have, in the page at `at`.
fn forms(at: PhysAddr) -> Result<[Form; 3], Outcome> {
    let vector = Vector::new(GUEST).ok_or_else(|| fail("no such vector"))?;
    let bit = GUEST % 32;
    let [word, pair] = [GUEST / 32, FIRST.vector / 64].map(u64::from);
    let descriptor = DescriptorPosting { descriptor: descriptor_at(at), vector, urgent: false };
    let file = FilePosting { file: file_at(at), notice: target(NOTICE)? };
    let (page, tag, cpu) = (page_at(at), GuestTag::new(1), GuestCpu::Waits);
    let apic = ApicPosting { page, vector, tag, cpu };
    Ok([
        Form {
            to: Posting::Descriptor(descriptor),
            told: [Some(NOTICE), None],
            offset: word * 4,
            bit,
        },
        Form {
            to: Posting::File(file),
            told: [Some(NOTICE); 2],
            offset: pair * 16,
            bit: FIRST.vector % 64,
        },
        Form { to: Posting::Apic(apic), told: [None; 2], offset: 0x200 + word * 16, bit },
    ])
}

fn posted_interrupts_are_pending<M: Machine>(machine: &M) -> Verdict {
    let unit = remapper(machine)?;
    let device = machine.host.devices()[0];
    let (mut interrupt, message) = set_up(machine, device, FIRST)?;
    let at = machine.host.memory(PAGE);
    let word = |offset| PhysAddr::new(at.get() + offset);
    for form in forms(at)? {
        if let Posting::Descriptor(_) = form.to {
            machine.host.poke(word(CONTROL), u32::from(NOTICE.vector) << 16);
            let shift = match machine.abilities.wide_destinations {
                Has::Yes => 0,
                Has::No(_) => 8,
            };
            machine.host.poke(word(CONTROL + 4), NOTICE.destination << shift);
        }
        match unit.post(&mut interrupt, form.to) {
            Err(InterruptError::Unposted) => continue,
            posted => must("posting", posted)?,
        }
        let pending = || machine.host.peek(word(form.offset));
        for told in form.told {
            expect("what arrives", machine.host.raise(device, message), told)?;
            expect("what is pending", pending(), 1 << form.bit)?;
        }
        let vector = match machine.abilities.renumbers {
            Has::Yes => SECOND.vector,
            Has::No(_) => FIRST.vector,
        };
        let moved = Raised { vector, ..SECOND };
        must("moving", unit.retarget(&mut interrupt, target(moved)?))?;
        machine.host.raise_throughout(device, Some(message));
        must("posting", unit.post(&mut interrupt, form.to))?;
        must("moving", unit.retarget(&mut interrupt, target(moved)?))?;
        machine.host.raise_throughout(device, None);
        expect("what is refused", must("reading faults", machine.unit.next_fault())?, None)?;
        machine.host.poke(word(form.offset), 0);
        expect("what arrives", machine.host.raise(device, message), Some(moved))?;
        must("giving back", unit.free(interrupt))?;
        must_be_refused(machine, device, message, InterruptRefusal::Absent)?;
        return expect("what is pending", pending(), 0);
    }
    Err(Outcome::Skip("interrupts are not posted here".to_owned()))
}
