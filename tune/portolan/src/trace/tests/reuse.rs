//! CPUs that map, unmap and give addresses out again while others' events are on their way: each mapping begins once
//! and ends once, in any order in which its events are printed.

use super::operations::{phys, piece, take_out};
use super::*;

const DEVICE: &str = "0000:00:03.0";
const CPUS: usize = 3;
/// Buffers from before the trace: fewer than the addresses, so that the first ones are reused early.
const BEFORE: u64 = 6;
const ADDRESSES: u64 = 10;

/// An event that a task of the kernel is about to print.
#[derive(Clone, Copy)]
enum Step {
    TableMap(u64),
    Mapped(u64),
    TableUnmap(u64),
    Unmapped(u64),
    /// Mapped by the two-step API, whose operations have no `dma:*` events.
    Linked(u64),
    Unlinked(u64),
}

/// Expected counts of the trace.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    maps: u64,
    unmaps: u64,
    orphans: u64,
}

/// A kernel at work.
struct Kernel {
    random: fastrand::Rng,
    free: Vec<u64>,
    /// Mapped addresses; true for those that the trace knows.
    live: Vec<(u64, bool)>,
    linked: Vec<u64>,
    /// Steps that each CPU has to print, the next last. Interrupts come between two events of a task.
    cpus: [Vec<Step>; CPUS],
    told: Told,
    text: String,
    at: u64,
}

impl Kernel {
    fn new(seed: u64) -> Self {
        let address = |n: u64| 0xff00_0000 + n * 4096;
        Self {
            random: fastrand::Rng::with_seed(seed),
            free: (BEFORE..ADDRESSES).map(address).collect(),
            live: (0..BEFORE).map(|n| (address(n), false)).collect(),
            linked: Vec::new(),
            cpus: Default::default(),
            told: Told::default(),
            text: String::new(),
            at: 0,
        }
    }

    /// Begins a task or an interrupt on `cpu`.
    fn begin(&mut self, cpu: usize) {
        let steps = &mut self.cpus[cpu];
        let linked = self.random.u8(..8) == 0;
        if self.random.bool() {
            // Linux gives the address that came back last out first.
            let Some(address) = self.free.pop() else {
                return;
            };
            self.told.maps += 1;
            if linked {
                steps.push(Step::Linked(address))
            } else {
                steps.extend([Step::Mapped(address), Step::TableMap(address)])
            }
        } else if linked && !self.linked.is_empty() {
            let index = self.random.usize(..self.linked.len());
            let address = self.linked.swap_remove(index);
            self.told.unmaps += 1;
            steps.push(Step::Unlinked(address));
        } else if !self.live.is_empty() {
            let index = self.random.usize(..self.live.len());
            let (address, in_trace) = self.live.swap_remove(index);
            if in_trace {
                self.told.unmaps += 1
            } else {
                self.told.orphans += 1
            }
            steps.extend([Step::Unmapped(address), Step::TableUnmap(address)]);
        }
    }

    /// Prints the next event of `cpu`.
    fn print(&mut self, cpu: usize) {
        let Some(step) = self.cpus[cpu].pop() else {
            return;
        };
        self.at += 1;
        let (at, on) = (self.at, cpu as u16);
        self.text += &match step {
            Step::TableMap(address) => piece(at, on, address, address ^ 0x7000_0000, 4096),
            Step::Mapped(address) => {
                self.live.push((address, true));
                phys(at, on, "dma_map_phys", DEVICE, address)
            }
            Step::Linked(address) => {
                self.linked.push(address);
                piece(at, on, address, address ^ 0x7000_0000, 4096)
            }
            Step::TableUnmap(address) | Step::Unlinked(address) => {
                self.free.push(address);
                take_out(at, on, address, 4096)
            }
            Step::Unmapped(address) => phys(at, on, "dma_unmap_phys", DEVICE, address),
        };
    }

    fn run(mut self, steps: usize) -> (String, Told) {
        for _ in 0..steps {
            let cpu = self.random.usize(..CPUS);
            if self.cpus[cpu].len() < 4 && self.random.u8(..3) == 0 {
                self.begin(cpu)
            } else {
                self.print(cpu)
            }
        }
        for cpu in 0..CPUS {
            while !self.cpus[cpu].is_empty() {
                self.print(cpu);
            }
        }
        // Neighbours that stay mapped would be one request.
        for address in std::mem::take(&mut self.linked) {
            self.told.unmaps += 1;
            self.cpus[0].push(Step::Unlinked(address));
            self.print(0);
        }
        (self.text, self.told)
    }
}

#[test]
fn addresses_that_are_given_out_again_are_mapped_and_unmapped_as_often_as_they_are() {
    let short = (0..500).map(|seed| (seed, 60));
    for (seed, steps) in short.chain((0..40).map(|seed| (seed, 600))) {
        let (text, told) = Kernel::new(seed).run(steps);
        let sum = read(&text).unwrap();
        let found = Told { maps: sum.maps, unmaps: sum.unmaps, orphans: sum.orphan_unmaps };
        assert_eq!(found, told, "seed {seed}:\n{text}");
        assert_eq!(sum.left_mapped, told.maps - told.unmaps, "seed {seed}");
    }
}
