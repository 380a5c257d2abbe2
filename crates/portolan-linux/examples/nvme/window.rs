//! Windows: addresses set aside for many pages, into which each request's is linked; all of them are unmapped at once.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use portolan::addr::Iova;
use portolan::dma::{Buffer as _, Constraints, Device, Direction, DmaSpace, Reservation, Unowned};
use portolan_linux::memory::{Pages, Process};

use crate::controller::PAGE;
use crate::mover::Back;

/// Number of the window that a page is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowNumber(u64);

struct Window {
    number: WindowNumber,
    reservation: Reservation<Process>,
    /// Pages that still fit.
    room: usize,
    /// Pages that the device has.
    in_flight: usize,
    /// Those that it is done with, and still reaches.
    done: Vec<Back>,
}

/// The window that is being filled, and those that are full and not done with.
pub struct Windows {
    space: Arc<DmaSpace<Process>>,
    pages: usize,
    open: Vec<Window>,
    next: u64,
}

impl Windows {
    /// Of `pages` pages each.
    pub fn new(device: &Device<Process>, pages: usize) -> Result<Self> {
        let space = device.space().context("the device is not translated")?;
        Ok(Self { space: space.clone(), pages, open: Vec::new(), next: 0 })
    }

    fn make(&mut self) -> Result<Window> {
        let bytes = (self.pages * PAGE) as u64;
        self.next += 1;
        Ok(Window {
            number: WindowNumber(self.next),
            reservation: Reservation::new(self.space.clone(), bytes, &Constraints::trusted())?,
            room: self.pages,
            in_flight: 0,
            done: Vec::with_capacity(self.pages),
        })
    }

    /// Maps a page; the caller keeps it until [`Windows::end`].
    pub fn link(&mut self, page: &Pages, way: Direction) -> Result<(WindowNumber, Iova)> {
        if self.open.last().is_none_or(|window| window.room == 0) {
            let window = self.make()?;
            self.open.push(window);
        }
        let window = self.open.last_mut().context("no window")?;
        let piece = page.pieces().as_slice().first().copied();
        // SAFETY: the page goes from the request that holds it into `done`, and from there back to its owner once
        // the window is unlinked; no code looks at it meanwhile.
        let memory = unsafe { Unowned::new(piece.context("no memory")?) };
        let iova = window.reservation.link(memory, way).map_err(|failed| failed.error)?;
        window.reservation.sync()?;
        window.room -= 1;
        window.in_flight += 1;
        Ok((window.number, iova))
    }

    /// The device is done with a page. Once that is so for all of a full window, they come back.
    pub fn end(&mut self, number: WindowNumber, page: Back, back: &mut Vec<Back>) -> Result<()> {
        let at = self.open.iter().position(|window| window.number == number);
        let at = at.context("no such window")?;
        let window = &mut self.open[at];
        window.in_flight -= 1;
        window.done.push(page);
        match (window.in_flight, window.room) {
            (0, 0) => unlink(self.open.remove(at), back),
            _ => Ok(()),
        }
    }

    /// Takes all pages back, of which the device has none any more.
    pub fn close(&mut self, back: &mut Vec<Back>) -> Result<()> {
        let mut open = self.open.drain(..);
        open.try_for_each(|window| unlink(window, back))
    }
}

fn unlink(window: Window, back: &mut Vec<Back>) -> Result<()> {
    match window.reservation.unlink() {
        Ok(_) => {
            back.extend(window.done);
            Ok(())
        }
        Err(failed) => {
            // The device may still reach them.
            window.done.into_iter().for_each(std::mem::forget);
            bail!("a window is not unmapped: {failed}")
        }
    }
}
