//! Traces that are made up: so many operations of one kind.

use std::fmt::Write as _;

pub const DISK: &str = "0000:00:01.0";

/// Commands that a kernel queues: by page, by domain, for a device's TLB.
const PAGE: &str = "qi_submit: iotlb_inv dmar0: 0x300f2 0xbcd00040 0x0 0x0";
const DOMAIN: &str = "qi_submit: iotlb_inv dmar0: 0x300e2 0x0 0x0 0x0";
const DEVICE: &str = "qi_submit: dev_tlb_inv dmar0: 0x10000000003 0xfff48000 0x0 0x0";
const REFUSED: &str = " x-1 [000] d. 0.5: dma_map_page: nic dir=TO_DEVICE \
    dma_addr=ffffffffffffffff size=4096 phys_addr=1000 attrs=\n";

/// Commands that the kernel queues at each operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Queues {
    Nothing,
    /// Invalidates at each unmap, by page.
    Strict,
    /// Invalidates a device TLB as well.
    StrictAts,
    /// Invalidates at each map as well.
    Shadowed,
    /// Invalidates once for a hundred unmaps.
    Lazy,
}

/// A trace of `count` maps and unmaps.
#[derive(Clone)]
pub struct Load {
    pub facts: String,
    pub devices: &'static [&'static str],
    pub count: u64,
    pub bytes: u64,
    pub direction: &'static str,
    /// Number of buffers used in rotation, and pieces of each list; 0 for no list.
    pub buffers: u64,
    pub pieces: u64,
    pub queues: Queues,
    /// Index of the first operation with DMA addresses above 4 GiB.
    pub high_from: u64,
    /// End of the event of a bounce, if there are bounces.
    pub bounce: Option<&'static str>,
    /// A map that the kernel refuses.
    pub fails: bool,
}

impl Load {
    pub fn new() -> Self {
        Self {
            facts: String::new(),
            devices: &[DISK],
            count: 300,
            bytes: 4096,
            direction: "FROM_DEVICE",
            buffers: 300,
            pieces: 0,
            queues: Queues::Strict,
            high_from: u64::MAX,
            bounce: None,
            fails: false,
        }
    }

    /// Adds facts, as JSON without its braces.
    pub fn facts(mut self, facts: &str) -> Self {
        self.facts = format!("# portolan-facts: {{{facts}}}\n");
        self
    }

    pub fn trace(&self) -> String {
        let mut out = format!("{}# tracer: nop\n", self.facts);
        if self.fails {
            out.push_str(REFUSED);
        }
        for n in 0..self.count {
            self.operation(&mut out, n);
        }
        out
    }

    fn operation(&self, out: &mut String, n: u64) {
        let [map, unmap] = self.map_and_unmap(n);
        let mut events = Vec::new();
        if let Some(end) = self.bounce {
            let device = self.device(n);
            let (pa, bytes) = (self.pa(n), self.bytes);
            let mask = "dma_mask=ffffffff";
            events.push(format!(
                "swiotlb_bounced: dev_name: {device} {mask} dev_addr={pa:x} size={bytes}{end}"
            ));
        }
        if self.queues == Queues::Shadowed {
            let after = "dmar0 dmar0[0] type iotlb did 3 [0x0-0xfff] addr 0x0 pages 0x1 mask 0x0";
            events.push(format!("cache_tag_flush_range_np: {after}"));
            events.push(PAGE.to_owned());
        }
        events.push(map);
        match self.queues {
            Queues::Nothing => {}
            Queues::Lazy if n % 100 == 99 => events.push(DOMAIN.to_owned()),
            Queues::Lazy => {}
            Queues::Strict | Queues::Shadowed => events.push(PAGE.to_owned()),
            Queues::StrictAts => events.extend([PAGE.to_owned(), DEVICE.to_owned()]),
        }
        events.push(unmap);
        for (event, step) in events.iter().zip(0..) {
            let us = 1_000_000 + n * 10 + step;
            let (s, us, cpu) = (us / 1_000_000, us % 1_000_000, n % 2);
            writeln!(out, " x-1 [{cpu:03}] d. {s}.{us:06}: {event}").unwrap();
        }
    }

    fn device(&self, n: u64) -> &'static str {
        self.devices[n as usize % self.devices.len()]
    }

    fn pa(&self, n: u64) -> u64 {
        0x1000_0000 + (n % self.buffers) * self.bytes.next_multiple_of(4096) * 2
    }

    fn map_and_unmap(&self, n: u64) -> [String; 2] {
        let (device, direction, bytes) = (self.device(n), self.direction, self.bytes);
        let pa = self.pa(n);
        let dma = if n >= self.high_from {
            0x1_0000_0000 + n * 0x10_0000
        } else {
            0x8000_0000 + n * 0x10_0000 % 0x1000_0000
        };
        let of = format!("{device} dir={direction}");
        if self.pieces == 0 {
            let what = format!("{of} dma_addr={dma:x} size={bytes}");
            return [
                format!("dma_map_page: {what} phys_addr={pa:x} attrs="),
                format!("dma_unmap_page: {what} attrs="),
            ];
        }
        let pas = (0..self.pieces).map(|piece| format!("0x{:x}", pa + piece * 8192));
        let pas = pas.collect::<Vec<_>>().join(",");
        let size = self.pieces * 4096;
        let at = format!("dma_addrs={{0x{dma:x}}} sizes={{0x{size:x}}}");
        [
            format!("dma_map_sg: {of} {at} phys_addrs={{{pas}}} attrs="),
            format!("dma_unmap_sg: {of} phys_addrs={{{pas}}} attrs="),
        ]
    }

    pub fn packets(self) -> Self {
        Self { bytes: 1522, buffers: 10, ..self }
    }

    pub fn lists(self) -> Self {
        Self { pieces: 16, ..self }
    }

    /// Makes lists so long that walks take most of the time.
    pub fn long_lists(self) -> Self {
        Self { pieces: 256, bytes: 1 << 20, buffers: 2, ..self }
    }

    pub fn queues(self, queues: Queues) -> Self {
        Self { queues, ..self }
    }

    pub fn bounced(self, end: &'static str) -> Self {
        let bounce = Some(end);
        Self { bounce, ..self }.queues(Queues::Nothing)
    }
}
