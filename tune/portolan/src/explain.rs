//! Reasons for a machine's default policy.
//!
//! [`default_policy`] is asked with a profile's facts about its machine, for drivers that hand their buffers over and
//! for drivers that keep them, and for each wish of an administrator; or with all combinations of inputs.

mod text;

pub use text::{COLUMNS_IN_WORDS, text};

use portolan::dma::{
    Buffers, CopyPrices, CopyWhen, DeviceTlbPresence, PolicyInputs, PolicyPreference, Shadowing,
    Stage, TrapCost, Trust, default_policy,
};
use portolan::platform::Nanos;
use portolan_sim::profile::{Event, Profile};
use serde::Serialize;

use crate::advice::{Advice, facts_of, policy_name};

/// Output of `portolan explain --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// One entry for each machine.
    pub machines: Vec<MachineDecisions>,
    /// All combinations of inputs, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub table: Vec<PolicyRow>,
}

/// A machine's decisions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineDecisions {
    /// Name of the profile.
    pub machine: String,
    /// Decision for each kind of driver and each wish.
    pub decisions: Vec<PolicyRow>,
    /// Policies that hold where none is asked for, as the other commands print them.
    pub defaults: Advice,
    /// Largest size for which a copy costs less than an invalidation, if the profile has prices of copies.
    pub copying: Option<CrossOver>,
}

/// Size at which copying through a pool that the device always reaches costs as much as mapping in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CrossOver {
    /// Size in bytes up to which copying a buffer costs less than mapping it; 0 if it never does. No default follows
    /// from it: the library copies only if it must, unless its caller asks for more.
    pub up_to_bytes: u64,
    /// Nanoseconds of mapping a page in place and taking it away, with invalidation and sync.
    pub in_place_ns: u64,
    /// Nanoseconds of the slots for one copy.
    pub slots_ns: u64,
    /// Bytes copied in a microsecond.
    pub bytes_per_us: u64,
    /// Source of the price of a byte.
    pub source: String,
}

impl CrossOver {
    /// Costs of `profile`; `None` if a price is missing.
    pub fn of(profile: &Profile) -> Option<Self> {
        let price = |event| profile.price(event).ok();
        let in_place =
            [Event::MapCall, Event::PteWrite, Event::UnmapCall, Event::UnmapPage, Event::Sync];
        let command = price(Event::CmdRange).or_else(|| price(Event::CmdPage))?;
        let mut in_place_ns = command;
        for event in in_place {
            in_place_ns += price(event)?;
        }
        in_place_ns += price(Event::Exit).unwrap_or(0.0);
        let byte = profile.quote(Event::CopyByte).ok()?;
        let prices = CopyPrices {
            slots: Nanos::new(price(Event::CopyCall)?.round() as u64),
            bytes_per_us: (1000.0 / byte.ns.max(1e-6)).round() as u64,
            in_place: Nanos::new(in_place_ns.round() as u64),
        };
        Some(Self {
            up_to_bytes: match CopyWhen::cheapest(&prices) {
                CopyWhen::UpTo(bytes) => bytes,
                CopyWhen::Needed | CopyWhen::Always => 0,
            },
            in_place_ns: prices.in_place.get(),
            slots_ns: prices.slots.get(),
            bytes_per_us: prices.bytes_per_us,
            source: byte.source.clone(),
        })
    }
}

/// Inputs of a policy, and the policy that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyRow {
    /// `owned` or `kept`.
    pub buffers: &'static str,
    /// `none`, `strict` or `lazy`.
    pub wish: &'static str,
    /// `trusted` or `untrusted`.
    pub trust: &'static str,
    /// `first` or `second`.
    pub stage: &'static str,
    /// Way in which a hypervisor follows tables: `none`, `caching-mode`, `write-protection` or `requests`.
    pub shadowing: &'static str,
    /// `present` or `absent`.
    pub device_tlb: &'static str,
    /// `expensive` or `none`.
    pub exits: &'static str,
    /// `strict`, `deferred` or `lazy`.
    pub policy: &'static str,
    /// The reason for the decision, as a sentence.
    pub reason: &'static str,
}

impl PolicyRow {
    /// The decision for `facts`.
    pub fn new(facts: &PolicyInputs) -> Self {
        let decision = default_policy(facts);
        Self {
            buffers: match facts.buffers {
                Buffers::Owned => "owned",
                Buffers::Kept => "kept",
            },
            wish: match facts.wish {
                PolicyPreference::None => "none",
                PolicyPreference::Strict => "strict",
                PolicyPreference::Lazy => "lazy",
            },
            trust: match facts.trust {
                Trust::Trusted => "trusted",
                Trust::Untrusted => "untrusted",
            },
            stage: match facts.stage {
                Stage::First => "first",
                Stage::Second => "second",
            },
            shadowing: shadowing_name(facts.shadowing),
            device_tlb: match facts.device_tlb {
                DeviceTlbPresence::Absent => "absent",
                DeviceTlbPresence::Present => "present",
            },
            exits: match facts.exits {
                TrapCost::None => "none",
                TrapCost::Expensive => "expensive",
            },
            policy: policy_name(decision.policy),
            reason: decision.reason,
        }
    }
}

/// The name of `shadowing` in reports.
pub const fn shadowing_name(shadowing: Shadowing) -> &'static str {
    match shadowing {
        Shadowing::None => "none",
        Shadowing::CachingMode => "caching-mode",
        Shadowing::WriteProtection => "write-protection",
        Shadowing::Requests => "requests",
    }
}

const WISHES: [PolicyPreference; 3] =
    [PolicyPreference::None, PolicyPreference::Strict, PolicyPreference::Lazy];
const SHADOWINGS: [Shadowing; 4] =
    [Shadowing::None, Shadowing::CachingMode, Shadowing::WriteProtection, Shadowing::Requests];
const BUFFERS: [Buffers; 2] = [Buffers::Kept, Buffers::Owned];

/// The decisions for `profiles`.
pub fn explain(profiles: &[Profile]) -> Explanation {
    let machines = profiles.iter().map(|profile| {
        let known = facts_of(profile);
        let cases = BUFFERS.into_iter().flat_map(|buffers| WISHES.map(|wish| (buffers, wish)));
        let decisions =
            cases.map(|(buffers, wish)| PolicyRow::new(&PolicyInputs { buffers, wish, ..known }));
        MachineDecisions {
            machine: profile.name().to_owned(),
            decisions: decisions.collect(),
            defaults: Advice::of(profile),
            copying: CrossOver::of(profile),
        }
    });
    Explanation { machines: machines.collect(), table: Vec::new() }
}

/// The decisions for all that can be said.
pub fn everything() -> Vec<PolicyRow> {
    let mut rows = Vec::new();
    let bits = 1 << 6;
    for buffers in BUFFERS {
        for wish in WISHES {
            for n in 0..bits {
                let bit = |i: usize| n >> i & 1;
                rows.push(PolicyRow::new(&PolicyInputs {
                    buffers,
                    wish,
                    trust: [Trust::Trusted, Trust::Untrusted][bit(4)],
                    stage: [Stage::First, Stage::Second][bit(3)],
                    shadowing: SHADOWINGS[bit(2) + 2 * bit(5)],
                    device_tlb: [DeviceTlbPresence::Absent, DeviceTlbPresence::Present][bit(1)],
                    exits: [TrapCost::None, TrapCost::Expensive][bit(0)],
                }));
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_said_once() {
        let rows = everything();
        assert_eq!(rows.len(), 384);
        let mut words: Vec<_> = rows
            .iter()
            .map(|row| {
                let virtual_unit = (row.shadowing, row.device_tlb, row.exits);
                (row.buffers, row.wish, row.trust, row.stage, virtual_unit)
            })
            .collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 384);
    }

    #[test]
    fn copies_pay_up_to_what_an_invalidation_costs() {
        for profile in Profile::builtin().unwrap() {
            let Some(found) = CrossOver::of(&profile) else {
                continue;
            };
            let copied = 2.0 * found.up_to_bytes as f64 * 1000.0 / found.bytes_per_us as f64;
            let costs = copied + found.slots_ns as f64;
            assert!(costs <= found.in_place_ns as f64 + 1.0, "{found:?}");
        }
        let xeon = Profile::by_name("xeon-vtd").unwrap();
        assert!(CrossOver::of(&xeon).unwrap().up_to_bytes >= 4096);
    }

    #[test]
    fn the_guest_with_first_stage_tables_may_be_lazy_and_is() {
        let profiles = Profile::builtin().unwrap();
        let explanation = explain(&profiles);
        assert_eq!(explanation.machines.len(), profiles.len());
        let decided = |machine: &str, buffers: &str, wish: &str| {
            let mut of = explanation.machines.iter().filter(|known| known.machine == machine);
            let rows = &of.next().unwrap().decisions;
            let row = rows.iter().find(|row| (row.buffers, row.wish) == (buffers, wish));
            row.unwrap().policy
        };
        assert_eq!(decided("spr-vm", "kept", "none"), "lazy");
        assert_eq!(decided("spr-vm", "kept", "strict"), "strict");
        assert_eq!(decided("spr-vm", "owned", "none"), "deferred");
        assert_eq!(decided("vtd-nested", "kept", "none"), "lazy");
        assert_eq!(decided("xeon-vtd", "kept", "none"), "strict");
        assert_eq!(decided("xeon-vtd", "kept", "lazy"), "lazy");
        assert!(
            text(&explanation, 200).contains("spr-vm: devices are trusted, first-stage tables")
        );
    }
}
