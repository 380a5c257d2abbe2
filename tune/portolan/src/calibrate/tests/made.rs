//! Latency traces of a machine whose prices are known.
//!
//! Two CPUs map and unmap buffers of 1 to 64 pages, or of pages of all sizes. Times vary by a few percent; some calls
//! take much longer, as if an interrupt had come that nothing marks; in others one is marked; lines get lost, with and
//! without a word of it.

use std::fmt::Write;

use portolan_sim::profile::Event;

/// Time to enter and leave a traced function, in its own time and in its caller's.
pub(super) const HOOK_NS: f64 = 120.0;
pub(super) const AROUND_NS: f64 = 200.0;
/// The driver's own part of an invalidation.
const DRIVER_NS: f64 = 100.0;
/// Time of a system call with which the recorder measures tracing, of either kind.
const SYSTEM_CALL_NS: f64 = 300.0;
const PROBES: usize = 300;

/// Form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `/sys/kernel/tracing/trace`.
    Tracefs,
    /// The same with times and tasks, and names behind ends.
    TimesAndTasks,
    /// `trace-cmd report`.
    TraceCmd,
    /// Arguments in place of events.
    Arguments,
}

/// A line: time, CPU and event.
struct Line {
    time: f64,
    cpu: u16,
    depth: usize,
    what: What,
}

enum What {
    Enter(&'static str, String),
    Leaf(&'static str, f64),
    Exit(&'static str, f64),
    Event(String),
    Interrupt(&'static str),
    Lost(u32),
    Gone,
}

pub(super) struct Made {
    pub(super) prices: Vec<(Event, f64)>,
    /// Unmaps of whole tables.
    pub(super) tables: u64,
    lines: Vec<Line>,
    /// Calls as measured from outside: function, units, nanoseconds.
    calls: Vec<(&'static str, u64, f64)>,
}

impl Made {
    pub(super) fn new(seed: u64) -> Self {
        Self::of(seed, 6000, Buffer::small)
    }

    pub(super) fn mixed(seed: u64) -> Self {
        Self::of(seed, 6000, Buffer::mixed)
    }

    fn of(seed: u64, operations: u64, next: fn(&mut fastrand::Rng) -> Buffer) -> Self {
        let mut machine = Machine {
            random: fastrand::Rng::with_seed(seed),
            lines: Vec::new(),
            calls: Vec::new(),
            cpu: 0,
            depth: 0,
            clocks: [1e9; 2],
        };
        let mut tables = 0;
        for _ in 0..operations {
            machine.cpu = machine.random.u16(..2);
            let buffer = next(&mut machine.random);
            machine.map(buffer);
            machine.unmap(buffer);
            tables += u64::from(buffer.tables > 0);
        }
        machine.probe();
        machine.lose();
        let mut lines = machine.lines;
        lines.sort_by(|one, other| one.time.total_cmp(&other.time));
        Self { prices: PRICES.to_vec(), tables, lines, calls: machine.calls }
    }

    pub(super) fn text(&self, form: Form) -> String {
        let mut out = String::from("# tracer: function_graph\n#\n");
        for line in &self.lines {
            line.write(form, &mut out);
        }
        out
    }

    pub(super) fn rows(&self) -> String {
        let mut out = String::from("Attaching 5 probes...\nfunction,units,ns\n");
        for (function, units, ns) in &self.calls {
            writeln!(out, "{function},{units},{ns:.0}").unwrap();
        }
        out
    }

    pub(super) fn histograms(&self) -> String {
        let mut counts = std::collections::BTreeMap::<_, [u64; 40]>::new();
        for (function, units, ns) in &self.calls {
            let buckets = counts.entry((*function, *units)).or_insert([0; 40]);
            buckets[(*ns as u64).max(1).ilog2() as usize] += 1;
        }
        let mut out = String::from("Attaching 5 probes...\n\n@start: 12\n");
        for ((function, units), buckets) in counts {
            writeln!(out, "\n@ns[{function}, {units}]:").unwrap();
            for (lg2, count) in buckets.iter().enumerate().filter(|bucket| *bucket.1 > 0) {
                let bound = |lg2: usize| match lg2 {
                    0..10 => format!("{}", 1u64 << lg2),
                    10..20 => format!("{}K", 1u64 << (lg2 - 10)),
                    _ => format!("{}M", 1u64 << (lg2 - 20)),
                };
                let (low, high) = (bound(lg2), bound(lg2 + 1));
                writeln!(out, "[{low}, {high})       {count} |@@@@     |").unwrap();
            }
        }
        out
    }
}

const PRICES: [(Event, f64); 6] = [
    (Event::MapCall, 900.0),
    (Event::PteWrite, 14.0),
    (Event::UnmapCall, 700.0),
    (Event::UnmapPage, 9.0),
    (Event::Sync, 1500.0 + DRIVER_NS),
    (Event::CmdPage, 240.0),
];

/// A mapping, and the entries that it takes.
#[derive(Clone, Copy)]
struct Buffer {
    iova: u64,
    pa: u64,
    bytes: u64,
    leaves: u64,
    /// Number of whole tables of pages.
    tables: u64,
}

impl Buffer {
    fn small(random: &mut fastrand::Rng) -> Self {
        let leaves = 1 << random.u32(..7);
        Self { iova: 0xffff_1000, pa: 0x1000, bytes: leaves << 12, leaves, tables: 0 }
    }

    /// Pages, pages of 2 MiB with some small ones before and after them, pages of 1 GiB, and unaligned memory.
    fn mixed(random: &mut fastrand::Rng) -> Self {
        let (iova, pa) = (random.u64(1..64) << 36, random.u64(1..64) << 34);
        let [before, large, giant, behind] = match random.u8(..10) {
            0..4 => return Self::small(random),
            4 | 5 => [0, random.u64(1..=16), 0, 0],
            6 => [0, 0, random.u64(1..=4), random.u64(..16)],
            7 | 8 => [random.u64(..16), random.u64(1..=16), 0, random.u64(..16)],
            _ => {
                let tables = random.u64(1..4);
                return Self {
                    iova,
                    pa: pa + 0x1000,
                    bytes: tables << 21,
                    leaves: tables << 9,
                    tables,
                };
            }
        };
        Self {
            iova: iova - (before << 12),
            pa: pa - (before << 12),
            bytes: ((before + behind) << 12) + (large << 21) + (giant << 30),
            leaves: before + large + giant + behind,
            tables: 0,
        }
    }
}

struct Machine {
    random: fastrand::Rng,
    lines: Vec<Line>,
    calls: Vec<(&'static str, u64, f64)>,
    cpu: u16,
    depth: usize,
    clocks: [f64; 2],
}

impl Machine {
    /// A price with random variation.
    fn varied(&mut self, ns: f64) -> f64 {
        let noise: f64 = (0..4).map(|_| self.random.f64() - 0.5).sum();
        let waits = match self.random.u8(..50) {
            0 => 5_000.0 + 100_000.0 * self.random.f64(),
            _ => 0.0,
        };
        ns * (1.0 + 0.1 * noise) + waits
    }

    fn push(&mut self, what: What) {
        let clock = &mut self.clocks[usize::from(self.cpu)];
        *clock += 1.0;
        let (time, cpu, depth) = (*clock, self.cpu, self.depth);
        self.lines.push(Line { time, cpu, depth, what });
    }

    fn leaf(&mut self, name: &'static str) -> f64 {
        let ns = self.varied(1.0).min(2.0) + HOOK_NS * (0.95 + 0.1 * self.random.f64());
        self.push(What::Leaf(name, ns));
        ns + AROUND_NS
    }

    /// Runs a function that takes `own`, and `inside` in it; returns the time that its caller sees.
    fn call(
        &mut self,
        name: &'static str,
        arguments: String,
        own: f64,
        inside: impl FnOnce(&mut Self) -> f64,
    ) -> f64 {
        let mut own = self.varied(own);
        self.push(What::Enter(name, arguments));
        self.depth += 1;
        if self.random.u8(..100) == 0 {
            let ns = 20_000.0;
            self.push(What::Interrupt("==========>"));
            self.push(What::Interrupt("<=========="));
            own += ns;
        }
        let ns = own + HOOK_NS + inside(self);
        self.depth -= 1;
        self.clocks[usize::from(self.cpu)] += ns;
        self.push(What::Exit(name, ns));
        ns + AROUND_NS
    }

    fn price(event: Event) -> f64 {
        let found = PRICES.iter().find(|(of, _)| *of == event);
        found.unwrap().1
    }

    fn map(&mut self, buffer: Buffer) {
        let Buffer { iova, pa, bytes, .. } = buffer;
        let own = Self::price(Event::MapCall) + buffer.leaves as f64 * Self::price(Event::PteWrite);
        let seen = self.varied(own);
        if buffer.tables == 0 {
            self.calls.push(("iommu_map", bytes, seen));
        }
        let end = iova + bytes;
        let text =
            format!("map: IOMMU: iova={iova:#018x} - {end:#018x} paddr={pa:#018x} size={bytes}");
        let arguments = format!(
            "domain=0xffff888100, iova={iova:#x}, paddr={pa:#x}, size={bytes}, prot=3, gfp=0xcc0"
        );
        self.call("iommu_dma_map_page", String::new(), 4000.0, |machine| {
            let getter = machine.leaf("iommu_get_dma_domain");
            getter
                + machine.call("iommu_map", arguments, own, |machine| {
                    machine.push(What::Event(text));
                    0.0
                })
        });
    }

    fn unmap(&mut self, buffer: Buffer) {
        let Buffer { iova, bytes, .. } = buffer;
        // Tables are taken out with all that is in them.
        let own = match buffer.tables {
            0 => {
                Self::price(Event::UnmapCall) + buffer.leaves as f64 * Self::price(Event::UnmapPage)
            }
            tables => 2000.0 + tables as f64 * 300.0,
        };
        let commands = 1 + self.random.u64(..4);
        let flush = Self::price(Event::Sync) + commands as f64 * Self::price(Event::CmdPage);
        let submit = flush - DRIVER_NS;
        let (first, second) = (self.varied(own), self.varied(submit));
        self.calls.push(("iommu_unmap_fast", bytes, first));
        self.calls.push(("qi_submit_sync", commands, second));
        let whole = second + self.varied(DRIVER_NS);
        self.calls.push(("intel_iommu_tlb_sync", commands, whole));
        let end = iova + bytes;
        let text = format!(
            "unmap: IOMMU: iova={iova:#018x} - {end:#018x} size={bytes} unmapped_size={bytes}"
        );
        let arguments = format!("domain=0xffff888100, iova={iova:#x}, size={bytes:#x}");
        self.call("iommu_dma_unmap_page", String::new(), 3000.0, |machine| {
            let getter = machine.leaf("iommu_get_dma_domain");
            getter
                + machine.call("iommu_unmap", arguments, own, |machine| {
                    machine.push(What::Event(text));
                    let arguments =
                        format!("iommu=0xffff888, desc=0xffff, count={commands}, options=0");
                    machine.call("intel_iommu_tlb_sync", String::new(), DRIVER_NS, |machine| {
                        machine.call("qi_submit_sync", arguments, submit, |machine| {
                            for _ in 0..commands {
                                let text = "qi_submit: iotlb_inv dmar0: 0x300f2 0xffffd000 0x0 0x0";
                                machine.push(What::Event(text.to_owned()));
                            }
                            0.0
                        })
                    })
                })
        });
    }

    /// Adds the calls with which the recorder measures tracing: without and with a traced call in them.
    fn probe(&mut self) {
        for calls in [0, 1] {
            for _ in 0..PROBES {
                self.call("__x64_sys_getppid", String::new(), SYSTEM_CALL_NS, |machine| {
                    (0..calls).map(|_| machine.leaf("__task_pid_nr_ns")).sum()
                });
            }
        }
    }

    /// Loses runs of lines of a CPU, half of them without a word.
    fn lose(&mut self) {
        let mut at = 0;
        while at < self.lines.len() {
            let skip = self.random.usize(200..900);
            at += skip;
            let count = self.random.usize(3..25);
            let is_said = self.random.u8(..2) == 0;
            let Some(cpu) = self.lines.get(at).map(|line| line.cpu) else {
                return;
            };
            let rest = self.lines[at..].iter_mut().filter(|line| line.cpu == cpu);
            let mut first = true;
            for line in rest.take(count) {
                line.what = if first && is_said { What::Lost(count as u32) } else { What::Gone };
                first = false;
            }
        }
    }
}

impl Line {
    fn write(&self, form: Form, out: &mut String) {
        let (cpu, depth) = (self.cpu, self.depth);
        let (ns, body) = match (&self.what, form) {
            (What::Gone, _)
            | (What::Interrupt(_), Form::TraceCmd)
            | (What::Event(_), Form::Arguments) => return,
            (What::Lost(lost), _) => {
                return writeln!(out, "CPU:{cpu} [LOST {lost} EVENTS]").unwrap();
            }
            (What::Interrupt(mark), Form::TimesAndTasks) => {
                return writeln!(out, " 1.000000 |  {cpu})    dd-12   |   {mark} |").unwrap();
            }
            (What::Interrupt(mark), _) => return writeln!(out, " {cpu})   {mark} |").unwrap(),
            (What::Enter(name, all), Form::Arguments) => (None, format!("{name}({all}) {{")),
            (What::Enter(name, _), _) => (None, format!("{name}() {{")),
            (What::Leaf(name, ns), _) => (Some(ns), format!("{name}();")),
            (What::Exit(name, ns), Form::TimesAndTasks) => (Some(ns), format!("}} /* {name} */")),
            (What::Exit(_, ns), _) => (Some(ns), "}".to_owned()),
            (What::Event(text), Form::TraceCmd) => (None, text.clone()),
            (What::Event(text), _) => (None, format!("/* {text} */")),
        };
        let cell = ns.map_or(String::new(), |ns| {
            let ns = *ns as u64;
            let mark = match ns {
                0..10_000 => ' ',
                10_000..100_000 => '+',
                100_000..1_000_000 => '!',
                _ => '#',
            };
            format!("{mark} {}.{:03} us", ns / 1000, ns % 1000)
        });
        let body = format!("{}{body}", "  ".repeat(depth));
        let micros = self.time as u64 / 1000;
        let time = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        let at = format!("   dd-12   [00{cpu}] {time}:");
        match (form, &self.what) {
            (Form::TraceCmd, What::Event(text)) => writeln!(out, "{at} {text}"),
            (Form::TraceCmd, What::Exit(..)) => {
                writeln!(out, "{at} funcgraph_exit: {cell:>15} |  {body}")
            }
            (Form::TraceCmd, _) => writeln!(out, "{at} funcgraph_entry: {cell:>15} |  {body}"),
            (Form::TimesAndTasks, _) => {
                writeln!(out, " {time} |  {cpu})    dd-12   | {cell:<14}|  {body}")
            }
            (Form::Tracefs | Form::Arguments, _) => writeln!(out, " {cpu}) {cell:<14}|  {body}"),
        }
        .unwrap();
    }
}
