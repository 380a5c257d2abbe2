//! Address spaces of a stream: its process directory, and the process contexts in it.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, sections "Process-Directory-Table",
//! "Process-context fields" and "Changing process directory table entry". Requests without a PASID are
//! those of address space 0 (`tc.DPE`), so that none of a stream with PASIDs goes untranslated by
//! accident. Not supported: a second stage beneath, requests with supervisor privilege (`ta.ENS`).

use portolan::addr::StreamId;
use portolan::inval::Walker;
use portolan::iommu::{AttachError, IommuError};
use portolan::platform::UnitPlatform;

use super::command;
use super::directory::{Directory, Shape};
use super::features::Has;
use super::streams::NOWHERE;
use super::unit::RiscvIommu;
use crate::chassis::Block;
use portolan_spec::riscv::context::{
    BY_DEFAULT, CONTROL, DIRECTORY, FIRST, MODE, PROCESS_WORDS, ROOT, V,
};

/// Modes of a process directory, the shallowest first: which unit has it, its value, and the width of
/// the numbers of address spaces.
const MODES: [(Has, u64, u32); 3] =
    [(Has::PASIDS_8, 1, 8), (Has::PASIDS_17, 2, 17), (Has::PASIDS_20, 3, 20)];

impl<P: UnitPlatform> RiscvIommu<P> {
    /// Gives a stream room for PASIDs of `lg2` bits at least, 0 of which are its requests without one.
    /// The stream must not be attached; from then on it can have first-stage domains, and pass
    /// through. Where it has room already, nothing changes.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if the unit has not as many, [`AttachError::Mismatch`] if the stream is
    /// attached, has interrupts, or has less room; [`IommuError::Memory`].
    pub fn enable_pasids(&self, stream: StreamId, lg2: u32) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = Directory::has(self.streams_lg2(), stream).ok_or(no_such)?;
        let has = self.features().has;
        let mut modes = (1..).zip(MODES);
        let mode = modes.find(|(_, (bit, _, width))| has.contains(*bit) && lg2 <= *width);
        let (levels, (_, mode, lg2)) = mode.ok_or(IommuError::Unsupported)?;
        let shape = Shape { levels, words: PROCESS_WORDS, lg2 };
        let mem = &self.shared.control.mem;
        self.book.with(self.turn(), |streams| {
            if let Some(known) = streams.state.processes.get(&stream) {
                let enough = known.lg2() >= lg2;
                return enough.then_some(()).ok_or(AttachError::Mismatch);
            }
            if streams.not_blocked((stream, 0)..=(stream, u32::MAX)).next().is_some() {
                return Err(AttachError::Mismatch);
            }
            let at = streams.state.directory.place(mem, stream)?;
            let root = Block::new(mem, 12)?;
            let mut words = NOWHERE;
            words[CONTROL] = V | DIRECTORY | BY_DEFAULT | self.lets(&streams.state, stream);
            words[FIRST] = MODE.at(mode) | ROOT.at(root.at.get() >> 12);
            let directory = Directory::new(root, shape);
            streams.state.processes.insert(stream, directory);
            // It did not count before: there is nothing to forget.
            Ok(self.change(at, &words, &[])?)
        })?
    }

    /// Takes a stream's room for PASIDs back. Nothing of it may be attached; a stream without room stays as
    /// it is.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`AttachError::Mismatch`] if anything of the stream is attached. If the hardware did not complete, the
    /// stream is blocked, and has the room until another call completes.
    pub fn disable_pasids(&self, stream: StreamId) -> Result<(), AttachError> {
        let no_such = AttachError::NoSuchStream { stream };
        let stream = Directory::has(self.streams_lg2(), stream).ok_or(no_such)?;
        let mem = &self.shared.control.mem;
        self.book.with(self.turn(), |streams| {
            if !streams.state.processes.contains_key(&stream) {
                return Ok(());
            }
            if streams.not_blocked((stream, 0)..=(stream, u32::MAX)).next().is_some() {
                return Err(AttachError::Mismatch);
            }
            let at = streams.state.directory.place(mem, stream)?;
            at.write(mem, 0, 0);
            at.publish(mem, Walker::Coherent);
            // With all that leads to its process contexts.
            self.shared.run([command::context_of(stream)].into_iter())?;
            if let Some(mut directory) = streams.state.processes.remove(&stream) {
                directory.free(mem);
            }
            Ok(())
        })?
    }
}
