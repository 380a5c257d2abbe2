//! A domain made of page tables, an identifier and a queue.
//!
//! *Context.* Interrupt, where a method does not say otherwise: only `sync`, `split`, `unmap_part` and
//! dropping a domain wait for hardware.

use super::handover::DomainTables;
use super::{
    Domain, DomainError, DomainSplitError, DomainUnmapError, IommuError, Shadowing, SpaceClaim,
    TrackDirtyError,
};
use crate::addr::{InvalTag, Iova, IovaRange, PageSize, PhysRange, TableId};
use crate::inval::{
    Capabilities, Combined, Depth, Flushed, Gather, InvalidationQueue, OneCommand, PlanInputs,
    Quiesced, Quirks, Step, SyncError, Walker, WrongTable, owes_nothing, plan,
};
use crate::platform::{Cpus, DmaMemory, ForeignTables, PromisedMappings, TableMem};
use crate::table::format::{DirtyTracking, Format};
use crate::table::{
    Access, AdoptedTable, DirtyError, NotedDebts, PageTable, TableView, Translation,
};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

/// Pool of identifiers: the unit's queue.
pub trait TagPool: InvalidationQueue<Error = IommuError> + Send + Sync {
    /// Invalidates everything that `context` tags, waits, and only then lets the identifier be
    /// given out again. If any step fails, the identifier stays out of use.
    ///
    /// # Errors
    /// If the hardware did not complete.
    fn release(&self, context: InvalTag) -> Result<(), IommuError>;

    /// Has the unit set marks of written pages in the tables that `context` tags, or set none, in every entry that
    /// names them by now; on return it uses no older copy. Nothing where the unit always sets them in such tables.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// If the hardware did not complete.
    fn track_dirty(&self, context: InvalTag, marks: DirtyTracking) -> Result<(), IommuError> {
        let _ = (context, marks);
        Ok(())
    }
}

impl<Q: TagPool + ?Sized> TagPool for alloc::sync::Arc<Q> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        (**self).release(context)
    }

    fn track_dirty(&self, context: InvalTag, marks: DirtyTracking) -> Result<(), IommuError> {
        (**self).track_dirty(context, marks)
    }
}

impl<P: Cpus, Q: TagPool> TagPool for Combined<P, Q> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        self.queue().release(context)
    }

    fn track_dirty(&self, context: InvalTag, marks: DirtyTracking) -> Result<(), IommuError> {
        self.queue().track_dirty(context, marks)
    }
}

/// Page tables of format `F` in memory `M`, behind one identifier of the unit whose queue is `Q`.
///
/// *Context.* Making and dropping one: task.
///
/// When it is dropped, the identifier's translations are invalidated and its tables are freed. If
/// the hardware does not complete that, the tables stay allocated for good.
#[derive(Debug)]
pub struct PagedDomain<F: Format, M: TableMem<F::Word>, Q: TagPool> {
    table: PageTable<F, M>,
    context: InvalTag,
    caps: Capabilities,
    quirks: Quirks,
    one: OneCommand,
    shadowing: Shadowing,
    claim: SpaceClaim,
    /// Set while pages that devices write are marked.
    marks: AtomicBool,
    queue: Q,
}

impl<F: Format, M: TableMem<F::Word>, Q: TagPool> PagedDomain<F, M, Q> {
    /// A domain in the memory of `table`. Mappings in it are taken out: a domain maps only promised
    /// memory, and tables alone take any address. `context` is the caller's to give: it goes back
    /// through [`TagPool::release`].
    pub fn new(
        mut table: PageTable<F, M>,
        context: InvalTag,
        caps: Capabilities,
        quirks: Quirks,
        queue: Q,
    ) -> Self {
        table.clear();
        Self::of(table, context, caps, quirks, queue)
    }

    /// The same, of a table whose mappings stay: a unit's driver has named it to the hardware already.
    pub fn with_mappings(
        table: PageTable<F, M>,
        _promised: PromisedMappings,
        context: InvalTag,
        caps: Capabilities,
        quirks: Quirks,
        queue: Q,
    ) -> Self {
        Self::of(table, context, caps, quirks, queue)
    }

    /// A domain over the tables of a former kernel, whose translations `context` tags.
    pub fn adopted(
        table: AdoptedTable<F, M>,
        _promised: PromisedMappings,
        context: InvalTag,
        caps: Capabilities,
        quirks: Quirks,
        queue: Q,
    ) -> Self {
        Self::of(table.own(), context, caps, quirks, queue)
    }

    fn of(
        mut table: PageTable<F, M>,
        context: InvalTag,
        caps: Capabilities,
        quirks: Quirks,
        queue: Q,
    ) -> Self {
        let mut mapped = Gather::new();
        mapped.add_mapped(IovaRange::page(Iova::new(0), F::GRANULE), F::GRANULE);
        table.note_only(NotedDebts {
            lines: caps.walker != Walker::Coherent,
            maps: !owes_nothing(&caps, &mapped),
        });
        Self {
            one: OneCommand::new(
                PlanInputs { context: &context, caps: &caps, quirks: &quirks },
                F::GRANULE,
            ),
            marks: AtomicBool::new(table.format().dirty_tracking() == DirtyTracking::Hardware),
            table,
            context,
            caps,
            quirks,
            shadowing: Shadowing::None,
            claim: SpaceClaim::default(),
            queue,
        }
    }

    /// The same domain, whose tables a hypervisor follows as `shadowing` says.
    #[must_use]
    pub fn shadowed(mut self, shadowing: Shadowing) -> Self {
        self.shadowing = shadowing;
        self
    }

    /// The page tables, to look at.
    pub fn table(&self) -> TableView<'_, F, M> {
        TableView::new(&self.table)
    }

    /// The identifier.
    pub fn context(&self) -> InvalTag {
        self.context
    }

    /// The unit's queue.
    pub fn queue(&self) -> &Q {
        &self.queue
    }

    /// Capabilities of the hardware for the invalidation plan.
    pub fn capabilities(&self) -> &Capabilities {
        &self.caps
    }

    /// Marks of the pages that devices write: from the start in a format that keeps dirty state, until they are
    /// switched off ([`Domain::track_dirty`]). A driver that writes an entry for a stream looks before, and again once
    /// the entry is there.
    pub fn dirty_tracking(&self) -> DirtyTracking {
        match self.marks.load(Ordering::SeqCst) {
            true => DirtyTracking::Hardware,
            false => DirtyTracking::Off,
        }
    }

    /// Quirks of the implementation.
    pub fn quirks(&self) -> &Quirks {
        &self.quirks
    }

    /// The steps that `owed` comes to.
    pub fn steps<'g>(&'g self, owed: &'g Gather) -> impl Iterator<Item = Step> + 'g {
        plan(self.context, &self.caps, &self.quirks, owed).steps()
    }

    const fn inputs(&self) -> PlanInputs<'_> {
        PlanInputs { context: &self.context, caps: &self.caps, quirks: &self.quirks }
    }

    /// Checks that pages are marked.
    fn marked(&self) -> Result<(), DirtyError> {
        match self.dirty_tracking() {
            DirtyTracking::Hardware => Ok(()),
            DirtyTracking::Off => Err(DirtyError::NotTracked),
        }
    }

    fn take_back(&self, quiesced: Quiesced) -> Result<(), SyncError<IommuError>> {
        // The proof is of this table: it was made for it.
        self.table.reclaim(quiesced).map_err(|wrong| wrong.error.into())
    }
}

impl<F: Format, Q: TagPool> PagedDomain<F, ForeignTables, Q> {
    /// Makes the unit, and devices that keep translations, forget all translations of `range` and
    /// tables below it, as the kernel's own CPUs do: after entries were taken out or grant less,
    /// and before the memory to which they led is used again. Where absence is cached, after
    /// entries were put in as well. `range` holds each block whole that has changed, and is rounded
    /// outwards to whole pages.
    ///
    /// *Context.* Atomic: waits for the hardware.
    ///
    /// # Errors
    /// If the hardware did not complete: then devices may go on using the old translations.
    pub fn invalidate(&self, range: IovaRange) -> Result<(), SyncError<IommuError>> {
        let inside = F::GRANULE.bytes() - 1;
        let (start, last) = (range.start().get() & !inside, range.last().get() | inside);
        let pages = IovaRange::new(Iova::new(start), Iova::new(last)).unwrap_or(range);
        let sizes = self.table.format().page_sizes();
        let largest = sizes.iter().last().unwrap_or(F::GRANULE);
        let mut owed = Gather::new();
        owed.claim(self.table.id())?;
        owed.add_unmapped_mixed(pages, F::GRANULE, largest, Depth::AllLevels);
        self.sync(&mut owed).map(drop)
    }
}

impl<F: Format, M: TableMem<F::Word>, Q: TagPool> Domain for PagedDomain<F, M, Q> {
    #[inline]
    fn id(&self) -> TableId {
        self.table.id()
    }

    fn claim(&self) -> &SpaceClaim {
        &self.claim
    }

    fn input_range(&self) -> IovaRange {
        self.table.input_range()
    }

    fn granule(&self) -> PageSize {
        F::GRANULE
    }

    fn shadowing(&self) -> Shadowing {
        self.shadowing
    }

    fn grants(&self, access: Access) -> Option<Access> {
        let format = self.table.format();
        // A first stage may have no way to withhold reads.
        [access, access.union(Access::READ)]
            .into_iter()
            .find(|access| format.template(*access, 0).is_ok())
    }

    #[inline]
    fn map_sg(
        &self,
        iova: Iova,
        pieces: &[DmaMemory],
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        // The walker is compiled for slices: nothing is erased for each page.
        Ok(self.table.map_around(iova, DmaMemory::ranges(pieces), access, owed)?)
    }

    #[inline]
    fn map_page(&self, iova: Iova, memory: DmaMemory, access: Access) -> bool {
        let memory = memory.range();
        let page = PhysRange::page(memory.start().align_down(F::GRANULE), F::GRANULE);
        self.table.maps_owe_nothing()
            && page.covers(memory)
            && self.table.map_page(iova, page.start(), access).is_some()
    }

    fn absorb(&self, into: &mut Gather, from: &mut Gather) -> Result<(), WrongTable> {
        self.table.absorb(into, from)
    }

    #[inline]
    fn map(
        &self,
        iova: Iova,
        memory: DmaMemory,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        // By the same walker as a list: there is one for each format.
        self.map_sg(iova, core::slice::from_ref(&memory), access, owed)
    }

    #[inline]
    fn unmap(&self, range: IovaRange, owed: &mut Gather) -> Result<(), DomainUnmapError> {
        Ok(self.table.unmap(range, owed)?)
    }

    fn split(&self, at: Iova, owed: &mut Gather) -> Result<(), DomainSplitError> {
        owed.claim(self.table.id()).map_err(SyncError::from)?;
        let mut whole = Gather::new();
        let pending = self.table.split(at, &mut whole)?;
        let synced =
            self.table.sync(&self.queue, self.context, &self.caps, &self.quirks, &mut whole);
        let quiesced = match synced {
            Ok(quiesced) => quiesced,
            Err(error) => {
                // Both are of this table.
                let _ = self.table.absorb(owed, &mut whole);
                return Err(error.into());
            }
        };
        if let Err(wrong) = self.table.complete_split(pending, &quiesced, owed) {
            return Err(SyncError::from(wrong.error).into());
        }
        Ok(self.take_back(quiesced)?)
    }

    #[inline]
    fn sync(&self, owed: &mut Gather) -> Result<Flushed, SyncError<IommuError>> {
        owed.check(self.table.id())?;
        self.table.write_back(self.caps.walker, owed);
        let settled = self.table.settle(&self.queue, self.inputs(), Some(&self.one), owed);
        let settled = settled.map_err(SyncError::Queue)?;
        Ok(settled.reclaim(|tables| self.table.free_chain(tables)))
    }

    #[inline]
    fn is_due(&self, owed: &Gather) -> bool {
        !owes_nothing(&self.caps, owed)
    }

    fn track_dirty(&self, marks: DirtyTracking) -> Result<(), TrackDirtyError> {
        if self.table.format().dirty_tracking() == DirtyTracking::Off {
            return match marks {
                DirtyTracking::Off => Ok(()),
                DirtyTracking::Hardware => Err(TrackDirtyError::NotTracked),
            };
        }
        // Before the entries: one that is written meanwhile is written by this, or found below.
        self.marks.store(marks == DirtyTracking::Hardware, Ordering::SeqCst);
        self.queue.track_dirty(self.context, marks)?;
        if marks == DirtyTracking::Hardware {
            let mut owed = Gather::new();
            let read = self.table.read_and_clear_dirty(self.input_range(), &mut owed, |_| ());
            read.map_err(|_| TrackDirtyError::NotTracked)?;
            self.sync(&mut owed).map_err(IommuError::from)?;
        }
        Ok(())
    }

    fn read_and_clear_dirty(
        &self,
        range: IovaRange,
        owed: &mut Gather,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        self.marked()?;
        self.table.read_and_clear_dirty(range, owed, visit)
    }

    fn read_dirty(
        &self,
        range: IovaRange,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        self.marked()?;
        self.table.read_dirty(range, visit)
    }

    fn unmap_and_read_dirty(
        &self,
        range: IovaRange,
        owed: &mut Gather,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DomainUnmapError> {
        if self.marked().is_err() {
            self.table.unmap(range, owed)?;
            visit(range);
            return Ok(());
        }
        Ok(self.table.unmap_and_read_dirty(range, owed, visit)?)
    }

    fn table_pages(&self) -> usize {
        self.table.pages()
    }

    fn tables(&self) -> Option<DomainTables> {
        let mut mapped: Vec<IovaRange> = Vec::new();
        for run in self.table.mappings(self.table.input_range()) {
            match mapped.last_mut() {
                Some(last) if last.last().checked_add(1) == Some(run.range.start()) => {
                    *last = last.hull(run.range);
                }
                _ => mapped.push(run.range),
            }
        }
        let format = self.table.format();
        Some(DomainTables {
            root: self.table.root(),
            levels: format.levels(),
            input_lg2: self.input_range().last().get().count_ones(),
            output_lg2: format.output_lg2(),
            dirty: format.dirty_tracking(),
            pages: self.table.pages() as u64,
            mapped,
        })
    }

    fn next_empty_table(&self, from: Iova) -> Option<IovaRange> {
        self.table.next_empty_table(from)
    }

    fn prune(&self, range: IovaRange, owed: &mut Gather) -> Result<usize, WrongTable> {
        self.table.prune(range, owed)
    }

    #[inline]
    fn translate(&self, iova: Iova) -> Option<Translation> {
        self.table.translate(iova)
    }
}

impl<F: Format, M: TableMem<F::Word>, Q: TagPool> Drop for PagedDomain<F, M, Q> {
    fn drop(&mut self) {
        if self.queue.release(self.context).is_err() {
            self.table.keep();
        }
    }
}
