//! The monitor: a virtio-iommu, its request queue, and the devices behind it.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 2.7 and 5.13. Not supported: the event queue, which devices that are
//! passed through have no use for, and interrupts of the virtio-iommu.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use portolan_vmm::EndpointId;
use portolan_vmm::viommu::{Reset, ViommuOptions, VirtioIommu};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

use crate::link::{Death, Part, Passed, Ram};
use crate::wire::{Answer, Counts, Exit, SavedMonitor, SavedQueue};

/// Entries of the queue at most, and bytes of a request.
pub(crate) const ENTRIES: u16 = 64;
const LONGEST: usize = 4096;

pub(crate) type Failure = Box<dyn std::error::Error>;

/// The endpoint of a device.
pub fn endpoint(device: usize) -> EndpointId {
    EndpointId::new(8 * (device as u32 + 1))
}

/// A device, and its interrupts.
struct Place {
    device: Arc<Passed>,
    interrupts: OwnedFd,
}

/// A monitor.
pub struct Monitor {
    ram: Ram,
    memory: GuestMemoryMmap,
    viommu: VirtioIommu,
    queue: Queue,
    places: Vec<Place>,
    death: Death,
}

/// Serves the exits of standard input until it ends.
///
/// # Errors
/// If a device is not there, or the guest's memory.
pub fn run(ram: File, sockets: &[&str]) -> Result<(), Failure> {
    let mut monitor = Monitor::new(ram)?;
    for (number, socket) in sockets.iter().enumerate() {
        monitor.add(number, Path::new(socket))?;
    }
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = match monitor.exit(serde_json::from_str(&line?)?) {
            Ok(answer) => answer,
            Err(error) => Answer::Failed(error.to_string()),
        };
        writeln!(out, "{}", serde_json::to_string(&answer)?)?;
        out.flush()?;
    }
    Ok(())
}

impl Monitor {
    fn new(ram: File) -> Result<Self, Failure> {
        let bytes = ram.metadata()?.len();
        let file = FileOffset::new(ram.try_clone()?, 0);
        let range = (GuestAddress(0), usize::try_from(bytes)?, Some(file));
        let all = Ram::default();
        all.add(Part { at: 0, bytes, file: Arc::new(ram), offset: 0 });
        Ok(Self {
            ram: all,
            memory: GuestMemoryMmap::from_ranges_with_files([range])?,
            viommu: VirtioIommu::new(ViommuOptions::default()),
            queue: Queue::new(ENTRIES)?,
            places: Vec::new(),
            death: Death::default(),
        })
    }

    fn add(&mut self, number: usize, socket: &Path) -> Result<(), Failure> {
        self.viommu.add(endpoint(number), &[])?;
        let place = self.connect(number, socket)?;
        self.places.push(place);
        Ok(())
    }

    /// Connects to a device, which hears of what its endpoint has.
    fn connect(&self, number: usize, socket: &Path) -> Result<Place, Failure> {
        let device = Passed::connect(socket, self.ram.clone(), self.death.clone())?;
        let device = Arc::new(device);
        let interrupts = eventfd(0, EventfdFlags::NONBLOCK)?;
        device.interrupt_by(rustix::fd::AsFd::as_fd(&interrupts))?;
        self.viommu.listen(endpoint(number), device.clone())?;
        Ok(Place { device, interrupts })
    }

    fn place(&self, device: usize) -> Result<&Place, Failure> {
        self.places.get(device).ok_or_else(|| format!("there is no device {device}").into())
    }

    fn exit(&mut self, exit: Exit) -> Result<Answer, Failure> {
        match exit {
            Exit::Features => return Ok(Answer::Value(self.viommu.features())),
            Exit::Config { offset, bytes } => return self.config(offset, bytes),
            Exit::SetConfig { offset, value } => self.viommu.write_config(offset, value),
            Exit::Queue(queue) => self.queue = self.queue_of(&queue)?,
            Exit::Notify => drop(serve(&self.viommu, &mut self.queue, &self.memory)?),
            Exit::Reset { machine } => self.reset(machine)?,
            Exit::Read { device, offset } => {
                return Ok(Answer::Value(self.place(device)?.device.read(offset)?));
            }
            Exit::Write { device, offset, values } => {
                self.place(device)?.device.write(offset, &values)?;
            }
            Exit::Interrupts { device } => {
                let mut count = [0; 8];
                return match rustix::io::read(&self.place(device)?.interrupts, &mut count) {
                    Ok(_) => Ok(Answer::Value(u64::from_ne_bytes(count))),
                    Err(rustix::io::Errno::AGAIN) => Ok(Answer::Value(0)),
                    Err(error) => Err(error.into()),
                };
            }
            Exit::Save => return Ok(Answer::State(self.save())),
            Exit::Restore(saved) => {
                self.viommu.restore(&saved.viommu)?;
                self.queue = self.queue_of(&saved.queue)?;
            }
            Exit::Replace { device, socket } => {
                // Of the old one, which has gone, nothing can be taken back.
                let _ = self.viommu.remove_listener(endpoint(device));
                let place = self.connect(device, &socket)?;
                *self.places.get_mut(device).ok_or("no such device")? = place;
            }
            Exit::Counts => return Ok(Answer::Counts(self.counts())),
            Exit::DieAfter { messages } => self.death.after(messages),
        }
        Ok(Answer::Done)
    }

    fn config(&self, offset: usize, bytes: usize) -> Result<Answer, Failure> {
        let end = offset.checked_add(bytes).ok_or("beyond the configuration")?;
        let config = self.viommu.config();
        let part = config.get(offset..end).ok_or("beyond the configuration")?;
        let byte = |(at, byte): (usize, &u8)| u64::from(*byte) << (8 * at);
        Ok(Answer::Value(part.iter().take(8).enumerate().map(byte).sum()))
    }

    fn counts(&self) -> Counts {
        let of = self.viommu.listener_counts();
        let (made, failed, undone, not_undone) = (of.made, of.failed, of.undone, of.not_undone);
        Counts { made, failed, undone, not_undone }
    }

    /// A queue in that state; one without entries is not set up.
    fn queue_of(&self, saved: &SavedQueue) -> Result<Queue, Failure> {
        let mut queue = Queue::new(ENTRIES)?;
        if saved.size == 0 {
            return Ok(queue);
        }
        let halves = |at: u64| (Some(at as u32), Some((at >> 32) as u32));
        queue.set_size(saved.size);
        let (low, high) = halves(saved.descriptors);
        queue.set_desc_table_address(low, high);
        let (low, high) = halves(saved.available);
        queue.set_avail_ring_address(low, high);
        let (low, high) = halves(saved.used);
        queue.set_used_ring_address(low, high);
        queue.set_next_avail(saved.next_available);
        queue.set_next_used(saved.next_used);
        queue.set_ready(true);
        match queue.is_valid(&self.memory) && queue.size() == saved.size {
            true => Ok(queue),
            false => Err("the queue makes no sense".into()),
        }
    }

    fn save(&self) -> SavedMonitor {
        let queue = &self.queue;
        let queue = SavedQueue {
            size: if queue.ready() { queue.size() } else { 0 },
            descriptors: queue.desc_table(),
            available: queue.avail_ring(),
            used: queue.used_ring(),
            next_available: queue.next_avail(),
            next_used: queue.next_used(),
        };
        SavedMonitor { viommu: self.viommu.save(), queue }
    }

    fn reset(&mut self, machine: bool) -> Result<(), Failure> {
        self.queue = Queue::new(ENTRIES)?;
        self.viommu.reset(if machine { Reset::System } else { Reset::Device })?;
        if machine {
            for place in &self.places {
                place.device.reset()?;
            }
        }
        Ok(())
    }
}

/// Carries out the requests that wait in a queue; returns their number.
///
/// # Errors
/// If the queue's memory is not the guest's.
pub(crate) fn serve(
    viommu: &VirtioIommu,
    queue: &mut Queue,
    memory: &GuestMemoryMmap,
) -> Result<usize, Failure> {
    let mut served = 0;
    while let Some(chain) = queue.pop_descriptor_chain(memory) {
        let head = chain.head_index();
        let (mut request, mut places) = (Vec::new(), Vec::new());
        for part in chain {
            let length = part.len() as usize;
            if part.is_write_only() {
                places.push((part.addr(), length));
            } else if request.len() + length <= LONGEST {
                let start = request.len();
                request.resize(start + length, 0);
                memory.read_slice(&mut request[start..], part.addr())?;
            }
        }
        let room = places.iter().fold(0, |sum: usize, (_, length)| sum.saturating_add(*length));
        let mut answer = vec![0; room.min(LONGEST)];
        let written = viommu.request(&request, &mut answer);
        let mut rest = &answer[..];
        for (at, length) in places {
            let (part, after) = rest.split_at(length.min(rest.len()));
            memory.write_slice(part, at)?;
            rest = after;
        }
        queue.add_used(memory, head, written as u32)?;
        served += 1;
    }
    Ok(served)
}
