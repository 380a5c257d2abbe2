//! `refused FUNCTION BESIDE WITHOUT`: requests that the kernel refuses, and the remedies that the
//! library names.
//!
//! For a guest, as root: FUNCTION has no driver, BESIDE shares its group with a function that a driver of the
//! kernel's has, WITHOUT is behind no IOMMU. Each error has to be the right one, and name the remedy; the refused
//! object can be had afterwards, and no memory is left locked.
#![allow(missing_docs)]

use std::fmt::Display;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use portolan::addr::PciFunction;
use portolan::dma::{Constraints, Device, DmaSpace, FromDevice, MapError, SpaceOptions};
use portolan::iommu::{DomainError, IommuError};
use portolan_linux::Refusal;
use portolan_linux::memory::{Pages, Process};
use portolan_linux::vfio::{self, Interface, OpenError, Opened, Step};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// User without any rights of its own.
const NOBODY: u32 = 65534;
/// Bytes that a process without privileges may lock.
const LOCKED: u64 = 64 << 10;
const ENTRIES: &str = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["--nobody", function] => no_permission(function.parse()?),
        ["--small", function] => small_limit(function.parse()?),
        [function, beside, without] => {
            refused(function.parse()?, beside.parse()?, without.parse()?)?;
            println!("refused: all that had to be");
            Ok(())
        }
        _ => bail!("usage: refused FUNCTION BESIDE WITHOUT"),
    }
}

fn open(function: PciFunction) -> Result<Opened, OpenError> {
    vfio::open_by(Interface::Type1, &[function])
}

/// Checks that the message of `error` has each of `wanted`.
fn said(error: &impl Display, wanted: &[&str]) -> Result<()> {
    let text = error.to_string();
    println!("refused: {text}");
    for part in wanted {
        ensure!(text.contains(part), "it does not say {part:?}: {text}");
    }
    Ok(())
}

/// Checks that a function cannot be opened; returns the error.
fn not_opened(function: PciFunction) -> Result<OpenError> {
    match open(function) {
        Ok(_) => bail!("{function} was opened"),
        Err(error) => Ok(error),
    }
}

fn group(function: PciFunction) -> Result<u32> {
    let link = std::fs::read_link(format!("/sys/bus/pci/devices/{function}/iommu_group"))?;
    let name = link.file_name().and_then(|name| name.to_str());
    Ok(name.context("no group")?.parse()?)
}

fn refused(function: PciFunction, beside: PciFunction, without: PciFunction) -> Result<()> {
    let none = PciFunction::of(0, 0x1e, 7);
    let error = not_opened(none)?;
    ensure!(error == OpenError::NoSuchDevice { device: none.into() });
    said(&error, &["lspci -D"])?;
    let error = not_opened(without)?;
    ensure!(error == OpenError::NoIommu { device: without.into() });
    said(&error, &["intel_iommu=on"])?;

    let number = group(function)?;
    vfio::unbind(function)?;
    let error = not_opened(function)?;
    ensure!(error == OpenError::NotBound { device: function.into(), group: number });
    said(&error, &["driver_override", "drivers_probe"])?;
    vfio::bind(function)?;
    let (node, away) = ("/dev/vfio/vfio", "/dev/vfio/away");
    std::fs::rename(node, away)?;
    let error = not_opened(function);
    std::fs::rename(away, node)?;
    let error = error?;
    ensure!(error == OpenError::NoVfio);
    said(&error, &["modprobe vfio-pci"])?;

    let opened = open(function)?;
    let error = not_opened(function)?;
    ensure!(error == OpenError::Busy { group: number });
    said(&error, &["in use", "fuser"])?;
    drop(opened);
    drop(open(function)?);

    vfio::bind(beside)?;
    let error = not_opened(beside)?;
    let group = group(beside)?;
    ensure!(error == OpenError::NotViable { group });
    said(&error, &["Bind all of"])?;

    let program = std::env::current_exe()?;
    for (word, owner) in [("--nobody", 0), ("--small", NOBODY)] {
        chown(format!("/dev/vfio/{number}"), Some(owner), None)?;
        let mut child = Command::new(&program);
        child.args([word, &function.to_string()]);
        let status = child.uid(NOBODY).gid(NOBODY).status()?;
        ensure!(status.success(), "{word}: {status}");
    }
    few_entries(function)
}

/// As a user that does not own the group's node.
fn no_permission(function: PciFunction) -> Result<()> {
    let (group, step) = (group(function)?, Step::Group);
    let error = not_opened(function)?;
    ensure!(error == OpenError::NoPermission { group: Some(group), step });
    said(&error, &["chown"])
}

/// The first function of `opened`, with a space of its own.
fn device(opened: &Opened) -> Result<Device<Process>> {
    let stream = opened.devices.first().context("no device")?.stream();
    let space = DmaSpace::new(opened.unit.new_domain(), Process, &SpaceOptions::default())?;
    Ok(Device::translated(Arc::new(space), stream, Constraints::trusted())?)
}

/// Checks that the kernel refuses a mapping of `bytes` bytes; returns the reason.
fn not_mapped(device: &Device<Process>, bytes: usize) -> Result<Refusal> {
    let pages = Pages::new(bytes).context("no memory")?;
    match device.map(pages, FromDevice) {
        Ok(_) => bail!("{bytes} bytes were mapped"),
        Err(failed) => match failed.error {
            MapError::Domain(DomainError::Iommu(error)) | MapError::Iommu(error) => refusal(error),
            other => bail!("{bytes} bytes were refused: {other}"),
        },
    }
}

fn refusal(error: IommuError) -> Result<Refusal> {
    Refusal::of(error).with_context(|| format!("not a refusal of the kernel's: {error}"))
}

/// KiB that the kernel counts as locked for this process.
fn locked() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let line = line.context("no VmLck")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// More than RLIMIT_MEMLOCK is refused, less is not, and nothing stays locked.
fn small_limit(function: PciFunction) -> Result<()> {
    let mut limit: Rlimit = getrlimit(Resource::Memlock);
    limit.current = Some(LOCKED);
    setrlimit(Resource::Memlock, limit)?;
    let opened = open(function)?;
    let device = device(&opened)?;
    let small = Pages::new(LOCKED as usize / 4).context("no memory")?;
    let mapped = device.map(small, FromDevice).map_err(|failed| failed.error)?;
    let before = locked()?;
    let refused = not_mapped(&device, LOCKED as usize)?;
    ensure!(refused == Refusal::LockedMemory { limit: LOCKED }, "{refused:?}");
    said(&refused, &["RLIMIT_MEMLOCK", "ulimit -l"])?;
    ensure!(locked()? == before && before > 0, "what was refused is locked");
    mapped.unmap().map_err(|failed| failed.error)?;
    ensure!(locked()? == 0, "what was unmapped is locked");
    Ok(())
}

/// As many mappings as the container may have, and no more.
fn few_entries(function: PciFunction) -> Result<()> {
    let before = std::fs::read_to_string(ENTRIES)?;
    std::fs::write(ENTRIES, "2")?;
    let opened = open(function);
    std::fs::write(ENTRIES, before.trim())?;
    let opened = opened?;
    let device = device(&opened)?;
    let mut mapped = Vec::new();
    for _ in 0..2 {
        let page = Pages::new(4096).context("no memory")?;
        let page = device.map(page, FromDevice).map_err(|failed| failed.error)?;
        mapped.push(page);
    }
    let refused = not_mapped(&device, 4096)?;
    ensure!(refused == Refusal::Entries, "{refused:?}");
    said(&refused, &["dma_entry_limit"])?;
    for one in mapped {
        one.unmap().map_err(|failed| failed.error)?;
    }
    Ok(())
}
