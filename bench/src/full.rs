//! Unmapping full leaf tables.

use std::hint::black_box;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Gather;

use crate::rig::{
    BASE, BLOCK, MEMORY, PAGE, Table, access, count_commands, pay, table, take_steps, unmap_and_pay,
};
use crate::{Failure, Workload};

/// Full leaf tables per pass.
pub(crate) const FULL_TABLES: u64 = 64;

/// How far the unmap of a full table goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The invalidation is planned and its commands counted.
    Counted,
    /// Each step of the plan is taken.
    Steps,
    /// The debt is synced and the table page given back.
    Reclaimed,
}

pub(crate) struct Full {
    table: Table,
    finish: Finish,
    owed: Vec<Gather>,
    mapped: bool,
}

impl Full {
    pub(crate) fn new(finish: Finish) -> Result<Self, Failure> {
        Ok(Self {
            table: table(FULL_TABLES as u32 + 64)?,
            finish,
            owed: Vec::with_capacity(FULL_TABLES as usize),
            mapped: false,
        })
    }

    fn block(i: u64) -> IovaRange {
        let start = Iova::new(BASE.get() + i * BLOCK);
        black_box(IovaRange::page(start, PageSize::SIZE_2M))
    }
}

impl Workload for Full {
    fn units(&self) -> u64 {
        FULL_TABLES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        for owed in self.owed.drain(..) {
            pay(&self.table, owed)?;
        }
        if !self.mapped {
            let pa = PhysAddr::new(MEMORY.get() + PAGE);
            for i in 0..FULL_TABLES {
                let mut owed = Gather::new();
                let start = Self::block(i).start();
                self.table.map(start, pa, BLOCK, access(), &mut owed)?;
            }
        }
        if self.finish != Finish::Reclaimed {
            self.owed.resize_with(FULL_TABLES as usize, Gather::new);
        }
        self.mapped = true;
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        if !self.mapped {
            return Err(Failure::NotPrepared);
        }
        if self.finish == Finish::Reclaimed {
            for i in 0..FULL_TABLES {
                unmap_and_pay(&self.table, Self::block(i))?;
            }
        }
        for (owed, i) in self.owed.iter_mut().zip(0u64..) {
            self.table.unmap(Self::block(i), owed)?;
            match self.finish {
                Finish::Counted => count_commands(owed),
                Finish::Steps | Finish::Reclaimed => take_steps(owed),
            }
        }
        self.mapped = false;
        Ok(())
    }
}
