//! Safe code that gets at memory which is not its own, through values that hold a platform's raw
//! memory. Each test asserts what ought to hold, and fails.

/// What an embedder writes: `unsafe` only where the library's documents say that it may.
mod kernel {
    #![allow(unsafe_code)]

    use core::alloc::Layout;
    use core::ptr::NonNull;
    use core::sync::atomic::AtomicU64;

    use portolan::addr::{PhysAddr, PhysRange};
    use portolan::platform::{Mmio, Nanos, Platform, RawMemory, SpinLock};

    #[derive(Clone)]
    pub struct Kernel;

    pub enum NoRegisters {}

    impl Mmio for NoRegisters {
        fn read32(&self, _: usize) -> u32 {
            match *self {}
        }

        fn write32(&self, _: usize, _: u32) {
            match *self {}
        }
    }

    // SAFETY: blocks are the allocator's, at their own addresses.
    unsafe impl Platform for Kernel {
        type Word = AtomicU64;
        type Lock<T: Send> = SpinLock<T>;
        type Registers = NoRegisters;

        fn now(&self) -> Nanos {
            Nanos::new(0)
        }

        fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
            let at = unsafe { std::alloc::alloc_zeroed(layout) };
            NonNull::new(at).map(|at| PhysAddr::new(at.addr().get() as u64))
        }

        unsafe fn free(&self, at: PhysAddr, layout: Layout) {
            unsafe { std::alloc::dealloc(self.virt(at).as_ptr(), layout) }
        }

        unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
            NonNull::new(at.get() as *mut u8).expect("memory is not at 0")
        }

        fn registers(&self, _: PhysRange) -> Option<NoRegisters> {
            None
        }
    }

    /// For `PoolMemory` and `PageTable` alone, as `RawMemory::new` allows in so many words.
    pub fn raw() -> RawMemory<Kernel> {
        // SAFETY: it is handed to those two, "which do so: it may be handed to them".
        unsafe { RawMemory::new(Kernel) }
    }
}

mod driver {
    #![forbid(unsafe_code)]

    use std::sync::atomic::{AtomicU64, Ordering};

    use portolan::addr::{PageSize, PhysAddr, PhysRange};
    use portolan::bounce::{BouncePool, Copied, Need, Padding, Pool, PoolMemory, PoolOptions, Way};
    use portolan::platform::TableMem;
    use portolan::table::PageTable;
    use portolan::table::format::{VtdLevels, VtdSecondStage};

    use super::kernel::{Kernel, raw};

    const SECRET: u64 = 0x5ec7_e75e_c7e7_5ec7;

    /// Memory that the library was never given: a page of words and one more for alignment.
    struct Victim(Vec<AtomicU64>);

    impl Victim {
        fn new() -> Self {
            Self((0..1024).map(|_| AtomicU64::new(SECRET)).collect())
        }

        /// A whole page inside.
        fn page(&self) -> PhysRange {
            let at = (self.0.as_ptr() as usize as u64).next_multiple_of(4096);
            PhysRange::from_len(PhysAddr::new(at), 4096).unwrap()
        }

        fn is_whole(&self) -> bool {
            self.0
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == SECRET)
        }
    }

    /// A pool that was made as it ought to be, over memory of its own.
    fn pool_of_its_own() -> PoolMemory<Kernel, portolan::platform::RawMemory<Kernel>> {
        let memory = vec![0u64; 64 * 2048 / 8 + 512].leak();
        let at = (memory.as_ptr() as usize as u64).next_multiple_of(4096);
        let memory = PhysRange::from_len(PhysAddr::new(at), 64 * 2048).unwrap();
        let pool = Pool::new(Kernel, memory, PoolOptions::of_areas(1)).unwrap();
        PoolMemory::new(pool, raw())
    }

    #[test]
    fn a_pool_clears_no_memory_but_its_own() {
        let (victim, pool) = (Victim::new(), pool_of_its_own());
        BouncePool::clear(&pool, victim.page());
        assert!(
            victim.is_whole(),
            "safe code wrote to memory that is not its own"
        );
    }

    #[test]
    fn a_piece_to_be_copied_is_memory_that_somebody_promised() {
        let (victim, pool) = (Victim::new(), pool_of_its_own());
        let part = PhysRange::from_len(victim.page().start(), 64).unwrap();
        let need = Need::bytes(64);
        // Reads memory that is not its own, and then writes it.
        let copied = Copied::new(&pool, part, &need, Padding::Leave).unwrap();
        BouncePool::clear(&pool, copied.copy_range());
        copied.copy(&pool, Way::Out, part);
        assert!(
            victim.is_whole(),
            "safe code wrote to memory that is not its own"
        );
    }

    #[test]
    fn a_pool_is_over_memory_that_somebody_promised() {
        let victim: Vec<AtomicU64> = (0..64 * 2048 / 8 + 512)
            .map(|_| AtomicU64::new(SECRET))
            .collect();
        let at = (victim.as_ptr() as usize as u64).next_multiple_of(4096);
        let memory = PhysRange::from_len(PhysAddr::new(at), 64 * 2048).unwrap();
        // No `Unowned`, no `unsafe`: any range will do.
        let pool = Pool::new(Kernel, memory, PoolOptions::of_areas(1)).unwrap();
        let pool = PoolMemory::new(pool, raw());
        let buffer = [7u64; 8];
        let part = PhysRange::from_len(PhysAddr::new(buffer.as_ptr() as usize as u64), 64).unwrap();
        let _copied = Copied::new(&pool, part, &Need::bytes(64), Padding::Leave).unwrap();
        let whole = victim
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == SECRET);
        assert!(whole, "safe code wrote to memory that is not its own");
    }

    #[test]
    fn a_page_table_lends_no_memory_but_its_tables() {
        let victim = Victim::new();
        let format = VtdSecondStage::new(VtdLevels::Four, 52);
        let table = PageTable::new(format, raw()).unwrap();
        let words: &[AtomicU64] = table
            .memory()
            .table(victim.page().start(), PageSize::SIZE_4K);
        words[0].store(0, Ordering::Relaxed);
        assert!(
            victim.is_whole(),
            "safe code wrote to memory that is not its own"
        );
    }
}
