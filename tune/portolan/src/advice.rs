//! A machine's default policy and the cost of strict unmaps there: one answer for all commands.
//!
//! `explain`, `replay` and `scale` all print this, so that none of them recommends a policy that another one advises
//! against.

use portolan::dma::{
    Buffers, Decision, Policy, PolicyInputs, PolicyPreference, Stage, default_policy,
};
use portolan_sim::profile::{ContextKind, Event, MissingPrice, Price, Profile};
use serde::Serialize;

use crate::linux::stage_of;
use portolan_cli::display::grouped;

/// Default policies of a machine, if neither administrator nor driver asks for one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Default for drivers that keep their buffers.
    pub kept: Default,
    /// Default for drivers that hand their buffers over.
    pub owned: Default,
    /// `yes` if a trusted device gets lazy on request, else `no`.
    pub lazy_if_asked: &'static str,
    /// Time of one strict unmap of a page, if the profile has all of its prices.
    pub unmap: Option<UnmapCost>,
    /// Prices that the profile lacks for `unmap`, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// A policy that holds where none is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Default {
    /// `strict`, `deferred` or `lazy`.
    pub policy: &'static str,
    /// The reason for the policy, as a sentence.
    pub reason: &'static str,
}

/// Time of one strict unmap of a page on the CPU that waits, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UnmapCost {
    /// The call and the entry.
    pub work_ns: f64,
    /// Nanoseconds of one command (by range if the unit has ranges), its sync and its exits.
    pub invalidation_ns: f64,
    /// Exits to a hypervisor: one for each submission, which writes one register that it plays.
    pub exits: u64,
    /// Their part of `invalidation_ns`.
    pub exits_ns: f64,
    /// The least and the most that may be, where the evidence for a price leaves a range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalidation_range_ns: Option<[f64; 2]>,
    /// CPUs that receive at once at the least price, at the one taken and at the most, if the price ranges over their
    /// number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiving_cpus: Option<[u32; 3]>,
}

/// Policy inputs of `profile`'s machine, for a driver that keeps its buffers and does not ask for a policy.
pub fn facts_of(profile: &Profile) -> PolicyInputs {
    let around = profile.surroundings();
    let stage = stage_of(profile).unwrap_or(match profile.context() {
        ContextKind::Asid => Stage::First,
        ContextKind::Vmid | ContextKind::Domain => Stage::Second,
    });
    PolicyInputs {
        trust: around.trust,
        stage,
        shadowing: around.shadowing,
        device_tlb: around.device_tlb,
        exits: around.exits,
        buffers: Buffers::Kept,
        wish: PolicyPreference::None,
    }
}

/// The name of `policy` in reports.
pub(crate) const fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Strict => "strict",
        Policy::Deferred => "deferred",
        Policy::Lazy => "lazy",
    }
}

impl From<Decision> for Default {
    fn from(decision: Decision) -> Self {
        Self { policy: policy_name(decision.policy), reason: decision.reason }
    }
}

impl Advice {
    /// Advice for the machine of `profile`.
    pub fn of(profile: &Profile) -> Self {
        let kept = facts_of(profile);
        let decide = |buffers, wish| default_policy(&PolicyInputs { buffers, wish, ..kept });
        let asked = decide(Buffers::Kept, PolicyPreference::Lazy);
        let unmap = UnmapCost::of(profile);
        Self {
            kept: default_policy(&kept).into(),
            owned: decide(Buffers::Owned, PolicyPreference::None).into(),
            lazy_if_asked: match asked.policy {
                Policy::Lazy => "yes",
                Policy::Strict | Policy::Deferred => "no",
            },
            missing: unmap.as_ref().err().map(ToString::to_string),
            unmap: unmap.ok(),
        }
    }

    /// Advice as sentences, one a line.
    pub fn text(&self) -> String {
        let mut said = format!(
            "Where nothing is asked for, drivers that keep their buffers get {}, those that hand them over {}. {}\n",
            self.kept.policy, self.owned.policy, self.kept.reason
        );
        if let Some(unmap) = &self.unmap {
            said.push_str(&unmap.text());
            said.push('\n');
        }
        if let Some(missing) = &self.missing {
            said.push_str(&format!("What a strict unmap costs is not known: {missing}.\n"));
        }
        said
    }
}

impl UnmapCost {
    /// Prices of `profile`.
    ///
    /// # Errors
    /// If a price is missing.
    pub fn of(profile: &Profile) -> Result<Self, MissingPrice> {
        let work = profile.price(Event::UnmapCall)? + profile.price(Event::UnmapPage)?;
        let command = profile.quote(Event::CmdRange).or_else(|_| profile.quote(Event::CmdPage))?;
        let sync = profile.quote(Event::Sync)?;
        // Commands with a price are exits.
        let exit = profile.quote(Event::Exit).ok();
        let sum = |end: fn(&Price) -> f64| end(command) + end(sync) + exit.map_or(0.0, end);
        let range = [sum(Price::low), sum(Price::high)];
        Ok(Self {
            work_ns: work,
            invalidation_ns: sum(|price| price.ns),
            exits: exit.map_or(0, |_| 1),
            exits_ns: exit.map_or(0.0, |price| price.ns),
            invalidation_range_ns: Some(range).filter(|[low, high]| low < high),
            receiving_cpus: profile.surroundings().receiving,
        })
    }

    fn text(&self) -> String {
        let whole = |ns: f64| grouped(ns.round() as u64);
        let share = 100.0 * self.invalidation_ns / (self.work_ns + self.invalidation_ns);
        let over = self.receiving_cpus.map(|[least, taken, most]| {
            format!(", as {least} to {most} CPUs receive at once, of which {taken} is taken")
        });
        let range = self.invalidation_range_ns.map(|[low, high]| {
            let over = over.unwrap_or_default();
            format!(" (from {} to {}{over})", whole(low), whole(high))
        });
        let mut said = format!(
            "A strict unmap of one page takes {} ns of table work and {} ns{} of invalidation and sync, \
             {share:.0} % of it.",
            whole(self.work_ns),
            whole(self.invalidation_ns),
            range.unwrap_or_default(),
        );
        if self.exits > 0 {
            said.push_str(&format!(
                " Exits to the hypervisor: {}, {} ns of that.",
                self.exits,
                whole(self.exits_ns)
            ));
        }
        said
    }
}
