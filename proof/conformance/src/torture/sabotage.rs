//! Ways to pay a debt wrongly, to prove that the adversarial model notices.

use portolan::inval::{
    Caching, Capabilities, Command, Depth, InvalidationQueue, LeafOnly, PageForm, Step, TablesLeft,
    Walker, WriteBuffer,
};

/// Part of paying a debt that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebtSabotage {
    /// No sabotage.
    None,
    /// The last invalidation of every plan.
    LastCommand,
    /// Every sync.
    Sync,
    /// Walk caches, also where tables left the tree.
    WalkCaches,
    /// Cleaning of cache lines.
    Clean,
    /// Flushing the write buffer.
    WriteBuffer,
    /// The invalidation after a map.
    MapSide,
    /// Commands do not name large pages as a whole.
    LargePages,
    /// Everything: table pages and addresses are reused at once.
    Quiet,
}

/// Operation whose debt is paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Map,
    Unmap,
}

impl DebtSabotage {
    /// All sabotages that must be noticed.
    pub const ALL: [Self; 8] = [
        Self::LastCommand,
        Self::Sync,
        Self::WalkCaches,
        Self::Clean,
        Self::WriteBuffer,
        Self::MapSide,
        Self::LargePages,
        Self::Quiet,
    ];

    /// Capabilities that the plan is made for, which differ from the hardware's for some sabotages.
    pub(super) fn believed(self, caps: Capabilities) -> Capabilities {
        match self {
            Self::LargePages => Capabilities { page: PageForm::Granule, ..caps },
            Self::Clean => Capabilities { walker: Walker::Coherent, ..caps },
            _ => caps,
        }
    }

    /// The capabilities under which leaving it out matters.
    pub(super) fn concerns(self, caps: &mut Capabilities) {
        match self {
            Self::WalkCaches => caps.leaf_only = LeafOnly::Present,
            Self::Clean => caps.walker = Walker::NonCoherent,
            Self::WriteBuffer => {
                caps.walker = Walker::Coherent;
                caps.write_buffer = WriteBuffer::MustFlush;
            }
            Self::MapSide => caps.caching = Caching::NotPresentToo,
            Self::LargePages => caps.page = PageForm::Whole,
            _ => {}
        }
    }
}

/// A queue that leaves something out on the way to another.
pub(super) struct Saboteur<'q, Q> {
    pub(super) queue: &'q Q,
    pub(super) sabotage: DebtSabotage,
    pub(super) side: Side,
}

impl<Q: InvalidationQueue> InvalidationQueue for Saboteur<'_, Q> {
    type Error = Q::Error;

    fn pay(
        &self,
        steps: &mut dyn Iterator<Item = Step>,
        tables: TablesLeft,
    ) -> Result<(), Q::Error> {
        let side = self.side;
        match self.sabotage {
            DebtSabotage::None | DebtSabotage::LargePages | DebtSabotage::Clean => {
                self.queue.pay(steps, tables)
            }
            DebtSabotage::Quiet => {
                steps.for_each(drop);
                Ok(())
            }
            DebtSabotage::LastCommand => {
                let mut all: Vec<Step> = steps.collect();
                let last = all.iter().rposition(|step| matches!(step, Step::Invalidate(_)));
                if let Some(last) = last {
                    all.remove(last);
                }
                self.queue.pay(&mut all.into_iter(), tables)
            }
            DebtSabotage::Sync => self.only((steps, tables), |step| !matches!(step, Step::Sync)),
            DebtSabotage::WriteBuffer => {
                self.only((steps, tables), |step| *step != Step::FlushWriteBuffer)
            }
            DebtSabotage::MapSide => self.only((steps, tables), |step| {
                side == Side::Unmap || !matches!(step, Step::Invalidate(_))
            }),
            DebtSabotage::WalkCaches => self.queue.pay(&mut steps.map(shallow), tables),
        }
    }
}

impl<Q: InvalidationQueue> Saboteur<'_, Q> {
    fn only(
        &self,
        (steps, tables): (&mut dyn Iterator<Item = Step>, TablesLeft),
        keep: impl Fn(&Step) -> bool,
    ) -> Result<(), Q::Error> {
        self.queue.pay(&mut steps.filter(|step| keep(step)), tables)
    }
}

fn shallow(step: Step) -> Step {
    let Step::Invalidate(mut command) = step else {
        return step;
    };
    match &mut command {
        Command::Page { depth, .. } | Command::Range { depth, .. } => *depth = Depth::LeafOnly,
        Command::Context { .. } | Command::Global | Command::Configuration { .. } => {}
    }
    Step::Invalidate(command)
}
