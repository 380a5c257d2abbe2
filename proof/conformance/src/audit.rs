//! The full audit of a table: against the oracle, through the library's cursor and through a decoder
//! that shares nothing with it.

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::platform::{TableMem, Word};
use portolan::table::format::{DirtyTracking, Entry, Format};
use portolan::table::{Access, PageTable};
use portolan_sim::decode::{AccessKind, Decoded, Permissions, TableFormat};

use crate::format::FormatName;
use crate::memory::CheckedTables;
use crate::oracle::{Oracle, Piece, merged};

/// Table pages that may be waiting for quiet outside of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingTables {
    /// No limit: all debts are paid and reclaimed.
    Nothing,
    /// Upper limit.
    AtMost(usize),
}

/// Most differences that one audit lists.
const LISTED: usize = 8;

/// Leaves whose dirty state the hardware keeps in their permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DirtyManaged {
    /// The bit that such a leaf has.
    managed: u64,
    /// The bit that the hardware changes with the first write.
    mark: u64,
    /// Value of the entry once it is dirty.
    dirty: u64,
}

impl DirtyManaged {
    /// Returns the leaf as the hardware leaves it when a device writes through it.
    fn written(self, raw: u64) -> u64 {
        match raw & self.managed {
            0 => raw,
            _ => raw & !self.mark | self.dirty,
        }
    }
}

/// A table, and what it is compared with.
pub(crate) struct Audited<'t, 'm, F: Format> {
    pub(crate) name: FormatName,
    /// The format for the independent decoder.
    pub(crate) model: TableFormat,
    pub(crate) table: &'t PageTable<F, &'m CheckedTables<F>>,
    pub(crate) memory: &'m CheckedTables<F>,
    pub(crate) oracle: &'t Oracle,
}

/// Compares all of a table with its oracle; returns the differences, in words.
pub(crate) fn audit<F: Format>(audited: Audited<'_, '_, F>, waiting: WaitingTables) -> Vec<String> {
    let mut found = Vec::new();
    let Audited { name, model, table, memory, oracle } = audited;
    let runs = table.mappings(table.input_range()).map(|run| Piece {
        range: run.range,
        pa: run.pa,
        access: run.access,
    });
    let library = merged(runs);
    compare("the cursor", &library, &merged(oracle.pieces()), &mut found);

    let on = table.format().dirty_tracking() == DirtyTracking::Hardware;
    let bits = name.dirty_managed().zip(name.dirty_mark()).filter(|_| on);
    let mut tree = Tree {
        memory,
        model,
        managed: bits.map(|(managed, (mark, dirty))| DirtyManaged { managed, mark, dirty }),
        leaves: Vec::new(),
        found: Vec::new(),
        linked: 0,
        marked: 0,
    };
    tree.walk(table.root(), model.levels() - 1, 0, Permissions::ALL);
    let visible =
        |piece: Piece| Piece { access: piece.access & (Access::READ | Access::WRITE), ..piece };
    let wanted = merged(oracle.pieces().map(visible));
    let leaves = std::mem::take(&mut tree.leaves);
    compare("the decoder", &merged(leaves), &wanted, &mut found);
    found.append(&mut tree.found);
    check_pages(table.pages(), &tree, waiting, &mut found);
    found.truncate(LISTED);
    found
}

fn check_pages<F: Format>(
    pages: usize,
    tree: &Tree<'_, F>,
    waiting: WaitingTables,
    found: &mut Vec<String>,
) {
    let (linked, marked) = (tree.linked, tree.marked);
    let known = linked + marked;
    match waiting {
        WaitingTables::Nothing if pages != linked || marked != 0 => found.push(format!(
            "{pages} table pages are counted, {linked} are reachable, {marked} more are marked, and \
             nothing waits"
        )),
        WaitingTables::AtMost(most) if pages < known || pages > known + most => found.push(format!(
            "{pages} table pages are counted, {linked} are reachable, {marked} more are marked, and \
             at most {most} wait"
        )),
        _ => {}
    }
}

fn compare(who: &str, found: &[Piece], wanted: &[Piece], out: &mut Vec<String>) {
    for (has, want) in found.iter().zip(wanted) {
        if has != want {
            out.push(format!("{who} finds {has:x?}, the oracle has {want:x?}"));
            return;
        }
    }
    let common = found.len().min(wanted.len());
    if let Some(more) = found.get(common) {
        out.push(format!("{who} finds {more:x?}, where nothing is mapped"));
    }
    if let Some(less) = wanted.get(common) {
        out.push(format!("{who} misses {less:x?}"));
    }
}

/// Everything that can be reached from the root.
struct Tree<'t, F: Format> {
    memory: &'t CheckedTables<F>,
    model: TableFormat,
    managed: Option<DirtyManaged>,
    leaves: Vec<Piece>,
    found: Vec<String>,
    /// Tables that the hardware can reach.
    linked: usize,
    /// Table pages that only software marks lead to.
    marked: usize,
}

impl<F: Format> Tree<'_, F> {
    /// Visits the table at `at`, whose first address is `base`; returns its entries that are not 0.
    fn walk(&mut self, at: PhysAddr, level: u8, base: u64, above: Permissions) -> u32 {
        self.linked += 1;
        let words = self.memory.table(at, self.model.table_size(level));
        if words.is_empty() {
            self.found.push(format!("no table memory at {at}"));
        }
        let span = self.model.span(level);
        let mut used = 0;
        for (word, i) in words.iter().zip(0u64..) {
            let raw = word.load();
            if raw == 0 {
                continue;
            }
            used += 1;
            let iova = base + (i << span.lg2());
            if !self.model.holds(Iova::new(iova)) {
                self.found.push(format!("{raw:#x} past the input addresses at {iova:#x}"));
                continue;
            }
            if let Decoded::Part { size, .. } = self.model.decode(raw, level) {
                let count = 1 << (size.lg2() - span.lg2());
                let cluster = words.chunks(count).nth(i as usize / count).unwrap_or(&[]);
                if cluster.iter().any(|word| word.load() != raw) {
                    self.found.push(format!("a part of a page alone at {iova:#x}: {raw:#x}"));
                }
            }
            self.entry(raw, level, iova, span, above);
        }
        used
    }

    /// Decodes the access that an entry gives a device, a first write included.
    fn decode(&self, raw: u64, level: u8) -> Decoded {
        match (self.model.decode(raw, level), self.managed) {
            (Decoded::Leaf { .. } | Decoded::Part { .. }, Some(managed)) => {
                self.model.decode(managed.written(raw), level)
            }
            (decoded, _) => decoded,
        }
    }

    /// Notes a leaf.
    fn leaf(&mut self, (iova, pa): (u64, PhysAddr), span: PageSize, permissions: Permissions) {
        let mut access = Access::empty();
        access.set(Access::READ, permissions.allow(AccessKind::Read));
        access.set(Access::WRITE, permissions.allow(AccessKind::Write));
        let range = IovaRange::page(Iova::new(iova), span);
        self.leaves.push(Piece { range, pa, access });
    }

    fn entry(&mut self, raw: u64, level: u8, iova: u64, span: PageSize, above: Permissions) {
        match self.decode(raw, level) {
            Decoded::Table { next, permissions } => {
                let used = self.walk(next, level - 1, iova, above.and(permissions));
                if level == 1 && raw & F::FILLED != 0 && used < 1 << F::INDEX_LG2 {
                    self.found.push(format!(
                        "the table for {iova:#x} has {used} entries and is marked as full"
                    ));
                }
            }
            Decoded::Leaf { pa, permissions } => {
                self.leaf((iova, pa), span, above.and(permissions))
            }
            Decoded::Part { pa, size, permissions } => {
                // `walk` checks that all of them agree.
                let pa = PhysAddr::new(pa.get() + (iova & (size.bytes() - 1)));
                self.leaf((iova, pa), span, above.and(permissions));
            }
            Decoded::Nothing => match F::classify(raw, u32::from(level)) {
                Entry::Broken(_) if level > 0 => self.marked += 1,
                _ => self.found.push(format!("{raw:#x} is left over at {iova:#x}, level {level}")),
            },
            Decoded::Bad => self
                .found
                .push(format!("{raw:#x} at {iova:#x}, level {level}, is reserved or forbidden")),
        }
    }
}
