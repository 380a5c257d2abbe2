//! Firmware's word of a unit, which counts for more than the unit's identification registers.
//!
//! Registers of an SMMU are set when a chip is made; the interconnect around it decides if a walk
//! is coherent. Firmware knows the board: IORT's flags of an SMMU node (Arm DEN0049, revision E.f,
//! sections 3.1.1.2 and 3.1.1.4), or a device tree's `dma-coherent`.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::inval::Walker;

/// Firmware's word of an SMMU's reads of tables and queues, through the processors' caches or not.
///
/// A driver's configuration takes it. Firmware's word counts in both directions: a unit that is
/// taken for coherent and is not reads stale tables, so [`CoherencyOverride::NotCoherent`] is the
/// safe answer where firmware is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CoherencyOverride {
    /// Firmware says nothing: the identification register counts (COHACC of an SMMUv3's IDR0, CTTW
    /// of an SMMUv2's).
    #[default]
    AsRegistersSay,
    /// The unit snoops the caches, even if its register denies it.
    Coherent,
    /// The unit reads memory past the caches, even if its register says otherwise: lines have to be
    /// cleaned before it looks.
    NotCoherent,
}

impl CoherencyOverride {
    /// Walker of a unit whose register says `registers`.
    pub const fn apply(self, registers: Walker) -> Walker {
        match self {
            Self::AsRegistersSay => registers,
            Self::Coherent => Walker::Coherent,
            Self::NotCoherent => Walker::NonCoherent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_counts_for_more_than_a_register() {
        let both = [Walker::Coherent, Walker::NonCoherent];
        for said in both {
            assert_eq!(CoherencyOverride::default().apply(said), said);
            let coherent = CoherencyOverride::Coherent.apply(said);
            assert_eq!(coherent, Walker::Coherent);
            let other = CoherencyOverride::NotCoherent.apply(said);
            assert_eq!(other, Walker::NonCoherent);
        }
    }
}
