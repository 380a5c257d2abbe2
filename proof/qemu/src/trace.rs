//! QEMU's own account: its trace lines, counted by kind.
//!
//! A line is there when the answer to the command that caused it is. Counts are keyed by the name
//! of the event; the events that stand for commands of several kinds are keyed by name and kind,
//! as in `vtd_inv_desc iotlb` and `smmuv3_cmdq_opcode SMMU_CMD_SYNC`. The enums name the keys. Of a
//! command of the RISC-V IOMMU the kind is its opcode and function, as in `riscv_iommu_cmd 3.1`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of trace that are read at once.
const PIECE: usize = 1 << 16;

/// A place in the trace, to count from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// The trace of one machine. It outlives QEMU.
#[derive(Debug)]
pub struct Trace {
    file: File,
}

impl Trace {
    pub(crate) fn new(file: File) -> Self {
        Self { file }
    }

    /// The place after all lines so far.
    ///
    /// # Errors
    /// The system's.
    pub fn mark(&self) -> io::Result<Mark> {
        Ok(Mark(self.file.metadata()?.len()))
    }

    /// The complete lines after `from`, oldest first.
    ///
    /// # Errors
    /// The system's.
    pub fn lines_since(&self, from: Mark) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        self.each_line(from, |line| lines.push(line.to_owned()))?;
        Ok(lines)
    }

    /// Events after `from` by kind.
    ///
    /// # Errors
    /// The system's.
    pub fn counts_since(&self, from: Mark) -> io::Result<Counts> {
        let mut counts = Counts::default();
        self.each_line(from, |line| counts.add(line))?;
        Ok(counts)
    }

    /// Counts all events by kind.
    ///
    /// # Errors
    /// The system's.
    pub fn counts(&self) -> io::Result<Counts> {
        self.counts_since(Mark::default())
    }

    fn each_line(&self, from: Mark, mut line: impl FnMut(&str)) -> io::Result<()> {
        // Lines that are written during the call are not awaited.
        let (mut at, end) = (from.0, self.file.metadata()?.len());
        let mut rest = Vec::new();
        let mut piece = vec![0; PIECE];
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            let count = match piece.get_mut(..wanted) {
                Some(room) => self.file.read_at(room, at)?,
                None => 0,
            };
            if count == 0 {
                break;
            }
            at += count as u64;
            rest.extend_from_slice(piece.get(..count).unwrap_or_default());
            let complete = rest.iter().rposition(|b| *b == b'\n').map_or(0, |last| last + 1);
            let text: Vec<u8> = rest.drain(..complete).collect();
            String::from_utf8_lossy(&text).lines().for_each(&mut line);
        }
        Ok(())
    }
}

/// Numbers of events by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    by_kind: BTreeMap<String, u64>,
}

impl Counts {
    /// Numbers of all kinds that occurred.
    pub fn by_kind(&self) -> &BTreeMap<String, u64> {
        &self.by_kind
    }

    /// Number of lines of the kind with this key.
    pub fn of(&self, key: &str) -> u64 {
        self.by_kind.get(key).copied().unwrap_or(0)
    }

    /// Events whose key begins with `start`.
    pub fn starting(&self, start: &str) -> u64 {
        let from = self.by_kind.range(start.to_owned()..);
        from.take_while(|(key, _)| key.starts_with(start)).map(|(_, count)| count).sum()
    }

    /// VT-d descriptors of a type.
    pub fn vtd(&self, descriptor: VtdDescriptor) -> u64 {
        self.of(descriptor.key())
    }

    /// VT-d descriptors of all types that are traced.
    pub fn vtd_descriptors(&self) -> u64 {
        self.starting("vtd_inv_desc ")
    }

    /// VT-d invalidations of a kind.
    pub fn vtd_invalidation(&self, invalidation: VtdInvalidation) -> u64 {
        self.of(invalidation.key())
    }

    /// SMMUv3 commands of a kind.
    pub fn smmu(&self, command: SmmuCommand) -> u64 {
        self.of(command.key())
    }

    /// SMMUv3 commands of all kinds.
    pub fn smmu_commands(&self) -> u64 {
        self.starting("smmuv3_cmdq_opcode ")
    }

    /// virtio-iommu requests of a kind.
    pub fn virtio(&self, request: VirtioRequest) -> u64 {
        self.of(request.key())
    }

    /// AMD-Vi commands of a kind.
    pub fn amd(&self, command: AmdCommand) -> u64 {
        self.of(command.key())
    }

    /// Commands of the RISC-V IOMMU of a kind.
    pub fn riscv(&self, command: RiscvCommand) -> u64 {
        self.of(command.key())
    }

    fn add(&mut self, line: &str) {
        let Some(key) = key_of(line) else { return };
        match self.by_kind.get_mut(&key) {
            Some(count) => *count += 1,
            None => drop(self.by_kind.insert(key, 1)),
        }
    }
}

fn key_of(line: &str) -> Option<String> {
    let mut words = line.split_ascii_whitespace();
    let first = words.next()?;
    // Some builds write the process and the time before the name.
    let name = match first.rsplit_once(':') {
        Some((stamp, name)) if stamp.contains('@') => name,
        _ => first,
    };
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !name.contains('_') || !name.chars().all(is_name) {
        return None;
    }
    let kind = match name {
        "riscv_iommu_cmd" => {
            let command = words.find_map(|word| word.strip_prefix("0x"));
            let command = u64::from_str_radix(command?, 16).ok()?;
            // RISC-V IOMMU Architecture Specification 1.0, section "Command-Queue": opcode, func3.
            return Some(format!("{name} {}.{}", command & 0x7f, command >> 7 & 7));
        }
        "vtd_inv_desc" => words.skip_while(|word| *word != "type").nth(1),
        "smmuv3_cmdq_opcode" => words.find(|word| word.starts_with("SMMU_CMD_")),
        _ => None,
    };
    Some(kind.map_or_else(|| name.to_owned(), |kind| format!("{name} {kind}")))
}

/// Declares kinds of lines: their keys behind a common beginning, and the operation that each counts.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident: $begin:literal {
        $($kind:ident = $key:literal => $what:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {$(#[doc = $what] $kind),*}

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The key under which they are counted.
            pub const fn key(self) -> &'static str {
                match self {$(Self::$kind => concat!($begin, $key),)*}
            }
        }
    };
}

kinds! {
    /// VT-d's descriptor types. QEMU does not trace those for the PASID cache.
    VtdDescriptor: "vtd_inv_desc " {
        ContextCache = "context-cache" => "Context cache.";
        Iotlb = "iotlb" => "IOTLB.";
        DeviceIotlb = "device" => "Device TLB.";
        InterruptEntry = "iec" => "Interrupt entry cache.";
        PasidIotlb = "p-iotlb" => "PASID-based IOTLB; 10.0 traces it, 7.2 does not.";
        Wait = "wait" => "Wait.";
    }
}

kinds! {
    /// Invalidations and waits of VT-d's descriptors, by granularity.
    VtdInvalidation: "vtd_inv_desc_" {
        ContextGlobal = "cc_global" => "All of the context cache.";
        ContextDomain = "cc_domain" => "The context entries of a domain.";
        ContextDevices = "cc_devices" => "The context entries of some devices.";
        IotlbGlobal = "iotlb_global" => "All of the IOTLB.";
        IotlbDomain = "iotlb_domain" => "A domain's IOTLB entries.";
        IotlbPages = "iotlb_pages" => "Pages of a domain.";
        WaitWrite = "wait_sw" => "A wait that writes to memory.";
        WaitInterrupt = "wait_irq" => "A wait that interrupts.";
    }
}

kinds! {
    /// SMMUv3's commands.
    SmmuCommand: "smmuv3_cmdq_opcode SMMU_CMD_" {
        PrefetchConfig = "PREFETCH_CONFIG" => "CMD_PREFETCH_CONFIG.";
        PrefetchAddr = "PREFETCH_ADDR" => "CMD_PREFETCH_ADDR.";
        CfgiSte = "CFGI_STE" => "CMD_CFGI_STE.";
        CfgiSteRange = "CFGI_STE_RANGE" => "CMD_CFGI_STE_RANGE, which CMD_CFGI_ALL is a case of.";
        CfgiCd = "CFGI_CD" => "CMD_CFGI_CD.";
        CfgiCdAll = "CFGI_CD_ALL" => "CMD_CFGI_CD_ALL.";
        TlbiNhAll = "TLBI_NH_ALL" => "CMD_TLBI_NH_ALL.";
        TlbiNhAsid = "TLBI_NH_ASID" => "CMD_TLBI_NH_ASID.";
        TlbiNhVa = "TLBI_NH_VA" => "CMD_TLBI_NH_VA.";
        TlbiNhVaa = "TLBI_NH_VAA" => "CMD_TLBI_NH_VAA.";
        TlbiEl2All = "TLBI_EL2_ALL" => "CMD_TLBI_EL2_ALL.";
        TlbiEl2Asid = "TLBI_EL2_ASID" => "CMD_TLBI_EL2_ASID.";
        TlbiEl2Va = "TLBI_EL2_VA" => "CMD_TLBI_EL2_VA.";
        TlbiEl2Vaa = "TLBI_EL2_VAA" => "CMD_TLBI_EL2_VAA.";
        TlbiS12Vmall = "TLBI_S12_VMALL" => "CMD_TLBI_S12_VMALL.";
        TlbiS2Ipa = "TLBI_S2_IPA" => "CMD_TLBI_S2_IPA.";
        TlbiNsnhAll = "TLBI_NSNH_ALL" => "CMD_TLBI_NSNH_ALL.";
        AtcInv = "ATC_INV" => "CMD_ATC_INV.";
        PriResp = "PRI_RESP" => "CMD_PRI_RESP.";
        Resume = "RESUME" => "CMD_RESUME.";
        StallTerm = "STALL_TERM" => "CMD_STALL_TERM.";
        Sync = "SYNC" => "CMD_SYNC.";
    }
}

kinds! {
    /// virtio-iommu's requests.
    VirtioRequest: "virtio_iommu_" {
        Attach = "attach" => "ATTACH.";
        Detach = "detach" => "DETACH.";
        Map = "map" => "MAP.";
        Unmap = "unmap" => "UNMAP.";
    }
}

kinds! {
    /// AMD-Vi's commands.
    AmdCommand: "amdvi_" {
        CompletionWait = "completion_wait" => "COMPLETION_WAIT.";
        DeviceTableEntry = "devtab_inval" => "INVALIDATE_DEVTAB_ENTRY.";
        Pages = "pages_inval" => "INVALIDATE_IOMMU_PAGES.";
        Iotlb = "iotlb_inval" => "INVALIDATE_IOTLB_PAGES.";
        InterruptTable = "intr_inval" => "INVALIDATE_INTERRUPT_TABLE.";
        Prefetch = "prefetch_pages" => "PREFETCH_IOMMU_PAGES.";
        CompletePageRequest = "ppr_exec" => "COMPLETE_PPR_REQUEST.";
        All = "all_inval" => "INVALIDATE_IOMMU_ALL.";
    }
}

kinds! {
    /// The RISC-V IOMMU's commands.
    RiscvCommand: "riscv_iommu_cmd " {
        InvalVma = "1.0" => "IOTINVAL.VMA.";
        InvalGvma = "1.1" => "IOTINVAL.GVMA.";
        Fence = "2.0" => "IOFENCE.C.";
        InvalDdt = "3.0" => "IODIR.INVAL_DDT.";
        InvalPdt = "3.1" => "IODIR.INVAL_PDT.";
        AtsInval = "4.0" => "ATS.INVAL.";
        AtsPrgr = "4.1" => "ATS.PRGR.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_kind() {
        let file = crate::process::text_file("trace").unwrap();
        let trace = Trace::new(file.try_clone().unwrap());
        file.write_all_at(b"vtd_inv_desc invalidate desc type iotlb high 0x0 low 0x12\n", 0)
            .unwrap();
        let mark = trace.mark().unwrap();
        let more = "smmuv3_cmdq_opcode <--- SMMU_CMD_SYNC\n\
            12@3.000004:vtd_inv_desc invalidate desc type wait high 0x0 low 0x5\n\
            Invalid read at addr 0x1000\n\
            vtd_inv_desc_wait_sw wait invalidate status write addr 0x1 data 0x2\n\
            riscv_iommu_cmd riscv.iommu.2: command 0x83 0x0\n\
            virtio_iommu_map domain=1";
        file.write_all_at(more.as_bytes(), mark.0).unwrap();
        let counts = trace.counts().unwrap();
        assert_eq!(counts.by_kind().len(), 5);
        assert_eq!(counts.riscv(RiscvCommand::InvalPdt), 1);
        assert_eq!(counts.vtd(VtdDescriptor::Iotlb), 1);
        assert_eq!(counts.vtd_descriptors(), 2);
        assert_eq!(counts.vtd_invalidation(VtdInvalidation::WaitWrite), 1);
        let counts = trace.counts_since(mark).unwrap();
        assert_eq!(counts.vtd_descriptors(), 1);
        assert_eq!((counts.smmu(SmmuCommand::Sync), counts.smmu_commands()), (1, 1));
        // An incomplete line is not there yet.
        assert_eq!(counts.virtio(VirtioRequest::Map), 0);
        assert_eq!(trace.lines_since(mark).unwrap().len(), 5);
    }

    #[test]
    fn long_traces_are_read_in_pieces() {
        let file = crate::process::text_file("trace").unwrap();
        file.write_all_at("amdvi_completion_wait completion\n".repeat(5000).as_bytes(), 0).unwrap();
        let counts = Trace::new(file).counts().unwrap();
        assert_eq!(counts.amd(AmdCommand::CompletionWait), 5000);
    }
}
