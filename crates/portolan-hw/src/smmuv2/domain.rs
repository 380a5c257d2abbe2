//! Domains of a unit: tables, and the context bank that walks them.
//!
//! IHI 0062, translation context banks; widths as in DDI 0487, section D8.2.
//!
//! *Context.* Domains are made by tasks: tables and records are allocated. Their methods are those
//! of [`PagedDomain`]. Dropping one is for tasks too: it waits until the unit has forgotten it.

use super::banks::{DomainBank, Registers};
use super::faults::OnFault;
use super::features::Features;
use super::queue::SmmuV2Queue;
use super::unit::SmmuV2;
use crate::chassis::arm::{self, StageReach};
use core::sync::atomic::AtomicU64;
use portolan::addr::PhysAddr;
use portolan::inval::{Capabilities, Quirks};
use portolan::iommu::{IommuError, PagedDomain, Stage};
use portolan::platform::UnitPlatform;
use portolan::table::PageTable;
use portolan::table::format::{
    Armv8Config, Armv8Stage1, Armv8Stage2, DirtyTracking, Format, SplitRule,
};
use portolan_spec::smmuv2::{bank, global};

/// A domain over tables of format `F`.
type Over<F, P> = PagedDomain<F, <P as UnitPlatform>::Memory, SmmuV2Queue<P>>;
/// A first-stage domain with a granule of `2^G` bytes.
pub type FirstStage<const G: u32, P> = Over<Armv8Stage1<G>, P>;
/// A second-stage domain with a granule of `2^G` bytes.
pub type SecondStage<const G: u32, P> = Over<Armv8Stage2<G>, P>;

/// Options of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SmmuV2DomainOptions {
    /// Bits of an input address; the most that the unit has if `None`.
    pub input_lg2: Option<u32>,
    /// Treatment of accesses that fault.
    pub on_fault: OnFault,
    /// Capabilities that the invalidation plan may use; all that the unit has if `None`.
    pub capabilities: Option<Capabilities>,
    /// Quirks that the plan respects; those of the implementation if `None`.
    pub quirks: Option<Quirks>,
}

/// Widths for granule `2^g` of a stage.
fn config(
    stage: StageReach,
    output_lg2: u32,
    g: u32,
    options: &SmmuV2DomainOptions,
) -> Result<Armv8Config, IommuError> {
    Ok(Armv8Config {
        input_lg2: arm::input_lg2(stage, g, options.input_lg2)?,
        output_lg2: output_lg2.min(48),
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    })
}

/// *Context.* Task.
impl<P: UnitPlatform> SmmuV2<P> {
    /// An empty first-stage domain with a granule of `2^G` bytes.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`], [`IommuError::OutOfContexts`] if all banks are in use,
    /// [`IommuError::Memory`].
    pub fn first_stage<const G: u32>(
        &self,
        options: &SmmuV2DomainOptions,
    ) -> Result<FirstStage<G, P>, IommuError> {
        let features = self.features();
        let stage = StageReach {
            present: features.stage1,
            granules: features.granules,
            widest_lg2: features.input_lg2,
        };
        let config = config(stage, features.middle_lg2, G, options)?;
        let format = Armv8Stage1::new(config).map_err(|_| IommuError::Unsupported)?;
        let mair = Armv8Stage1::<G>::MAIR;
        self.domain(format, Stage::First, options, |root, number| Registers {
            cbar: global::cbar::TYPE.at(global::cbar::STAGE1)
                | global::cbar::MEMATTR.at(global::cbar::WRITE_BACK)
                | global::cbar::BPSHCFG.at(global::cbar::NOT_SHAREABLE),
            tcr: common(features, config.input_lg2, G) | bank::tcr::EPD1.mask(),
            tcr2: bank::tcr2::SEP.at(bank::tcr2::UPSTREAM)
                | bank::tcr2::AS.mask()
                | bank::tcr2::PASIZE.at(Features::size_code(config.output_lg2)),
            ttbr0: u64::from(number) << bank::ASID_LSB | root.get(),
            mair: [mair as u32, (mair >> 32) as u32],
            sctlr: bank::sctlr::ASIDPNE,
        })
    }

    /// An empty second-stage domain with a granule of `2^G` bytes.
    ///
    /// # Errors
    /// As [`SmmuV2::first_stage`].
    pub fn second_stage<const G: u32>(
        &self,
        options: &SmmuV2DomainOptions,
    ) -> Result<SecondStage<G, P>, IommuError> {
        let features = self.features();
        let stage = StageReach {
            present: features.stage2,
            granules: features.granules,
            widest_lg2: arm::second_stage_width(features.middle_lg2, G),
        };
        let config = config(stage, features.output_lg2, G, options)?;
        let format = Armv8Stage2::<G>::new(config).map_err(|_| IommuError::Unsupported)?;
        let begin = arm::start_level(&format);
        self.domain(format, Stage::Second, options, |root, number| Registers {
            cbar: global::cbar::TYPE.at(global::cbar::STAGE2)
                | global::cbar::VMID.at(number.into()),
            tcr: common(features, config.input_lg2, G)
                | bank::tcr::RES1.mask()
                | bank::tcr::PS.at(Features::size_code(config.output_lg2))
                | bank::tcr::SL0.at(begin),
            tcr2: 0,
            ttbr0: root.get(),
            mair: [0; 2],
            sctlr: 0,
        })
    }

    fn domain<F: Format<Word = AtomicU64>>(
        &self,
        format: F,
        stage: Stage,
        options: &SmmuV2DomainOptions,
        registers: impl FnOnce(PhysAddr, u16) -> Registers,
    ) -> Result<Over<F, P>, IommuError> {
        let shared = &self.shared;
        shared.operation.running()?;
        let machine = &shared.machine;
        let table = PageTable::new(format, machine.mem.clone())?;
        let tag = shared.take(stage)?;
        let number = shared.number(tag);
        let mut registers = registers(table.root(), number);
        if options.on_fault == OnFault::Stall {
            registers.sctlr |= bank::sctlr::CFCFG;
        }
        let bank = DomainBank { bank: tag.bank, stage, number, registers };
        let written = bank.write(machine);
        if let Err(error) = written {
            // No stream ever came here.
            machine.configure(machine.bank(tag.bank, bank::SCTLR), 0);
            shared.give_back(tag);
            return Err(error);
        }
        shared.in_use.lock().add(tag.bank);
        shared.written.note(tag.bank, Some(bank));
        if options.on_fault == OnFault::Stall {
            shared.stalling.lock().add(tag.bank);
        }
        let capabilities = machine.features.capabilities(F::GRANULE);
        let capabilities = options.capabilities.unwrap_or(capabilities);
        let quirks = shared.implementation.quirks();
        let quirks = options.quirks.unwrap_or(quirks);
        let queue = SmmuV2Queue(shared.clone());
        let context = tag.context();
        Ok(PagedDomain::new(table, context, capabilities, quirks, queue))
    }
}

/// Bits of the translation control register that both stages have.
fn common(features: &Features, input_lg2: u32, g: u32) -> u32 {
    use bank::tcr;
    let granule = match g {
        14 => 2,
        16 => 1,
        _ => 0,
    };
    let (cacheable, shareable) =
        if features.coherent { (tcr::WRITE_BACK, tcr::INNER) } else { (0, tcr::OUTER) };
    tcr::T0SZ.at(64 - input_lg2)
        | tcr::TG0.at(granule)
        | tcr::IRGN0.at(cacheable)
        | tcr::ORGN0.at(cacheable)
        | tcr::SH0.at(shareable)
}
