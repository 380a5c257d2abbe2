//! The ways in which a request's page gets to the device and back.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use portolan::addr::{Iova, PageSize};
use portolan::dma::{
    Buffer as _, Constraints, Deferred, Device, Direction, DmaSpace, Mapping, Policy, SpaceOptions,
    reclaim_all,
};
use portolan_linux::memory::{Pages, Process, with_device_pool};
use portolan_linux::vfio::Opened;

use crate::controller::{PAGE, Transfer};
use crate::naive::Naive;
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
}

impl Manner {
    /// Of each seed its own data in each manner, so that one cannot pass for another.
    pub const fn seed(self, seed: u64) -> u64 {
        seed ^ self as u64
    }

    pub const ALL: [Self; 6] =
        [Self::Naive, Self::Strict, Self::Deferred, Self::Lazy, Self::Window, Self::Pool];

    const fn policy(self) -> Policy {
        match self {
            Self::Naive | Self::Strict | Self::Window | Self::Pool => Policy::Strict,
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
        })
    }
}

/// A page that the device has.
pub enum Held {
    Mapped(Mapping<Process, Pages>),
    ByHand(Pages, Iova),
    Linked(Pages, WindowNumber),
}

/// A buffer that came back, and the page of the disk that it was for.
pub type Back = (Pages, u64);

/// Brings pages to the device, and back.
pub struct Mover {
    pub device: Device<Process>,
    manner: Manner,
    naive: Option<Naive>,
    windows: Option<Windows>,
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
            Manner::Naive => Some(Naive::new(&opened.unit, stream, &device, depth)?),
            _ => None,
        };
        let batch = usize::from(depth);
        let windows = match manner {
            Manner::Window => Some(Windows::new(&device, batch)?),
            _ => None,
        };
        Ok(Self { device, manner, naive, windows, waiting: Vec::with_capacity(batch), batch })
    }

    /// System calls that the naive loop has made: maps, unmaps.
    pub fn by_hand(&self) -> (u64, u64) {
        self.naive.as_ref().map_or((0, 0), |naive| naive.calls)
    }

    /// Maps a page for request `number`, one of those in flight.
    pub fn begin(&mut self, number: u16, page: Pages, way: Transfer) -> Result<(Held, Iova)> {
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
                back.push((page, at));
            }
            (Held::Linked(page, window), _) => {
                let windows = self.windows.as_mut().context("no windows")?;
                windows.end(window, (page, at), back)?;
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
                back.push((page, at));
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
        reclaim_all(deferred, |buffer| back.extend(pages.next().map(|at| (buffer, at))), drop)?;
        Ok(())
    }
}
