//! Memory that is mapped once, before the first request: slots that go to and fro between the driver and the disk, or
//! pages whose addresses the driver just knows, as SPDK has it.

use std::ops::{Deref, DerefMut};

use anyhow::{Context as _, Result};
use portolan::addr::{Iova, PageSize};
use portolan::dma::{BufferPool, CpuSlot, Device, DeviceSlot, Direction};
use portolan_linux::memory::{Backing, Base, BroughtPages, HostMemory, HugePage, Pages, Process};

use crate::controller::PAGE;
use crate::naive::Naive;

/// Memory of the pool: huge pages, if the system has set some aside.
pub type PoolPages = BroughtPages<HostMemory>;
pub type PostedSlot = DeviceSlot<Process, PoolPages>;

/// Bytes of a request, while the driver has them.
pub enum Data {
    /// A page that is mapped for its request, or copied.
    Page(Pages),
    /// A slot of the pool.
    Slot(CpuSlot<Process, PoolPages>),
    /// A page that stays mapped, and its address.
    Known(Pages, Iova),
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Page(page) | Self::Known(page, _) => page,
            Self::Slot(slot) => slot,
        }
    }
}

impl DerefMut for Data {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Page(page) | Self::Known(page, _) => page,
            Self::Slot(slot) => slot,
        }
    }
}

/// A page for each of `count` requests.
pub fn pages(count: usize) -> Result<Vec<Data>> {
    (0..count).map(|_| Ok(Data::Page(Pages::new(PAGE).context("no memory")?))).collect()
}

/// A pool of `count` slots, mapped once, and the size of its pages.
pub fn pool(
    device: &Device<Process>,
    count: usize,
) -> Result<(BufferPool<Process, PoolPages>, PageSize)> {
    let bytes = (count * PAGE) as u64;
    let huge = HugePage::Size2M;
    let whole = bytes.next_multiple_of(huge.size().bytes());
    let memory = HostMemory::new(whole, Backing::Huge(huge), Base::Host)
        .or_else(|_| HostMemory::new(bytes, Backing::Anonymous, Base::Host))?;
    let page = memory.page();
    let pages = BroughtPages::of(memory).ok().context("the memory has another owner")?;
    let mapping = device.map_aligned(pages, Direction::Bidirectional, page);
    let mapping = mapping.map_err(|failed| failed.error)?;
    Ok((BufferPool::new(mapping, PAGE).map_err(|failed| failed.error)?, page))
}

/// The first `count` slots of a pool.
pub fn slots(pool: &BufferPool<Process, PoolPages>, count: usize) -> Result<Vec<Data>> {
    (0..count).map(|_| Ok(Data::Slot(pool.take().context("no slot")?))).collect()
}

/// Pages that are mapped by hand, once, by a loop that has room for them.
pub fn known(naive: &mut Naive, count: usize) -> Result<Vec<Data>> {
    let one = |number| {
        let page = Pages::new(PAGE).context("no memory")?;
        let iova = naive.map(number as u16, page.as_ptr().addr() as u64)?;
        Ok(Data::Known(page, iova))
    };
    (0..count).map(one).collect()
}
