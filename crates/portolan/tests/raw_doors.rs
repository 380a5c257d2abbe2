//! Safe code that tries to get at memory which is not its own, or to upset the library by false values:
//! through pools, areas, numbers of CPUs and the ends of 64 bits. Code that does not even compile is in
//! `compile_fail`.
#![allow(missing_docs)]

/// An embedder's part, and all that is `unsafe` here.
mod kernel {
    #![allow(unsafe_code)]

    use core::alloc::Layout;
    use core::ptr::NonNull;
    use core::sync::atomic::AtomicU64;

    use portolan::addr::{PhysAddr, PhysRange};
    use portolan::dma::Unowned;
    use portolan::platform::{Mmio, Nanos, Platform, SpinLock};

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
            // SAFETY: no layout of the tests is empty.
            let at = unsafe { std::alloc::alloc_zeroed(layout) };
            NonNull::new(at).map(|at| PhysAddr::new(at.addr().get() as u64))
        }

        unsafe fn free(&self, at: PhysAddr, layout: Layout) {
            // SAFETY: the caller's promise.
            unsafe { std::alloc::dealloc(self.virt(at).as_ptr(), layout) }
        }

        unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
            NonNull::new(at.get() as *mut u8).expect("memory is not at 0")
        }

        unsafe fn registers(&self, _: PhysRange) -> Option<NoRegisters> {
            None
        }

        fn clean(&self, _: PhysRange) {}

        fn clean_barrier(&self) {}

        fn invalidate(&self, _: PhysRange) {}

        fn flush_wanted(&self) {}

        fn drop_later(&self, left: portolan::platform::LeftBehind) {
            drop(left);
        }
    }

    /// Words, of which the first page is lent as [`Unowned`] and the others stay.
    pub struct Lent {
        words: &'static [AtomicU64],
        pub bytes: u64,
    }

    impl Lent {
        /// `bytes` bytes, a multiple of a page, with a page on either side.
        pub fn new(bytes: u64) -> (Self, Unowned) {
            let layout = Layout::from_size_align(bytes as usize + 2 * 4096, 4096).unwrap();
            let at = Kernel.alloc(layout).unwrap();
            // SAFETY: the block is aligned, zeroed, and never freed.
            let words = unsafe {
                let first = Kernel.virt(at).cast::<AtomicU64>().as_ptr();
                core::slice::from_raw_parts(first, layout.size() / 8)
            };
            (Self { words, bytes }, named(at.get() + 4096, bytes))
        }

        /// The words on either side.
        pub fn beside(&self) -> impl Iterator<Item = &AtomicU64> {
            let page = 4096 / 8;
            let behind = page + self.bytes as usize / 8;
            self.words[..page].iter().chain(&self.words[behind..])
        }
    }

    /// Memory that is lent, or that nothing is behind and nothing is copied to.
    pub fn named(start: u64, bytes: u64) -> Unowned {
        unowned(PhysRange::from_len(PhysAddr::new(start), bytes).unwrap())
    }

    pub fn unowned(memory: PhysRange) -> Unowned {
        // SAFETY: as `named` says.
        unsafe { Unowned::new(memory) }
    }
}

mod driver {
    #![forbid(unsafe_code)]

    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use portolan::addr::{CpuId, Iova, IovaRange, PageSize, PhysAddr, PhysRange};
    use portolan::bounce::{
        Area, BouncePool as _, CopyError, GiveError, Need, Pool, PoolError, PoolMemory,
        PoolOptions, TakeError, Want,
    };
    use portolan::inval::{CombineOptions, Combined, InvalidationQueue, Ranges, Step, TablesLeft};
    use portolan::iova::{IovaOptions, IovaSpace, Request};
    use portolan::platform::{Clock, Cpus, Nanos, SpinLock};

    use super::kernel::{Kernel, Lent, named, unowned};

    const POOL: u64 = 64 << 11;

    /// An area that hands out a slot that was never free.
    struct Liar(AtomicU32);

    impl Area for Liar {
        fn take(&self, _: Want) -> Option<u32> {
            Some(self.0.load(Ordering::Relaxed))
        }

        fn give(&self, _: u32, _: u32) -> Result<(), GiveError> {
            Ok(())
        }

        fn is_taken(&self, _: u32, _: u32) -> bool {
            true
        }

        fn survey(&self) -> (u32, u32) {
            (u32::MAX, u32::MAX)
        }
    }

    #[test]
    fn an_area_that_lies_reaches_no_memory_but_its_pool_s() {
        let (lent, memory) = Lent::new(POOL);
        let whole = memory.memory();
        let options = PoolOptions::of_areas(1);
        let mut reached = BTreeSet::new();
        let mut memory = Some(memory);
        for slot in [0, 1, 62, 63, 64, 65, 1 << 31, u32::MAX] {
            let liar = |_| Ok(Liar(AtomicU32::new(slot)));
            let pool = Pool::with_areas(Kernel, memory.take().unwrap(), options, liar).unwrap();
            for align in [0, 11, 12, 13] {
                let need = Need {
                    align: PageSize::of_lg2(align),
                    like: PhysAddr::new(0x123),
                    keep: PageSize::of_lg2(align),
                    ..Need::bytes(3000)
                };
                let Ok(slots) = pool.take(&need) else {
                    continue;
                };
                assert!(whole.covers(slots.data()), "{slot} {align}: {slots:?}");
                reached.insert(slots.data().start());
                pool.give(slots).unwrap();
            }
            memory = pool.into_memory().ok();
        }
        assert!(reached.len() > 1);
        assert!(lent.beside().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn slots_lead_where_their_pool_is_and_bytes_where_they_were_promised() {
        let options = PoolOptions::of_areas(1);
        let [(one, first), (other, second)] = [(); 2].map(|()| Lent::new(POOL));
        let mut buffer = named(second.memory().start().get(), 64);
        let pool = PoolMemory::of(Kernel, first, options).unwrap();
        let strange = Pool::new(Kernel, second, options).unwrap();
        let taken = strange.take(&Need::bytes(64)).unwrap();
        let at = taken.data().start();
        let foreign = Err(CopyError::Foreign { at });
        assert_eq!(pool.copy_in(&buffer, &taken), foreign);
        assert_eq!(pool.copy_out(&taken, &mut buffer), foreign);
        let longer = pool.take(&Need::bytes(65)).unwrap();
        let copied = pool.copy_out(&longer, &mut buffer);
        assert!(matches!(copied, Err(CopyError::Length { .. })));
        assert_eq!(pool.give(taken), Err(GiveError::Foreign { at }));
        let pool = pool.into_pool();
        let pool = pool.into_memory().expect_err("slots are taken");
        pool.give(longer).unwrap();
        assert!(pool.into_memory().is_ok());
        let mut beside = one.beside().chain(other.beside());
        assert!(beside.all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_pool_that_cannot_be_gives_its_memory_back() {
        let all = PhysRange::new(PhysAddr::new(0), PhysAddr::new(u64::MAX)).unwrap();
        let odd = named(1, POOL);
        for memory in [unowned(all), odd, named(0, 1)] {
            let range = memory.memory();
            let refused = Pool::new(Kernel, memory, PoolOptions::of_areas(4)).err();
            let refused = refused.expect("it is no pool");
            assert!(matches!(refused.error, PoolError::Shape { .. }));
            assert!(refused.to_string().contains("areas"));
            assert_eq!(refused.memory.memory(), range);
        }
        let (_lent, memory) = Lent::new(POOL);
        let pool = Pool::new(Kernel, memory, PoolOptions::of_areas(0)).unwrap();
        let most = Need {
            align: PageSize::of_lg2(63),
            like: PhysAddr::new(u64::MAX),
            keep: PageSize::of_lg2(63),
            ..Need::bytes(u64::MAX)
        };
        assert!(matches!(pool.take(&most), Err(TakeError::Alignment { .. })));
    }

    fn request(bytes: u64) -> Request {
        Request { bytes, align: PageSize::of_lg2(0), limit: Iova::new(u64::MAX) }
    }

    /// CPUs whose number is wrong, and the caller's too.
    struct Wrong(usize);

    impl Clock for Wrong {
        fn now(&self) -> Nanos {
            Nanos::new(0)
        }
    }

    impl Cpus for Wrong {
        type Word = AtomicU64;
        type Lock<T: Send> = SpinLock<T>;

        fn count(&self) -> usize {
            self.0
        }

        fn current(&self) -> CpuId {
            CpuId::new(u32::MAX)
        }

        fn flush_wanted(&self) {}

        fn drop_later(&self, left: portolan::platform::LeftBehind) {
            drop(left);
        }
    }

    struct Prompt;

    impl InvalidationQueue for Prompt {
        type Error = core::convert::Infallible;

        fn pay(
            &self,
            steps: &mut dyn Iterator<Item = Step>,
            _: TablesLeft,
        ) -> Result<(), Self::Error> {
            steps.for_each(drop);
            Ok(())
        }
    }

    #[test]
    fn no_cpus_are_one_and_too_many_are_as_many_as_there_can_be() {
        for count in [0, 1, usize::MAX] {
            let window = IovaRange::new(Iova::new(0x1000), Iova::new(0xf_ffff)).unwrap();
            let options = IovaOptions::default();
            let space = IovaSpace::new(Wrong(count), window, PageSize::SIZE_4K, options).unwrap();
            let request = request(0x3000);
            let range = space.alloc(&request).unwrap();
            space.free(range).unwrap();
            let options = PoolOptions::for_cpus(&Wrong(count));
            let pool = Pool::new(Wrong(count), named(0, 1 << 34), options).unwrap();
            let slots = pool.take(&Need::bytes(1)).unwrap();
            pool.give(slots).unwrap();
            let options = CombineOptions::default();
            let combined = Combined::new(Wrong(count), Prompt, Ranges::ABSENT, options);
            let paid = combined.pay(&mut core::iter::empty(), TablesLeft::No);
            paid.unwrap();
        }
    }

    #[test]
    fn all_of_64_bits_are_counted_and_given_out() {
        let all = IovaRange::new(Iova::new(0), Iova::new(u64::MAX)).unwrap();
        assert_eq!(all.pages(PageSize::of_lg2(0)), u64::MAX);
        let options = IovaOptions::default();
        for granule in [0, 12, 63] {
            let granule = PageSize::of_lg2(granule);
            let Ok(space) = IovaSpace::new(Wrong(1), all, granule, options) else {
                continue;
            };
            for bytes in [1, 1 << 63, u64::MAX] {
                if let Ok(range) = space.alloc(&request(bytes)) {
                    assert_eq!(space.free(range), Ok(()), "{bytes:#x} {granule:?}");
                }
            }
        }
    }
}
