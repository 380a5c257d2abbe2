//! A kernel that finds its IOMMUs and moves a disk's data behind them, on QEMU.
//!
//! `cargo xtask demo` builds it, runs it, and looks at the disk from outside. Read on in this order:
//! here is what it does, [`guarded`] shows what devices reach and when, [`interrupts`] what
//! they raise, [`disk`] and [`flash`] move data
//! under each policy, [`nvme`] is a driver of our own, [`cpus`] has the other CPUs, [`pci`] finds devices,
//! [`arch`] is what differs between architectures. The platform itself is `portolan-bare`.
#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod commands;
mod console;
mod cpus;
mod disk;
mod edu;
mod flash;
mod freestanding;
mod guarded;
#[cfg(target_arch = "x86_64")]
mod interrupts;
mod mapped;
mod nvme;
mod pci;
mod viommu;

use alloc::boxed::Box;
use core::error::Error;
use core::ffi::c_void;

use portolan::iommu::RecoverableFaults;
use portolan_bare::{DirectMap, Heap};
use portolan_hw::interrupt::Remapping;
use portolan_hw::topology::{Options, Topology};

use arch::Loader;
use cpus::Cpus;

/// How the machine ends.
#[derive(Clone, Copy)]
pub enum End {
    Good,
    Bad,
}

/// What a step returns.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

// SAFETY: `boot.s` maps all of it one to one, RAM cached and registers not, for good.
#[global_allocator]
static HEAP: Heap = Heap::new(unsafe { DirectMap::new(0, arch::LAST_MAPPED) });

/// Where `boot.s` enters, with the loader's pointer.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(left: *const c_void) -> ! {
    arch::set_number(0);
    let end = match run(left) {
        Ok(()) => End::Good,
        Err(error) => {
            say!("failed: {error}");
            End::Bad
        }
    };
    arch::exit(end)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    say!("{info}");
    arch::exit(End::Bad)
}

fn run(left: *const c_void) -> Outcome<()> {
    // SAFETY: the loader left the pointer, and nothing writes there.
    let loader = unsafe { Loader::at(left) }.ok_or("the loader left nothing that makes sense")?;
    let ram = loader.ram().ok_or("there is no RAM behind the kernel")?;
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
    // Only a virtio-iommu needs queues that are started for it.
    let queues = |place| viommu::queues(machine, place);
    let topology = Topology::from_acpi(machine.tables())?;
    let mut options = Options::default();
    // From there on nothing interrupts but what the kernel has set up.
    options.interrupts = topology.interrupt_remapping().map(|_| Remapping::default());
    let iommus = topology.enable_with(machine, options, queues)?;
    say!(
        "{} IOMMU, {} PCI functions",
        iommus.units().len(),
        functions.len()
    );

    for unit in iommus.units() {
        match unit.recoverable_faults() {
            RecoverableFaults::Absent => {
                say!("page faults: the IOMMU has neither stalls nor requests")
            }
            RecoverableFaults::Present => {
                say!("page faults: the IOMMU has them, and they are not shown")
            }
        }
    }

    let named = |identity| {
        functions
            .iter()
            .find(|function| function.identity() == identity)
    };
    let edu = named(edu::IDENTITY).ok_or("there is no edu device")?;
    guarded::show(machine, &iommus, edu)?;

    let disk = named(disk::IDENTITY).ok_or("there is no virtio disk")?;
    #[cfg(target_arch = "x86_64")]
    interrupts::show(machine, &iommus, edu, disk)?;
    disk::show(machine, &iommus, disk)?;

    let flash = named(flash::IDENTITY).ok_or("there is no NVMe disk")?;
    let cpus = Cpus::start(machine, &loader)?;
    flash::show(machine, &iommus, flash, &cpus)?;

    // Nothing is asked of the units from here on: QEMU has seen as many.
    commands::Commands::of(&iommus).print("in all");
    Ok(())
}
