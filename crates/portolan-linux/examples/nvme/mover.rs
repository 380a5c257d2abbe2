//! The ways in which a request's page gets to the device and back.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use portolan::addr::{Iova, PageSize};
use portolan::dma::{
    Buffer as _, BufferPool, Constraints, Deferred, Device, Direction, DmaSpace, IovaUse, Mapping,
    Policy, SpaceOptions, reclaim_all,
};
use portolan_linux::memory::{Pages, Process, with_device_pool};
use portolan_linux::vfio::Opened;

use crate::controller::{PAGE, Transfer};
use crate::naive::Naive;
use crate::once::{self, Data, PoolPages, PostedSlot};
use crate::window::{WindowNumber, Windows};

/// Manner of mapping pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manner {
    /// No library: a map and an unmap by hand for each request.
    Naive,
    /// A map and an unmap for each request.
    Strict,
    /// A map for each request, and one unmap for many of them.
    Deferred,
    /// The same, and buffers come back before the unmap.
    Lazy,
    /// A map for each request into addresses that were set aside for many, and one unmap for all of those.
    Window,
    /// One map for a pool, through which data is copied.
    Pool,
    /// One map for a pool, whose slots go to and fro.
    Slots,
    /// No library: one map by hand for each page, before the first request, as SPDK has it. The device reaches all
    /// pages at all times, and nothing keeps the driver from those that the device has.
    Once,
}

impl Manner {
    /// Of each seed its own data in each manner, so that one cannot pass for another.
    pub const fn seed(self, seed: u64) -> u64 {
        seed ^ self as u64
    }

    pub const ALL: [Self; 8] = [
        Self::Naive,
        Self::Strict,
        Self::Deferred,
        Self::Lazy,
        Self::Window,
        Self::Pool,
        Self::Once,
        Self::Slots,
    ];

    const fn policy(self) -> Policy {
        match self {
            Self::Naive | Self::Strict | Self::Window => Policy::Strict,
            Self::Pool | Self::Slots | Self::Once => Policy::Strict,
            Self::Deferred => Policy::Deferred,
            Self::Lazy => Policy::Lazy,
        }
    }
}

impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Naive => "naive loop",
            Self::Strict => "strict",
            Self::Deferred => "deferred",
            Self::Lazy => "lazy",
            Self::Window => "window",
            Self::Pool => "pool",
            Self::Slots => "slots",
            Self::Once => "mapped once",
        })
    }
}

/// A page that the device has.
pub enum Held {
    Mapped(Mapping<Process, Pages>),
    ByHand(Pages, Iova),
    Linked(Pages, WindowNumber),
    Posted(PostedSlot),
    Known(Pages, Iova),
}

/// A buffer that came back, and the page of the disk that it was for.
pub type Back = (Data, u64);

/// Brings pages to the device, and back.
pub struct Mover {
    pub device: Device<Process>,
    manner: Manner,
    naive: Option<Naive>,
    windows: Option<Windows>,
    pool: Option<(BufferPool<Process, PoolPages>, PageSize)>,
    waiting: Vec<(Deferred<Process, Pages>, u64)>,
    /// Deferred buffers that are reclaimed together.
    batch: usize,
}

impl Mover {
    /// A space of its own for the first device of `opened`.
    pub fn new(opened: &Opened, manner: Manner, depth: u16) -> Result<Self> {
        let stream = opened.devices.first().context("no device")?.stream();
        let mut options = SpaceOptions::default();
        options.policy = manner.policy();
        let space = DmaSpace::new(opened.unit.new_domain(), Process, &options)?;
        let mut constraints = Constraints::trusted();
        // A PRP keeps the offset in its page.
        constraints.min_align_mask = PageSize::SIZE_4K;
        let mut device = Device::translated(Arc::new(space), stream, constraints)?;
        if manner == Manner::Pool {
            device = with_device_pool(device, 2 * usize::from(depth) * PAGE)?;
        }
        let naive = match manner {
            Manner::Naive | Manner::Once => {
                Some(Naive::new(&opened.unit, stream, &device, 2 * depth)?)
            }
            _ => None,
        };
        let batch = usize::from(depth);
        let pool = match manner {
            Manner::Slots => Some(once::pool(&device, 2 * batch)?),
            _ => None,
        };
        let windows = match manner {
            Manner::Window => Some(Windows::new(&device, batch)?),
            _ => None,
        };
        let waiting = Vec::with_capacity(batch);
        Ok(Self { device, manner, naive, windows, pool, waiting, batch })
    }

    /// Memory for `count` requests.
    pub fn memory(&mut self, count: usize) -> Result<Vec<Data>> {
        match (&self.pool, &mut self.naive, self.manner) {
            (Some((pool, _)), _, _) => once::slots(pool, count),
            (_, Some(naive), Manner::Once) => once::known(naive, count),
            _ => once::pages(count),
        }
    }

    /// Size of the pages that slots lie in, if there are slots.
    pub fn slot_page(&self) -> Option<u64> {
        self.pool.as_ref().map(|(_, page)| page.bytes())
    }

    /// Unmaps what was mapped by hand, once: the device is stopped.
    pub fn close(&mut self, memory: Vec<Data>) -> Result<()> {
        for data in memory {
            if let (Data::Known(_, iova), Some(naive)) = (&data, &mut self.naive) {
                naive.unmap(*iova)?;
            }
        }
        Ok(())
    }

    /// Tells if the device finds other bytes at `iova` than those of `data` itself: a copy of them.
    pub fn is_copied(&self, data: *const u8, iova: Iova) -> bool {
        match self.device.space().map(|space| space.find(iova)) {
            Some(IovaUse::Mapped(found)) => found.pa.get() != data.addr() as u64,
            // Mapped by hand, of which the space does not know.
            _ => false,
        }
    }

    /// System calls that the naive loop has made: maps, unmaps.
    pub fn by_hand(&self) -> (u64, u64) {
        self.naive.as_ref().map_or((0, 0), |naive| naive.calls)
    }

    /// Maps a page for request `number`, one of those in flight.
    pub fn begin(&mut self, number: u16, data: Data, way: Transfer) -> Result<(Held, Iova)> {
        let page = match data {
            Data::Page(page) => page,
            Data::Known(page, iova) => return Ok((Held::Known(page, iova), iova)),
            Data::Slot(slot) => {
                let posted = slot.post();
                let iova = posted.iova();
                return Ok((Held::Posted(posted), iova));
            }
        };
        if let Some(naive) = &mut self.naive {
            let piece = page.pieces().as_slice().first().copied().context("no memory")?;
            let iova = naive.map(number, piece.start().get())?;
            return Ok((Held::ByHand(page, iova), iova));
        }
        let direction = match way {
            Transfer::Write => Direction::ToDevice,
            Transfer::Read => Direction::FromDevice,
        };
        if let Some(windows) = &mut self.windows {
            let (window, iova) = windows.link(&page, direction)?;
            return Ok((Held::Linked(page, window), iova));
        }
        let mapping = self.device.map(page, direction).map_err(|failed| failed.error)?;
        let iova = mapping.iova();
        let mut segments = mapping.segments();
        let whole = segments.next().is_some_and(|one| one.bytes.get() == PAGE as u64);
        ensure!(whole && segments.next().is_none(), "a page is one segment");
        drop(segments);
        Ok((Held::Mapped(mapping), iova))
    }

    /// Takes the page of the request for `at` back, or has it wait; those that are back go to `back`.
    pub fn end(&mut self, held: Held, at: u64, back: &mut Vec<Back>) -> Result<()> {
        match (held, self.manner) {
            (Held::ByHand(page, iova), _) => {
                if let Some(naive) = &mut self.naive {
                    naive.unmap(iova)?;
                }
                back.push((Data::Page(page), at));
            }
            (Held::Known(page, iova), _) => back.push((Data::Known(page, iova), at)),
            (Held::Posted(slot), _) => back.push((Data::Slot(slot.take_back()), at)),
            (Held::Linked(page, window), _) => {
                let windows = self.windows.as_mut().context("no windows")?;
                windows.end(window, (Data::Page(page), at), back)?;
            }
            (Held::Mapped(mapping), Manner::Deferred) => {
                let deferred = mapping.defer().map_err(|failed| failed.error)?;
                self.waiting.push((deferred, at));
                if self.waiting.len() == self.batch {
                    self.settle(back)?;
                }
            }
            (Held::Mapped(mapping), _) => {
                let page = mapping.unmap().map_err(|failed| failed.error)?;
                back.push((Data::Page(page), at));
            }
        }
        Ok(())
    }

    /// Takes all pages back that wait.
    pub fn settle(&mut self, back: &mut Vec<Back>) -> Result<()> {
        if let Some(windows) = &mut self.windows {
            return windows.close(back);
        }
        let (deferred, pages): (Vec<_>, Vec<u64>) = self.waiting.drain(..).unzip();
        let mut pages = pages.into_iter();
        // They come back in the order in which they were deferred.
        let mut take = |page| back.extend(pages.next().map(|at| (Data::Page(page), at)));
        reclaim_all(deferred, &mut take, drop)?;
        Ok(())
    }
}
