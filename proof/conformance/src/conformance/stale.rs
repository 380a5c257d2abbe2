//! Entries of caches: they stay until they are invalidated, and no longer.

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain as _, FaultReason};

use super::basic::{Attached, PAGE, RW};
use super::{Host, Machine, Verdict, fail, must, needs};

const NOT_MAPPED: &[FaultReason] = &[FaultReason::NotMapped];

pub(super) fn stale_until_sync<M: Machine>(machine: &M) -> Verdict {
    needs(machine.abilities.caches)?;
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(PAGE);
    on.map(M::BASE, pa, PAGE, RW)?;
    on.must_reach(machine, M::BASE, pa)?;
    let owed = on.unmap(M::BASE, PAGE)?;
    if !on.reaches(machine, M::BASE, pa) {
        return Err(fail("nothing was cached: the scenario proves nothing"));
    }
    on.sync(owed)?;
    on.must_fault(machine, M::BASE, pa, NOT_MAPPED)
}

pub(super) fn other_page_stays_stale<M: Machine>(machine: &M) -> Verdict {
    let abilities = machine.abilities;
    needs(abilities.caches)?;
    needs(abilities.page_exact)?;
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(2 * PAGE);
    let (next, second) = (Iova::new(M::BASE.get() + PAGE), PhysAddr::new(pa.get() + PAGE));
    on.map(M::BASE, pa, 2 * PAGE, RW)?;
    // Keeps the leaf table in the tree, so that leaf-only invalidations are enough.
    let far = Iova::new(M::BASE.get() + 8 * PAGE);
    on.map(far, pa, PAGE, RW)?;
    on.must_reach(machine, M::BASE, pa)?;
    on.must_reach(machine, next, second)?;
    let first_owed = on.unmap(M::BASE, PAGE)?;
    let second_owed = on.unmap(next, PAGE)?;
    on.sync(first_owed)?;
    on.must_fault(machine, M::BASE, pa, NOT_MAPPED)?;
    if !on.reaches(machine, next, second) {
        return Err(fail("the invalidation of one page dropped its neighbour"));
    }
    on.sync(second_owed)?;
    on.must_fault(machine, next, second, NOT_MAPPED)
}

pub(super) fn other_domain_stays_stale<M: Machine>(machine: &M) -> Verdict {
    let abilities = machine.abilities;
    needs(abilities.caches)?;
    needs(abilities.domain_exact)?;
    needs(abilities.second)?;
    let [first, second] = machine.host.devices();
    let (here, there) = (Attached::with(machine, first)?, Attached::with(machine, second)?);
    let (pa, other) = (machine.host.memory(PAGE), machine.host.memory(PAGE));
    here.map(M::BASE, pa, PAGE, RW)?;
    there.map(M::BASE, other, PAGE, RW)?;
    here.must_reach(machine, M::BASE, pa)?;
    there.must_reach(machine, M::BASE, other)?;
    let owed = here.unmap(M::BASE, PAGE)?;
    let others = there.unmap(M::BASE, PAGE)?;
    there.sync(others)?;
    there.must_fault(machine, M::BASE, other, NOT_MAPPED)?;
    if !here.reaches(machine, M::BASE, pa) {
        return Err(fail("the invalidation of one domain dropped another's entries"));
    }
    here.sync(owed)?;
    here.must_fault(machine, M::BASE, pa, NOT_MAPPED)
}

pub(super) fn remapped_goes_to_the_new_page<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let (old, new) = (machine.host.memory(PAGE), machine.host.memory(PAGE));
    for _ in 0..3 {
        on.map(M::BASE, old, PAGE, RW)?;
        on.must_reach(machine, M::BASE, old)?;
        let owed = on.unmap(M::BASE, PAGE)?;
        on.sync(owed)?;
        on.must_fault(machine, M::BASE, old, NOT_MAPPED)?;
        on.map(M::BASE, new, PAGE, RW)?;
        on.must_reach(machine, M::BASE, new)?;
        let owed = on.unmap(M::BASE, PAGE)?;
        on.sync(owed)?;
    }
    Ok(())
}

pub(super) fn identifier_reuse_forgets<M: Machine>(machine: &M) -> Verdict {
    let old = machine.host.memory(PAGE);
    // As many domains as it takes for an identifier to come round, if the smallest free is used.
    for _ in 0..4 {
        let on = Attached::new(machine)?;
        on.map(M::BASE, old, PAGE, RW)?;
        on.must_reach(machine, M::BASE, old)?;
        must("blocking", attach_away(machine, &on))?;
        drop(on);
        let on = Attached::new(machine)?;
        on.must_fault(machine, M::BASE, old, NOT_MAPPED)?;
        must("blocking", attach_away(machine, &on))?;
    }
    Ok(())
}

fn attach_away<M: Machine>(
    machine: &M,
    on: &Attached<M>,
) -> Result<(), portolan::iommu::AttachError>
where
    M::Iommu: Attach<M::Domain>,
{
    use portolan::iommu::Iommu as _;
    machine.unit.block(on.device)
}

/// Removes two pages of one block, one after the other; the second debt is paid first.
pub(super) fn debts_of_one_block<M: Machine>(machine: &M) -> Verdict {
    needs(machine.abilities.blocks)?;
    let on = Attached::new(machine)?;
    let bytes = machine.abilities.block.bytes();
    let pa = machine.host.memory(bytes);
    on.map(M::BASE, pa, bytes, RW)?;
    let page = |n: u64| (Iova::new(M::BASE.get() + n * PAGE), PhysAddr::new(pa.get() + n * PAGE));
    let [first, second] = [page(100), page(300)];
    on.must_reach(machine, first.0, first.1)?;
    on.must_reach(machine, second.0, second.1)?;
    let first_owed = on.unmap(first.0, PAGE)?;
    let second_owed = on.unmap(second.0, PAGE)?;
    on.sync(second_owed)?;
    on.must_fault(machine, second.0, second.1, NOT_MAPPED)?;
    on.sync(first_owed)?;
    on.must_fault(machine, first.0, first.1, NOT_MAPPED)?;
    for n in [0, 99, 101, 299, 301, bytes / PAGE - 1] {
        let (iova, target) = page(n);
        on.must_reach(machine, iova, target)?;
    }
    Ok(())
}

/// A block with pages on both sides, all of it unmapped as one range.
pub(super) fn blocks_among_pages<M: Machine>(machine: &M) -> Verdict {
    needs(machine.abilities.blocks)?;
    let on = Attached::new(machine)?;
    let block = machine.abilities.block.bytes();
    let (inside, beside) = (machine.host.memory(block), machine.host.memory(8 * PAGE));
    let start = M::BASE.get() + block;
    let at = |bytes: u64| Iova::new(start + bytes);
    let before = Iova::new(start - 2 * PAGE);
    // Keeps the tables of the pages in the tree.
    for guard in [Iova::new(start - 8 * PAGE), at(block + 8 * PAGE)] {
        on.map(guard, beside, PAGE, RW)?;
    }
    on.map(before, beside, 2 * PAGE, RW)?;
    on.map(at(0), inside, block, RW)?;
    let after = PhysAddr::new(beside.get() + 4 * PAGE);
    on.map(at(block), after, 3 * PAGE, RW)?;
    let places = [
        (before, beside),
        (at(77 * PAGE), PhysAddr::new(inside.get() + 77 * PAGE)),
        (at(block), after),
    ];
    for (iova, pa) in places {
        on.must_reach(machine, iova, pa)?;
    }
    let owed = on.unmap(before, block + 5 * PAGE)?;
    on.sync(owed)?;
    for (iova, pa) in places {
        on.must_fault(machine, iova, pa, NOT_MAPPED)?;
    }
    Ok(())
}

/// Pages whose invalidations do not form one range: in separate tables, and in one that stays.
const SCATTERED: [&[u64]; 3] = [&[0, 3, 64, 513, 1 << 15, (1 << 18) + 7], &[0, 300], &[2, 6, 511]];
/// A page that keeps the first leaf table in the tree.
const GUARD: u64 = 7;

pub(super) fn one_sync_pays_for_all<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pa = machine.host.memory(8 * PAGE);
    let guard = Iova::new(M::BASE.get() + GUARD * PAGE);
    for (round, pages) in SCATTERED.iter().enumerate() {
        if round == 1 {
            on.map(guard, pa, PAGE, RW)?;
        }
        let places: Vec<_> = (0..)
            .zip(*pages)
            .map(|(n, page)| {
                let iova = Iova::new(M::BASE.get() + page * PAGE);
                (iova, PhysAddr::new(pa.get() + n * PAGE))
            })
            .collect();
        let mut owed = Gather::new();
        for &(iova, pa) in &places {
            on.map(iova, pa, PAGE, RW)?;
            on.must_reach(machine, iova, pa)?;
        }
        for &(iova, _) in &places {
            let range = IovaRange::page(iova, PageSize::SIZE_4K);
            must("unmapping", on.domain.unmap(range, &mut owed))?;
        }
        on.sync(owed)?;
        for &(iova, pa) in &places {
            on.must_fault(machine, iova, pa, NOT_MAPPED)?;
        }
    }
    Ok(())
}

pub(super) fn ranges_are_whole<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    // Of odd and even lengths, beginning where no alignment helps.
    for (pages, first) in [(2u64, 1u64), (5, 3), (8, 8), (33, 7), (40, 500)] {
        let pa = machine.host.memory((pages * PAGE).next_power_of_two());
        let page = |n: u64| {
            (Iova::new(M::BASE.get() + (first + n) * PAGE), PhysAddr::new(pa.get() + n * PAGE))
        };
        // Keeps the leaf tables in the tree.
        let (before, after) = (page(0).0.get() - PAGE, page(pages).0.get());
        for guard in [before, after] {
            on.map(Iova::new(guard), pa, PAGE, RW)?;
        }
        on.map(page(0).0, pa, pages * PAGE, RW)?;
        for n in 0..pages {
            let (iova, pa) = page(n);
            on.must_reach(machine, iova, pa)?;
        }
        let owed = on.unmap(page(0).0, pages * PAGE)?;
        on.sync(owed)?;
        for n in 0..pages {
            let (iova, pa) = page(n);
            on.must_fault(machine, iova, pa, NOT_MAPPED)?;
        }
        for guard in [before, after] {
            on.must_reach(machine, Iova::new(guard), pa)?;
            let owed = on.unmap(Iova::new(guard), PAGE)?;
            on.sync(owed)?;
        }
    }
    Ok(())
}

pub(super) fn freed_tables_are_forgotten<M: Machine>(machine: &M) -> Verdict {
    let on = Attached::new(machine)?;
    let pages = [machine.host.memory(PAGE), machine.host.memory(PAGE)];
    for round in 0..4 {
        let pa = pages[round % 2];
        on.map(M::BASE, pa, PAGE, RW)?;
        on.must_reach(machine, M::BASE, pa)?;
        // The only page of its tables: they leave the tree, and their memory is used again.
        let owed = on.unmap(M::BASE, PAGE)?;
        on.sync(owed)?;
        let _reused = machine.host.memory(PAGE);
        on.must_fault(machine, M::BASE, pa, NOT_MAPPED)?;
    }
    // All pages of a table at once: it leaves, also where its entries are not counted.
    let bytes = machine.abilities.block.bytes();
    let (most, last) = (machine.host.memory(bytes), pages[0]);
    let end = Iova::new(M::BASE.get() + bytes - PAGE);
    for _ in 0..2 {
        on.map(M::BASE, most, bytes - PAGE, RW)?;
        on.map(end, last, PAGE, RW)?;
        on.must_reach(machine, M::BASE, most)?;
        let owed = on.unmap(M::BASE, bytes)?;
        on.sync(owed)?;
        let _reused = machine.host.memory(PAGE);
        on.must_fault(machine, M::BASE, most, NOT_MAPPED)?;
    }
    Ok(())
}
