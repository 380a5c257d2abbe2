//! The device in another monitor's machine: QEMU passes it through behind its own VT-d, and behind the virtio-iommu of
//! this project in another process. Drivers are this project's.
//!
//! It needs a QEMU with `vfio-user-pci`, 10.1 or newer; with an older one the test prints SKIP.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, Iommu as _};
use portolan::platform::{Mmio, UnitParts};
use portolan::table::Access;
use portolan_hw::virtio::{self, Viommu};
use portolan_hw::vtd;
use portolan_monitor::edu;
use portolan_qemu::config::{self, Architecture, Vtd, VtdFeature, VtdWidth};
use portolan_qemu::machine::{self, Builder, Machine, Version};
use portolan_qemu::mmio::{HostClock, Registers};
use portolan_qemu::pci::Pci;
use portolan_qemu::viommu::PciTransport;

#[path = "../../../crates/portolan/tests/support/promised.rs"]
mod promised;
use promised::{all_memory, promised};

const PAGE: u64 = 4096;
const VFIO_USER: Version = Version { major: 10, minor: 1 };
const AT: u64 = 0x4000_0000;

/// A process of the program, which ends with this one.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts it, and waits until it listens.
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan-monitor"));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "listening\n");
        Self(child)
    }
}

/// Tells if QEMU has `vfio-user-pci`.
fn is_there() -> bool {
    let reason = match machine::version(Architecture::X86) {
        Ok(found) if found >= VFIO_USER => return true,
        Ok(found) => format!("QEMU {}.{} has no vfio-user-pci", found.major, found.minor),
        Err(error) => error.skip().unwrap_or_else(|| panic!("{error}")),
    };
    // Not by a macro, whose lines are kept back when a test passes.
    let _ = writeln!(std::io::stderr(), "SKIP: {reason}");
    false
}

/// A machine with the device at `socket`.
fn start(builder: Builder, socket: &str) -> Machine {
    let socket = format!("{{\"type\":\"unix\",\"path\":\"{socket}\"}}");
    let device = format!("{{\"driver\":\"vfio-user-pci\",\"addr\":\"8\",\"socket\":{socket}}}");
    builder.argument("-device").argument(&device).start().unwrap()
}

/// A machine, its device and a page.
struct Rig {
    machine: Machine,
    pci: Pci,
    registers: Registers,
    stream: StreamId,
}

impl Rig {
    fn new(machine: Machine) -> Self {
        let pci = machine.pci().unwrap();
        let function = pci.first(0x1234, 0x11e8).unwrap();
        function.enable().unwrap();
        let registers = function.bar(0).unwrap();
        assert_eq!(u64::from(registers.read32(0)), edu::IDENTIFICATION);
        let stream = function.stream();
        Self { machine, pci, registers, stream }
    }

    fn page(&self) -> PhysAddr {
        self.machine.tables().alloc(PageSize::SIZE_4K).unwrap()
    }

    /// Has the device copy 8 bytes; returns which of the two accesses were refused.
    fn copy(&self, from: u64, to: u64) -> [bool; 2] {
        let transfers =
            [(from, edu::BUFFER, edu::RUN), (edu::BUFFER, to, edu::RUN | edu::TO_MEMORY)];
        transfers.map(|(from, to, command)| {
            let before = self.registers.read32(edu::REFUSED as usize);
            let registers = [edu::FROM, edu::TO, edu::COUNT, edu::COMMAND];
            for (register, value) in registers.into_iter().zip([from, to, 8, command]) {
                self.registers.write64(register as usize, value);
            }
            self.registers.read32(edu::REFUSED as usize) != before
        })
    }
}

/// The device copies what is mapped for it, and no more.
fn copies<D: Domain>(rig: &Rig, unit: &impl Attach<D>, domain: &Arc<D>) {
    let [source, target] = [(); 2].map(|()| rig.page());
    let ram = rig.machine.ram();
    ram.write64(source, 0x0123_4567_89ab_cdef).unwrap();
    // The unit translates, and nothing is mapped.
    assert_eq!(rig.copy(source.get(), target.get()), [true; 2]);
    unit.attach(rig.stream, domain).unwrap();
    let access = [Access::READ, Access::READ | Access::WRITE];
    for (number, (page, access)) in [source, target].into_iter().zip(access).enumerate() {
        let (mut owed, at) = (Gather::new(), Iova::new(AT + number as u64 * PAGE));
        domain.map(at, promised(page, PAGE), access, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
    }
    assert_eq!(rig.copy(AT, AT + PAGE), [false; 2]);
    assert_eq!(ram.read64(target), Ok(0x0123_4567_89ab_cdef));
    assert_eq!(rig.copy(AT, AT), [false, true], "memory that is only read");
    assert_eq!(rig.copy(AT, AT + 2 * PAGE), [false, true], "what is not mapped");
    let (mut owed, range) = (Gather::new(), IovaRange::from_len(Iova::new(AT), PAGE).unwrap());
    domain.unmap(range, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(rig.copy(AT, AT + PAGE), [true, false], "what was unmapped");
    unit.block(rig.stream).unwrap();
    assert_eq!(rig.copy(AT, AT + PAGE), [true; 2]);
}

#[test]
fn a_device_is_passed_through_behind_qemu_s_unit() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("device");
    let socket = socket.to_str().unwrap();
    let _device = Process::start(&["device", socket]);
    // Without caching mode QEMU hears of no mapping, and passes nothing through.
    let vtd = Vtd::new(VtdWidth::Bits48).with(VtdFeature::CachingMode);
    let rig =
        Rig::new(start(Builder::new(Architecture::X86).iommu(config::Iommu::Vtd(vtd)), socket));
    let registers = rig.machine.iommu_registers().unwrap();
    let tables = rig.machine.tables().clone();
    let parts = UnitParts::new(HostClock::new());
    let unit = vtd::Vtd::enable(registers, tables, parts, vtd::Config::default()).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    copies(&rig, &unit, &domain);
}

#[test]
fn qemu_s_device_is_passed_through_behind_the_virtio_iommu_of_another_process() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sockets = ["viommu", "device", "behind"].map(|name| folder.path().join(name));
    let [viommu, device, behind] = sockets.each_ref().map(|socket| socket.to_str().unwrap());
    let _device = Process::start(&["device", behind]);
    // Slot 8 of the bus.
    let _viommu = Process::start(&["behind", viommu, device, behind, "64"]);
    let arguments = [
        "-chardev".to_owned(),
        format!("socket,id=viommu,path={viommu}"),
        "-device".to_owned(),
        "vhost-user-test-device-pci,chardev=viommu,virtio-id=23,num_vqs=2,config_size=40"
            .to_owned(),
    ];
    let builder = Builder::new(Architecture::X86).running();
    let builder = arguments.iter().fold(builder, |builder, argument| builder.argument(argument));
    let rig = Rig::new(start(builder, device));
    assert_eq!(rig.stream, StreamId::new(64));
    let transport = PciTransport::start(&rig.machine, &rig.pci).unwrap();
    let unit = Viommu::start(transport, HostClock::new(), virtio::Config::default()).unwrap();
    copies(&rig, &unit, &unit.domain().unwrap());
    unit.pass_through(rig.stream, all_memory()).unwrap();
    let [source, target] = [(); 2].map(|()| rig.page().get());
    assert_eq!(rig.copy(source, target), [false; 2]);
}
