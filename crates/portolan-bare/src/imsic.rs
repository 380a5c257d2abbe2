//! RISC-V's controller of message interrupts, as far as one hart's file for supervisor mode goes.
//!
//! RISC-V Advanced Interrupt Architecture, version 1.0, sections 3.5 (pages that messages are written to),
//! 3.8 (registers of a file) and 3.10 (`stopei`); devicetree binding `riscv,imsics`. Not supported: files of
//! guests, and several groups of harts.
//!
//! *Context.* Interrupt; [`Place::of`] walks the device tree.

use portolan::addr::PhysAddr;
use portolan::iommu::MsiMessage;
use portolan_tables::fdt::{DeviceTree, TreeNode};
use thiserror::Error;

use crate::tree;

/// Registers of a file: delivery, the first identity that is not delivered, and for each identity
/// its enable bit.
const DELIVERY: u16 = 0x70;
const THRESHOLD: u16 = 0x72;
const ENABLED: u16 = 0xc0;
/// Bits of `stopei` that name the identity.
const IDENTITY: u64 = 0x7ff;
/// Bytes of the page of a file.
const PAGE_LG2: u32 = 12;
/// A hart's number of its external interrupt for supervisor mode.
const SUPERVISOR: u32 = 9;

/// Error of an interrupt that the file does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the IMSIC has no interrupt {identity}")]
pub struct NoSuchIdentity {
    /// The interrupt.
    pub identity: u32,
}

/// The registers of one hart's file.
pub trait File {
    /// Reads a register.
    fn read(&self, register: u16) -> u64;
    /// Writes a register.
    fn write(&self, register: u16, value: u64);
    /// Takes the foremost interrupt that is pending and enabled: `stopei`, which was written as well.
    fn claim(&self) -> u64;
}

/// Place of a hart's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The page to which messages for it are written.
    pub page: PhysAddr,
    /// Its number among the files, by which other controllers name the hart.
    pub index: u32,
    /// The last identity that it has; the first is 1.
    pub last: u32,
    /// The number (`phandle`) by which the tree refers to the controller.
    pub controller: u32,
}

impl Place {
    /// The file of `hart`, as the tree has it.
    pub fn of(tree: DeviceTree<'_>, hart: u64) -> Option<Self> {
        let own = tree::hart_controller(tree, hart)?.to_be_bytes();
        let wanted = |pair: &[u8]| pair[..4] == own && pair[4..] == SUPERVISOR.to_be_bytes();
        let mut nodes = tree::nodes(tree).filter(|node| node.is("riscv,imsics"));
        nodes.find_map(|node| {
            let pairs = node.property("interrupts-extended")?.chunks_exact(8);
            let index = pairs.into_iter().position(wanted)?;
            Self::at(&node, index as u32)
        })
    }

    /// File number `index` of a controller.
    fn at(node: &TreeNode<'_>, index: u32) -> Option<Self> {
        if node.cell("riscv,group-index-bits", 0).unwrap_or(0) != 0 {
            return None;
        }
        let guests = node.cell("riscv,guest-index-bits", 0).unwrap_or(0);
        let above = u64::from(index).checked_shl(guests.checked_add(PAGE_LG2)?)?;
        let files = node.reg()?;
        let page = files.start().checked_add(above)?;
        let last = node.cell("riscv,num-ids", 0)?;
        (page <= files.last()).then_some(Self {
            page,
            index,
            last: last.min(IDENTITY as u32),
            controller: node.cell("phandle", 0)?,
        })
    }

    /// Tells if the file has `identity`.
    pub fn has(&self, identity: u32) -> bool {
        (1..=self.last).contains(&identity)
    }

    /// The message that raises `identity` there.
    pub fn message(&self, identity: u32) -> Option<MsiMessage> {
        self.has(identity).then_some(MsiMessage { address: self.page.get(), data: identity })
    }
}

/// The file of the hart that calls.
#[derive(Clone, Copy, Debug)]
pub struct Imsic<F> {
    file: F,
    place: Place,
}

impl<F: File> Imsic<F> {
    /// Has the file at `place` deliver interrupts that are enabled, of all priorities.
    pub fn new(file: F, place: Place) -> Self {
        file.write(DELIVERY, 1);
        file.write(THRESHOLD, 0);
        Self { file, place }
    }

    /// Place of the file.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Takes the interrupts of `identity` from now on.
    ///
    /// # Errors
    /// [`NoSuchIdentity`].
    pub fn listen(&self, identity: u32) -> Result<(), NoSuchIdentity> {
        if !self.place.has(identity) {
            return Err(NoSuchIdentity { identity });
        }
        // Registers of 64 bits have even numbers.
        let register = ENABLED + (identity / 64 * 2) as u16;
        let enabled = self.file.read(register);
        self.file.write(register, enabled | 1 << (identity % 64));
        Ok(())
    }

    /// Takes the interrupt that came, if one did, and serves it.
    pub fn take(&self, serve: impl FnOnce(u32)) {
        match self.file.claim() >> 16 & IDENTITY {
            0 => {}
            identity => serve(identity as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use core::cell::{Cell, RefCell};

    /// Two harts, with files for machine mode and for supervisor mode, in the nodes that QEMU's tree has.
    fn tree(guests: u32, bytes: u32) -> Vec<u8> {
        use crate::tree::tests::Tree;
        let mut tree = Tree::default();
        for (hart, own) in [(0, 4), (1, 2)] {
            tree = tree.node().text("device_type", "cpu").cells("reg", &[hart]);
            tree = tree.node().text("compatible", "riscv,cpu-intc").cells("phandle", &[own]);
            tree = tree.end().end();
        }
        for (base, mode, number) in [(0x2400_0000, 11, 5), (0x2800_0000, 9, 6)] {
            tree = tree.node().text("compatible", "riscv,imsics");
            tree = tree.cells("reg", &[0, base, 0, bytes]).cells("riscv,num-ids", &[255]);
            tree = tree.cells("interrupts-extended", &[4, mode, 2, mode]);
            tree = tree.cells("riscv,guest-index-bits", &[guests]);
            tree = tree.cells("phandle", &[number]).end();
        }
        tree.bytes()
    }

    #[test]
    fn each_hart_has_a_page_for_its_messages() {
        let of = |bytes: &[u8], hart| Place::of(DeviceTree::parse(bytes).unwrap(), hart);
        let plain = tree(0, 0x2000);
        let found = of(&plain, 1).unwrap();
        let wanted = Place { page: PhysAddr::new(0x2800_1000), index: 1, last: 255, controller: 6 };
        assert_eq!(found, wanted);
        let message = |identity| found.message(identity).map(|of| (of.address, of.data));
        assert_eq!(message(0x42), Some((0x2800_1000, 0x42)));
        assert_eq!((message(0), message(256)), (None, None));
        assert_eq!(of(&plain, 2), None);
        // Each file has three more pages behind it, for guests.
        let page = |bytes: &[u8], hart| of(bytes, hart).map(|found| found.page.get());
        assert_eq!(page(&tree(2, 0x8000), 1), Some(0x2800_4000));
        // The second file is not in the registers, or nowhere.
        for damaged in [tree(2, 0x2000), tree(u32::MAX, 0x2000), tree(52, 0x2000)] {
            assert_eq!(page(&damaged, 1), None);
        }
    }

    /// Writes, in order; and the interrupt that is pending.
    #[derive(Default)]
    struct Fake {
        wrote: RefCell<Vec<(u16, u64)>>,
        top: Cell<u64>,
    }

    impl File for &Fake {
        fn read(&self, _register: u16) -> u64 {
            1 << 63
        }

        fn write(&self, register: u16, value: u64) {
            self.wrote.borrow_mut().push((register, value));
        }

        fn claim(&self) -> u64 {
            self.top.take()
        }
    }

    /// Words that a person wrote down from sections 3.8 and 3.10.
    #[test]
    fn what_is_listened_to_is_enabled_and_what_came_is_served() {
        let (bytes, file) = (tree(0, 0x2000), Fake::default());
        let place = Place::of(DeviceTree::parse(&bytes).unwrap(), 0).unwrap();
        let imsic = Imsic::new(&file, place);
        assert_eq!(imsic.listen(0x42), Ok(()));
        let refused = |identity| Err(NoSuchIdentity { identity });
        assert_eq!([0, 256].map(|of| imsic.listen(of)), [0, 256].map(refused));
        let wrote = [(0x70, 1), (0x72, 0), (0xc2, 1 << 63 | 1 << 2)];
        assert_eq!(*file.wrote.borrow(), wrote);
        let served = Cell::new(None);
        imsic.take(|identity| served.set(Some(identity)));
        assert_eq!(served.get(), None);
        file.top.set(0x0042_0042);
        imsic.take(|identity| served.set(Some(identity)));
        assert_eq!(served.get(), Some(0x42));
    }
}
