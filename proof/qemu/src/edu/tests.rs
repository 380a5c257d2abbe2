//! The engine on registers that move bytes as QEMU's do.

use std::sync::{Mutex, MutexGuard};

use super::*;

/// The device and its memory: a transfer is made when the clock runs on.
struct State {
    registers: [u64; 4],
    own: Vec<u8>,
    memory: Vec<u8>,
    waits: u32,
}

struct Fake(Mutex<State>);

impl Fake {
    fn new() -> Self {
        Self(Mutex::new(State {
            registers: [0; 4],
            own: vec![0; BUFFER_BYTES as usize],
            memory: vec![0xa5; 0x2000],
            waits: 0,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Makes the transfer, as the timer does.
    fn transfer(&self) {
        let mut state = self.state();
        let [from, to, bytes, command] = std::mem::take(&mut state.registers);
        let [from, to, bytes] = [from, to, bytes].map(|word| word as usize);
        let inside = |at: usize| at - BUFFER as usize;
        let State { own, memory, .. } = &mut *state;
        if command & DMA_TO_MEMORY == 0 {
            own[inside(to)..][..bytes].copy_from_slice(&memory[from..from + bytes]);
        } else {
            memory[to..to + bytes].copy_from_slice(&own[inside(from)..][..bytes]);
        }
        state.waits += 1;
    }
}

impl Mmio for Fake {
    fn read32(&self, offset: usize) -> u32 {
        self.state().registers[(offset - DMA_FROM) / 8] as u32
    }

    fn write32(&self, _: usize, _: u32) {
        panic!("half of a register of eight bytes");
    }

    fn write64(&self, offset: usize, value: u64) {
        self.state().registers[(offset - DMA_FROM) / 8] = value;
    }
}

#[test]
fn any_word_is_written_and_nothing_beside_it() {
    let fake = Fake::new();
    let engine = Engine::new(&fake, |fake| fake.transfer());
    let fill = |at: u64, word: u32| {
        fake.state().memory[at as usize..][..4].copy_from_slice(&word.to_le_bytes());
    };
    engine.load(Iova::new(0), fill).unwrap();
    for (value, transfers) in [(0, 1), (0xff, 1), (0x5eed, 2), (0x1_0000, 3), (u32::MAX, 4)] {
        let before = fake.state().waits;
        fake.state().memory[0x1000..0x1010].fill(0xa5);
        engine.write32(Iova::new(0x1004), value).unwrap();
        let state = fake.state();
        assert_eq!(state.waits - before, transfers, "{value:#x}");
        let around = [0xa5; 4];
        let wanted = [around, value.to_le_bytes(), around, around].concat();
        assert_eq!(state.memory[0x1000..0x1010], wanted, "{value:#x}");
    }
}

#[test]
fn an_engine_that_stays_busy_ends_the_wait() {
    let fake = Fake::new();
    let engine = Engine::new(&fake, |fake| fake.state().waits += 1);
    assert_eq!(engine.write32(Iova::new(0x1000), 1), Err(EduError::Busy));
    assert_eq!(fake.state().waits, WAITS);
    // A device that is gone reads as ones.
    fake.state().registers[3] = u64::MAX;
    assert_eq!(engine.write32(Iova::new(0x1000), 1), Err(EduError::Busy));
}
