//! Parts of a machine, as QEMU's arguments.
//!
//! Three machines: q35 (x86), virt (aarch64) and virt (riscv64). The CPU never runs and there is no
//! firmware.

use portolan::addr::{PhysAddr, PhysRange};

/// Slot of the first device on the root bus; the ones below are for the IOMMU.
const FIRST_SLOT: u8 = 4;

/// The machine's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// q35.
    X86,
    /// virt.
    Aarch64,
    /// virt of RISC-V.
    Riscv64,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::X86, Self::Aarch64, Self::Riscv64];

    /// The program, and the environment variable that names another one.
    pub const fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::X86 => ("qemu-system-x86_64", "PORTOLAN_QEMU_X86"),
            Self::Aarch64 => ("qemu-system-aarch64", "PORTOLAN_QEMU_ARM"),
            Self::Riscv64 => ("qemu-system-riscv64", "PORTOLAN_QEMU_RISCV"),
        }
    }

    /// Guest-physical address of the first byte of RAM.
    pub const fn ram_base(self) -> PhysAddr {
        match self {
            Self::X86 => PhysAddr::new(0),
            Self::Aarch64 => PhysAddr::new(0x4000_0000),
            Self::Riscv64 => PhysAddr::new(0x8000_0000),
        }
    }

    /// RAM that nothing else uses: above x86's first MiB, and above the device tree of Arm's virt.
    pub(crate) const fn free_ram(self) -> Option<PhysRange> {
        let skipped = match self {
            Self::X86 => 0x10_0000,
            Self::Aarch64 | Self::Riscv64 => 0x20_0000,
        };
        let start = PhysAddr::new(self.ram_base().get() + skipped);
        PhysRange::new(start, PhysAddr::new(u64::MAX))
    }
}

/// Width of the addresses that VT-d translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VtdWidth {
    /// 39 bits: three levels.
    Bits39,
    /// 48 bits: three and four levels.
    Bits48,
}

/// Optional feature of QEMU's VT-d.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VtdFeature {
    /// CAP.CM.
    CachingMode,
    /// Scalable mode, second level.
    Scalable,
    /// Scalable mode, first level instead of second. From QEMU 10.0 on.
    FirstLevel,
    /// ECAP.DT.
    DeviceIotlb,
    /// Interrupt remapping.
    InterruptRemapping,
}

/// QEMU's VT-d.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Vtd {
    width: VtdWidth,
    features: Vec<VtdFeature>,
}

impl Vtd {
    /// Legacy mode and nothing else.
    pub const fn new(width: VtdWidth) -> Self {
        let features = Vec::new();
        Self { width, features }
    }

    /// Adds a feature.
    #[must_use]
    pub fn with(mut self, feature: VtdFeature) -> Self {
        self.features.push(feature);
        self
    }

    /// Tells if it has a feature.
    pub fn has(&self, feature: VtdFeature) -> bool {
        self.features.contains(&feature)
    }

    fn argument(&self) -> String {
        let bits = match self.width {
            VtdWidth::Bits39 => 39,
            VtdWidth::Bits48 => 48,
        };
        let mut text = format!("intel-iommu,aw-bits={bits}");
        let switch = |feature| if self.has(feature) { "on" } else { "off" };
        text += &format!(",caching-mode={}", switch(VtdFeature::CachingMode));
        text += &format!(",device-iotlb={}", switch(VtdFeature::DeviceIotlb));
        text += &format!(",intremap={}", switch(VtdFeature::InterruptRemapping));
        if self.has(VtdFeature::Scalable) || self.has(VtdFeature::FirstLevel) {
            text += ",x-scalable-mode=on";
        }
        if self.has(VtdFeature::FirstLevel) {
            text += ",x-flts=on";
        }
        text
    }
}

/// The machine's IOMMU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Iommu {
    /// No IOMMU: devices reach all memory.
    None,
    /// Intel VT-d; x86 only.
    Vtd(Vtd),
    /// Arm SMMUv3; aarch64 only. Stage 1, and from QEMU 10.0 on stage 2.
    Smmuv3,
    /// virtio-iommu over PCI, in slot 1; both machines.
    Virtio,
    /// AMD-Vi; x86 only.
    Amd,
    /// The same with interrupts for CPUs with identifiers of 32 bits, from QEMU 10.0 on.
    AmdX2Apic,
    /// The RISC-V IOMMU as a platform device; riscv64 only, from QEMU 10.0 on.
    Riscv,
    /// RISC-V IOMMU as a PCI function in slot 1; its first BAR has the registers.
    RiscvPci,
}

impl Iommu {
    /// Base and size of its registers in bytes, if they are at a fixed address.
    ///
    /// QEMU's SMMUv3 gives zero for a read of eight bytes at a pair of registers of four, as the
    /// identification registers are; VT-d gives zero for reads of one and two bytes.
    pub const fn registers(&self) -> Option<(u64, u64)> {
        match self {
            Self::None | Self::Virtio | Self::RiscvPci => None,
            Self::Vtd(_) => Some((0xfed9_0000, 0x1000)),
            Self::Smmuv3 => Some((0x0905_0000, 0x2_0000)),
            Self::Amd | Self::AmdX2Apic => Some((0xfed8_0000, 0x4000)),
            Self::Riscv => Some((0x0301_0000, 0x1000)),
        }
    }

    /// Tells if the machine can have it.
    pub const fn fits(&self, architecture: Architecture) -> bool {
        match self {
            Self::None | Self::Virtio => true,
            Self::Vtd(_) | Self::Amd | Self::AmdX2Apic => matches!(architecture, Architecture::X86),
            Self::Smmuv3 => matches!(architecture, Architecture::Aarch64),
            Self::Riscv | Self::RiscvPci => matches!(architecture, Architecture::Riscv64),
        }
    }

    fn machine_option(&self) -> &'static str {
        match self {
            Self::Smmuv3 => ",iommu=smmuv3",
            Self::Riscv => ",iommu-sys=on",
            _ => "",
        }
    }

    fn device(&self) -> Option<String> {
        match self {
            Self::None | Self::Smmuv3 | Self::Riscv => None,
            Self::Vtd(vtd) => Some(vtd.argument()),
            Self::Virtio => Some("virtio-iommu-pci,addr=01.0,disable-legacy=on".to_owned()),
            // With pt=on, the default, QEMU 10 lets all DMA pass by.
            Self::Amd => Some("amd-iommu,pt=off,intremap=on".to_owned()),
            Self::AmdX2Apic => Some("amd-iommu,pt=off,intremap=on,xtsup=on".to_owned()),
            Self::RiscvPci => Some("riscv-iommu-pci,addr=01.0".to_owned()),
        }
    }

    /// Traces that count its commands and faults.
    pub(crate) fn traces(&self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Vtd(_) => &["vtd_inv_desc*", "vtd_dmar_fault", "vtd_irq_generate"],
            Self::Smmuv3 => &["smmuv3_cmdq_opcode", "smmuv3_*range_inval", "smmuv3_record_event"],
            Self::Virtio => &[
                "virtio_iommu_attach",
                "virtio_iommu_detach",
                "virtio_iommu_map",
                "virtio_iommu_unmap",
                "virtio_iommu_report_fault",
            ],
            Self::Amd | Self::AmdX2Apic => &[
                "amdvi_*_inval",
                "amdvi_completion_wait",
                "amdvi_prefetch_pages",
                "amdvi_ppr_exec",
                "amdvi_page_fault",
                "amdvi_command_error",
            ],
            Self::Riscv | Self::RiscvPci => &["riscv_iommu_cmd", "riscv_iommu_flt"],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceKind {
    Edu,
    Nvme(u64),
    VirtioBlk(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceBus {
    RootBus,
    RootPort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ats {
    Absent,
    Present,
}

/// A device that does DMA. Devices take the slots of the root bus from 4 on, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    kind: DeviceKind,
    place: DeviceBus,
    ats: Ats,
}

impl Device {
    const fn of(kind: DeviceKind) -> Self {
        let (place, ats) = (DeviceBus::RootBus, Ats::Absent);
        Self { kind, place, ats }
    }

    /// QEMU's educational device, with a 64-bit DMA mask.
    pub const fn edu() -> Self {
        Self::of(DeviceKind::Edu)
    }

    /// An NVMe controller with one namespace of `bytes` bytes.
    pub const fn nvme(bytes: u64) -> Self {
        Self::of(DeviceKind::Nvme(bytes))
    }

    /// A modern virtio block device of `bytes` bytes that obeys the IOMMU.
    pub const fn virtio_blk(bytes: u64) -> Self {
        Self::of(DeviceKind::VirtioBlk(bytes))
    }

    /// Puts the device behind a root port, which has the slot instead.
    #[must_use]
    pub const fn behind_port(mut self) -> Self {
        self.place = DeviceBus::RootPort;
        self
    }

    /// Adds the ATS capability, which only a virtio device behind a port can show.
    #[must_use]
    pub const fn with_ats(mut self) -> Self {
        self.ats = Ats::Present;
        self
    }

    /// Size of its disk in bytes, if it has one.
    pub const fn disk_bytes(&self) -> Option<u64> {
        match self.kind {
            DeviceKind::Edu => None,
            DeviceKind::Nvme(bytes) | DeviceKind::VirtioBlk(bytes) => Some(bytes),
        }
    }

    /// Arguments of device number `index`, whose disk is the inherited descriptor `disk`.
    fn arguments(&self, index: u8, disk: Option<i32>) -> Vec<String> {
        let slot = FIRST_SLOT.saturating_add(index);
        let mut arguments = Vec::new();
        let mut push = |name: &str, value: String| {
            arguments.push(name.to_owned());
            arguments.push(value);
        };
        if let Some(disk) = disk {
            let file = format!("if=none,format=raw,id=disk{index},file=/proc/self/fd/{disk}");
            push("-drive", format!("{file},file.locking=off"));
        }
        let at = match self.place {
            DeviceBus::RootBus => format!("addr={slot:02x}.0"),
            DeviceBus::RootPort => {
                let port = format!("pcie-root-port,id=port{index},addr={slot:02x}.0");
                push("-device", format!("{port},chassis={slot},slot={slot}"));
                format!("bus=port{index},addr=00.0")
            }
        };
        let mut device = match self.kind {
            DeviceKind::Edu => "edu,dma_mask=0xffffffffffffffff".to_owned(),
            DeviceKind::Nvme(_) => format!("nvme,drive=disk{index},serial=disk{index}"),
            DeviceKind::VirtioBlk(_) => {
                format!("virtio-blk-pci,drive=disk{index},disable-legacy=on,iommu_platform=on")
            }
        };
        if self.ats == Ats::Present {
            device += ",ats=on";
        }
        push("-device", format!("{device},{at}"));
        arguments
    }
}

/// Descriptors that QEMU inherits, by number.
pub(crate) struct Inherited {
    pub(crate) ram: i32,
    pub(crate) qtest: i32,
    pub(crate) trace: i32,
    /// Descriptor of each device's disk, in order.
    pub(crate) disks: Vec<i32>,
}

/// Options of a machine to build; see [`crate::machine::Builder`].
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) architecture: Architecture,
    pub(crate) iommu: Iommu,
    pub(crate) memory_mib: u32,
    pub(crate) devices: Vec<Device>,
    pub(crate) traces: Vec<String>,
    pub(crate) extra: Vec<String>,
    /// Set if the machine runs, without its CPUs.
    pub(crate) runs: bool,
}

impl Config {
    pub(crate) fn arguments(&self, fds: &Inherited) -> Vec<String> {
        let machine = match self.architecture {
            Architecture::X86 => "q35",
            Architecture::Aarch64 | Architecture::Riscv64 => "virt",
        };
        let quiet = "-nodefaults -display none -vga none -serial none -monitor none -nic none";
        let mut arguments: Vec<String> = quiet.split(' ').map(str::to_owned).collect();
        let mut push = |name: &str, value: String| {
            arguments.push(name.to_owned());
            arguments.push(value);
        };
        let (mib, ram, qtest) = (self.memory_mib, fds.ram, fds.qtest);
        // Back-ends of vhost-user work for machines that run; with this accelerator the CPUs stand still all the same.
        let accelerator = if self.runs { "qtest" } else { "tcg" };
        push("-accel", accelerator.to_owned());
        push("-m", format!("{mib}M"));
        let option = self.iommu.machine_option();
        push("-M", format!("{machine},memory-backend=ram{option}"));
        let backend = format!("memory-backend-file,id=ram,size={mib}M,share=on");
        push("-object", format!("{backend},mem-path=/proc/self/fd/{ram}"));
        push("-chardev", format!("socket,id=qtest,fd={qtest}"));
        push("-object", "qtest,id=server,chardev=qtest,log=none".to_owned());
        push("-D", format!("/proc/self/fd/{}", fds.trace));
        if self.architecture == Architecture::Aarch64 {
            push("-cpu", "cortex-a57".to_owned());
        }
        if self.architecture == Architecture::Riscv64 {
            push("-bios", "none".to_owned());
        }
        if let Some(device) = self.iommu.device() {
            push("-device", device);
        }
        let default = self.iommu.traces().iter().map(|pattern| (*pattern).to_owned());
        for pattern in default.chain(self.traces.iter().cloned()) {
            push("-trace", format!("enable={pattern}"));
        }
        if !self.runs {
            arguments.push("-S".to_owned());
        }
        let mut disks = fds.disks.iter().copied();
        for (index, device) in (0u8..).zip(&self.devices) {
            let disk = device.disk_bytes().and_then(|_| disks.next());
            arguments.extend(device.arguments(index, disk));
        }
        arguments.extend(self.extra.iter().cloned());
        arguments
    }
}
