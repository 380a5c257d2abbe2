//! Services of the kernel's interface for this disk beside mapping: marks of the pages that it wrote, page requests,
//! PASIDs, and memory of another disk.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use portolan::addr::{Iova, IovaRange, PageSize, Pasid};
use portolan::dma::{Constraints, Device, DeviceError, Direction, DmaSpace, Mapping, SpaceOptions};
use portolan::inval::Gather;
use portolan::iommu::{Attach as _, AttachError, Domain as _, Iommu as _, IommuError};
use portolan::platform::Mmio as _;
use portolan::table::format::DirtyTracking;
use portolan_linux::UserDomain;
use portolan_linux::memory::{FilePart, Pages, Process};
use portolan_linux::vfio::{DomainOptions, Opened, VfioError};

use crate::controller::{Controller, PAGE, Transfer};
use crate::{Arguments, interfaces};

/// Pages of each kind: written by the disk, writable and left alone.
const EACH: usize = 4;

pub fn run(arguments: &Arguments) -> Result<()> {
    for opened in interfaces(arguments) {
        let opened = opened?;
        let over = opened.unit.interface();
        let (dirty, asked) = (dirty(&opened)?, asked(&opened)?);
        let mut said = format!("{over}: dirty tracking: {dirty}\n{over}: page requests: {asked}\n");
        said += &format!("{over}: PASIDs: {}\n", pasids(&opened)?);
        if arguments.with.is_some() {
            said += &format!("{over}: memory of another disk: {}\n", peer(&opened)?);
            said += &format!("{over}: one domain for two: {}\n", together(&opened)?);
        }
        portolan_cli::print(&said)?;
    }
    Ok(())
}

/// Moves the requests with a PASID to a domain, and away.
fn pasids(opened: &Opened) -> Result<String> {
    let stream = opened.devices.first().context("no device")?.stream();
    let bits = match opened.unit.hardware(stream) {
        Err(AttachError::Iommu(IommuError::Unsupported)) => return Ok("none".to_owned()),
        hardware => hardware?.pasid_bits,
    };
    if bits == 0 {
        return Ok("SKIPPED, the disk or its unit has none (out_max_pasid_log2 is 0)".to_owned());
    }
    let mut options = DomainOptions::default();
    options.pasids = true;
    let Some((domain, _device)) = attached(opened, options)? else {
        anyhow::bail!("the hardware has PASIDs, and the kernel no tables for them");
    };
    opened.unit.attach_pasid(stream, Pasid::new(7), &domain)?;
    opened.unit.block_pasid(stream, Pasid::new(7))?;
    Ok(format!("{bits} bits, one attached and taken away"))
}

/// BAR of a controller's own memory (CMB).
const CMB: u8 = 2;

/// Maps memory of the second disk for the first one, which reads a page of its own into it; returns if the second has
/// memory.
fn data(opened: &Opened, device: &Device<Process>) -> Result<bool> {
    let [first, second] = &opened.devices[..] else {
        anyhow::bail!("there are not two functions");
    };
    let buffer = match second.bar_dma_buf(CMB, FilePart { offset: 0, bytes: PAGE as u64 }) {
        Err(VfioError::NoRegion { .. }) => return Ok(false),
        buffer => buffer?,
    };
    let there = device.map(buffer, Direction::Bidirectional).map_err(|failed| failed.error)?;
    let memory = map(device, Direction::FromDevice)?;
    let mut controller = Controller::start(first.bar(0)?, device, 1, None)?;
    one(&mut controller, Transfer::Read, 1, there.iova())?;
    one(&mut controller, Transfer::Read, 1, memory.iova())?;
    controller.stop()?;
    let memory = memory.unmap().map_err(|failed| failed.error)?;
    let bar = second.bar(CMB)?;
    let words =
        memory.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    for (number, word) in words.enumerate() {
        ensure!(bar.read64(8 * number) == word, "word {number} did not arrive");
    }
    ensure!(memory.iter().any(|byte| *byte != 0), "the first disk has nothing");
    there.unmap().map_err(|failed| failed.error)?;
    Ok(true)
}

/// Maps registers of the second disk for the first one, before and after a reset.
fn peer(opened: &Opened) -> Result<String> {
    let [_, second] = &opened.devices[..] else {
        anyhow::bail!("there are not two functions");
    };
    let buffer = match second.bar_dma_buf(0, FilePart { offset: 0, bytes: PAGE as u64 }) {
        Err(VfioError::Iommu(IommuError::Unsupported)) => return Ok("none".to_owned()),
        buffer => buffer?,
    };
    let Some((_, device)) = attached(opened, DomainOptions::default())? else {
        anyhow::bail!("the function is not attached");
    };
    let before = match device.map(buffer.clone(), Direction::Bidirectional) {
        Err(failed) => return Ok(format!("refused: {}", failed.error)),
        Ok(mapping) => mapping,
    };
    second.reset()?;
    let after = device.map(buffer, Direction::Bidirectional).map_err(|failed| failed.error)?;
    for mapping in [before, after] {
        mapping.unmap().map_err(|failed| failed.error)?;
    }
    let maps = opened.unit.counts().map_file;
    let arrived = if data(opened, &device)? { "; a page read by one disk into it" } else { "" };
    Ok(format!("mapped, and mapped anew after its reset: {maps} maps by a descriptor{arrived}"))
}

/// Has two disks in one domain: the second writes the data that the first reads, from the same address.
fn together(opened: &Opened) -> Result<String> {
    let [first, second] = &opened.devices[..] else {
        anyhow::bail!("there are not two functions");
    };
    let Some((_, device)) = attached(opened, DomainOptions::default())? else {
        anyhow::bail!("the function is not attached");
    };
    let space = device.space().context("not translated")?.clone();
    let constraints = Constraints::trusted();
    let other = match Device::translated(space, second.stream(), constraints) {
        Err(DeviceError::Attach(AttachError::Mismatch)) => return Ok("no".to_owned()),
        other => other?,
    };
    let mut from = Controller::start(first.bar(0)?, &device, 1, None)?;
    let mut to = Controller::start(second.bar(0)?, &other, 1, None)?;
    let (page, back) =
        (map(&device, Direction::Bidirectional)?, map(&other, Direction::FromDevice)?);
    let at = page.iova();
    for number in 0..EACH as u64 {
        one(&mut from, Transfer::Read, number, at)?;
        one(&mut to, Transfer::Write, number, at)?;
    }
    one(&mut to, Transfer::Read, EACH as u64 - 1, back.iova())?;
    from.stop()?;
    to.stop()?;
    let took = |mapping: Mapping<Process, Pages>| mapping.unmap().map_err(|failed| failed.error);
    let (page, back) = (took(page)?, took(back)?);
    ensure!(*page == *back, "the second disk has not what the first had");
    ensure!(page.iter().any(|byte| *byte != 0), "the first disk has nothing");
    Ok(format!("{EACH} pages from disk to disk by one address"))
}

/// Makes one request, to its end.
fn one(controller: &mut Controller, way: Transfer, page: u64, at: Iova) -> Result<()> {
    controller.put(0, way, page, at);
    finish(controller, 1)
}

fn finish(controller: &mut Controller, count: usize) -> Result<()> {
    controller.ring();
    let (begin, mut done) = (Instant::now(), 0);
    while done < count {
        match controller.take()? {
            Some(_) => done += 1,
            None => controller.check(begin)?,
        }
    }
    controller.taken();
    Ok(())
}

/// The function in a domain with these options; `None` if there is none such.
fn attached(
    opened: &Opened,
    options: DomainOptions,
) -> Result<Option<(Arc<UserDomain>, Device<Process>)>> {
    let domain = opened.unit.domain_with(options)?;
    let bound = opened.unit.bind(domain.clone());
    let space = DmaSpace::new(bound, Process, &SpaceOptions::default())?;
    let stream = opened.devices.first().context("no device")?.stream();
    let mut constraints = Constraints::trusted();
    constraints.min_align_mask = PageSize::SIZE_4K;
    match Device::translated(Arc::new(space), stream, constraints) {
        Ok(device) => Ok(Some((domain, device))),
        Err(DeviceError::Attach(AttachError::Iommu(IommuError::Unsupported))) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn asked(opened: &Opened) -> Result<&'static str> {
    let mut options = DomainOptions::default();
    options.faults = match opened.unit.fault_queue() {
        Ok(queue) => Some(queue),
        Err(IommuError::Unsupported) => return Ok("none"),
        Err(error) => return Err(error.into()),
    };
    Ok(match attached(opened, options)? {
        Some(_) => "by a queue",
        None => "a queue, and no tables for this disk",
    })
}

fn map(device: &Device<Process>, way: Direction) -> Result<Mapping<Process, Pages>> {
    let page = Pages::new(PAGE).context("no memory")?;
    Ok(device.map(page, way).map_err(|failed| failed.error)?)
}

fn dirty(opened: &Opened) -> Result<String> {
    let mut options = DomainOptions::default();
    options.dirty = DirtyTracking::Hardware;
    let Some((domain, device)) = attached(opened, options)? else {
        return Ok("none: the IOMMU keeps no marks".to_owned());
    };
    let bar = opened.devices.first().context("no device")?.bar(0)?;
    let mut controller = Controller::start(bar, &device, EACH as u16, None)?;
    let many = |way| (0..EACH).map(|_| map(&device, way)).collect::<Result<Vec<_>>>();
    let (written, alone) = (many(Direction::FromDevice)?, many(Direction::FromDevice)?);
    let sent = many(Direction::ToDevice)?;
    marks(&domain)?;
    for (number, page) in written.iter().enumerate() {
        controller.put(number as u16, Transfer::Read, number as u64, page.iova());
    }
    finish(&mut controller, EACH)?;
    let marks = marks(&domain)?;
    controller.stop()?;
    let marked = |pages: &[Mapping<Process, Pages>]| -> usize {
        let is_marked = |at: Iova| marks.iter().any(|range| range.contains(at));
        pages.iter().filter(|page| is_marked(page.iova())).count()
    };
    let (written, alone, sent) = (marked(&written), marked(&alone), marked(&sent));
    ensure!(
        written == EACH && sent == 0,
        "{written} of {EACH} pages are marked, {sent} that are sent"
    );
    Ok(format!(
        "marks on {written} of {EACH} pages that the disk wrote, and on {alone} of {EACH} that it did not"
    ))
}

fn marks(domain: &UserDomain) -> Result<Vec<IovaRange>> {
    let (mut marks, mut owed) = (Vec::new(), Gather::new());
    domain.read_and_clear_dirty(domain.input_range(), &mut owed, &mut |range| marks.push(range))?;
    Ok(marks)
}
