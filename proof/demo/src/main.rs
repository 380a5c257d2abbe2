//! A kernel that finds its IOMMUs and moves a disk's data behind them, on QEMU.
//!
//! `cargo xtask demo` builds it, runs it, and looks at the disk from outside. Read on in this order: here
//! are its steps, [`guarded`] shows the memory that devices reach and when, [`interrupts`] the interrupts
//! that they raise, [`disk`] and [`flash`] move data under each policy, [`net`] has a network card whose buffers stay
//! mapped, [`uncached`] and [`unsnooped`] have devices and a unit that do not snoop, [`cpus`] the other CPUs,
//! [`arch`] the code that differs between architectures. The platform itself, with the driver of NVMe
//! disks, is `portolan-bare`.
#![no_std]
#![no_main]
#![no_builtins]

extern crate alloc;

mod arch;
mod batch;
mod commands;
mod console;
mod cpus;
mod crash;
mod disk;
mod edu;
mod flash;
#[cfg(not(target_os = "none"))]
mod freestanding;
mod guarded;
mod heap;
mod interrupts;
mod net;
#[cfg(target_arch = "x86_64")]
mod sleep;
mod uncached;
mod unsnooped;
mod update;
mod virtio;

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::error::Error;
use core::ffi::c_void;

use portolan::dma::Coherency;
use portolan::platform::{AllMemory, Platform as _};
use portolan_bare::Machine;
use portolan_bare::pci::{self, Function};
use portolan_hw::TrustedDescription;
use portolan_hw::interrupt::Remapping;
use portolan_hw::topology::{EnableError, Iommus, Options, Topology, TopologyError};

use arch::Loader;
use commands::Commands;
use cpus::{Cpus, Task};
use heap::HEAP;
use uncached::Aside;
use update::Kept;

/// Result of the machine's run; the value is QEMU's exit code.
#[derive(Clone, Copy)]
pub enum End {
    Good = 33,
    Bad = 35,
    /// No device does DMA, because no IOMMU limits it.
    WithoutDma = 37,
}

/// Result of a step.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Entry from `boot.s`, with the loader's pointer.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(left: *const c_void) -> ! {
    arch::set_number(0);
    if cfg!(feature = "after-crash") {
        finish(crash::run(left));
    }
    // SAFETY: nothing was written to the kernel's data yet, and no other CPU runs.
    let kept = unsafe { Kept::asked() };
    #[cfg(target_arch = "x86_64")]
    let sleeps = kept.as_ref().and_then(|kept| kept.sleeps());
    #[cfg(target_arch = "x86_64")]
    if let Some(sleeps) = sleeps {
        finish(sleep::run(left, sleeps));
    }
    finish(match kept {
        Some(kept) => update::run(left, kept),
        None => run(left),
    })
}

/// Ends the machine with the result of its run.
fn finish(end: Outcome<End>) -> ! {
    let end = end.unwrap_or_else(|error| {
        say!("failed: {error}");
        End::Bad
    });
    arch::exit(end)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    say!("{info}");
    arch::exit(End::Bad)
}

/// Machine that a loader has started.
struct Started {
    loader: Loader,
    machine: Machine,
    functions: Vec<Function>,
    aside: Aside,
}

/// Takes the machine over from its loader: devices are stopped, and one CPU runs.
fn start(left: *const c_void) -> Outcome<Started> {
    // SAFETY: the loader left the pointer, and nothing writes there.
    let loader = unsafe { Loader::at(left) }.ok_or("the loader left nothing that makes sense")?;
    let ram = loader.ram().ok_or("there is no RAM behind the kernel")?;
    // SAFETY: no code uses RAM behind the kernel yet, and other CPUs are not started.
    let (ram, aside) = unsafe { Aside::from(ram) }.ok_or("there is too little RAM")?;
    // SAFETY: the loader says that it is RAM, and the kernel lies before it; firmware's tables are in
    // memory of another kind, and all windows of registers come from firmware or from devices.
    let machine = unsafe {
        HEAP.init(ram)?;
        loader.machine(&HEAP)?
    };
    let machine = machine.with_cpus(cpus::count(&machine), arch::number);
    say!("RAM at {ram}");

    let functions = pci::functions(&machine);
    loader.give_addresses(&functions)?;
    pci::stop_all(&functions);
    pci::start_iommus(&functions);
    pci::isolate(&functions);
    Ok(Started { loader, machine, functions, aside })
}

fn run(left: *const c_void) -> Outcome<End> {
    let Started { loader, machine, functions, aside } = start(left)?;
    let cpus = Cpus::start(machine, &loader)?;
    match enable(machine) {
        Ok(iommus) => show(machine, iommus, &functions, &cpus, &aside),
        Err(EnableError::Topology(why @ (TopologyError::NoTable | TopologyError::NoUnit))) => {
            without_iommu(machine, why, &functions, &cpus)
        }
        Err(error) => without_dma(&cpus, &error),
    }
}

/// Finds the IOMMUs and enables them: from there on each device reaches only memory, and raises only
/// interrupts, that the kernel has set up.
fn enable(machine: Machine) -> Result<Iommus<Machine>, EnableError> {
    let topology = machine.topology()?;
    let options = options(machine, &topology);
    // Only a virtio-iommu needs queues that are started for it.
    // SAFETY: the tables are this machine's, by the word of its loader.
    let described = unsafe { TrustedDescription::new() };
    let iommus = topology
        .enable_with(machine, options, described, |place| virtio::queues(machine, place))?;
    // Other kernels could use the devices of the units that work; this one requires all units.
    match iommus.units().iter().find_map(|unit| unit.as_ref().err()) {
        Some(error) => Err(*error),
        None => Ok(iommus),
    }
}

/// Options of all units: interrupts are remapped where that is possible.
fn options(machine: Machine, topology: &Topology) -> Options {
    let mut options = Options::default();
    let remapped = topology.interrupt_remapping(|of, at| machine.pci_config(of, at));
    options.interrupts = remapped.map(|_| Remapping::default());
    options
}

/// Devices stay stopped; all else goes on.
fn without_dma(cpus: &Cpus, why: &EnableError) -> Outcome<End> {
    say!("no DMA: {why}");
    let tasks = (0..cpus.count()).map(|cpu| Box::new(move || cpu) as Task<usize>);
    let ran = cpus.run(tasks.collect())?;
    say!("{} CPUs go on", ran.len());
    Ok(End::WithoutDma)
}

/// The same disks, which no unit serves.
fn without_iommu(
    machine: Machine,
    why: TopologyError,
    functions: &[Function],
    cpus: &Cpus,
) -> Outcome<End> {
    say!("no IOMMU: {why}");
    // SAFETY: the drivers of the disks hand them addresses of mappings alone; other devices stay stopped.
    let iommus = Iommus::none(machine, unsafe { AllMemory::new() });
    disk::show(machine, &iommus, named(functions, disk::IDENTITY)?)?;
    flash::show(machine, &iommus, named(functions, flash::IDENTITY)?, cpus)?;
    Ok(End::Good)
}

/// The first function with this vendor and device.
fn named(functions: &[Function], identity: (u16, u16)) -> Outcome<&Function> {
    let found = functions.iter().find(|of| of.identity() == identity);
    found.ok_or_else(|| format!("there is no device {:04x}:{:04x}", identity.0, identity.1).into())
}

/// The two network cards.
fn cards(functions: &[Function]) -> Outcome<[&Function; 2]> {
    let mut found = functions.iter().filter(|of| of.identity() == net::IDENTITY);
    let both = found.next().and_then(|one| Some([one, found.next()?]));
    Ok(both.ok_or("there are no two network cards")?)
}

fn show(
    machine: Machine,
    before: Iommus<Machine>,
    functions: &[Function],
    cpus: &Cpus,
    aside: &Aside,
) -> Outcome<End> {
    let edu = named(functions, edu::IDENTITY)?;
    uncached::show(machine, &before, edu, aside)?;
    // A kernel that is started by another one finds its units on; so does this one, by itself.
    Commands::of(&before).print();
    core::mem::forget(before);
    unsnooped::show(machine, edu, aside)?;
    let iommus = enable(machine)?;
    say!("{} PCI functions", functions.len());
    for unit in iommus.units().iter().flatten() {
        say!("page faults: {:?}", unit.recoverable_faults());
    }
    let disk = named(functions, disk::IDENTITY)?;
    let flash = named(functions, flash::IDENTITY)?;
    guarded::show(machine, &iommus, edu)?;
    interrupts::show(machine, &iommus, edu, disk)?;
    disk::show(machine, &iommus, disk)?;
    flash::show(machine, &iommus, flash, cpus)?;
    let cards = cards(functions)?;
    net::show(machine, &iommus, cards, Coherency::Coherent)?;
    if aside.is_uncached() {
        net::show(machine, &iommus, cards, Coherency::NotCoherent)?;
    }

    // Nothing is asked of the units from here on: QEMU has seen as many.
    Commands::of(&iommus).print();
    Ok(End::Good)
}
