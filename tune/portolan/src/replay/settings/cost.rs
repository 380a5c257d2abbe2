//! CPU time that mapping costs a Linux: its table work, its invalidations and its waits, each at the profile's
//! price.
//!
//! Table work is that of a replayed policy, and a call for each further piece of a list, which Linux maps one by one.
//! Invalidations are those that the recorded kernel sent, where the trace has them; of a policy that it did not have,
//! those of Linux's rules where these are known, and the replayed policy's elsewhere.

use portolan_sim::profile::{Event, Price, Profile};

use super::Input;
use super::copies::copies;
use super::linux::LinuxCounts;
use crate::counts::{Exposed, Invalidations};
use crate::linux::{LinuxReport, LinuxTimes};
use crate::replay::cost::Causes;
use crate::replay::report::PolicyReport;
use crate::replay::sent::Sent;
use crate::replay::setting::{Saving, pct};
use crate::replay::situation::{KnownBy, Now, Situation};

/// Invalidations of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Commands {
    /// Their number.
    pub(super) count: u64,
    /// Upper limit, if the number depends on time.
    pub(super) most: u64,
    /// Source of that number.
    pub(super) are: CountSource,
}

/// Source of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountSource {
    /// Counted in the recording, or once for each operation.
    Counted,
    /// Predicted, because it depends on time, which no other recording tells.
    Predicted,
}

/// CPU time that mapping costs.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    pub(super) us: f64,
    /// Lower and upper limit, from the known prices.
    pub(super) range_us: [f64; 2],
    /// Cost by cause.
    pub(super) causes: Causes,
    /// Additional time that devices wait for walks.
    pub(super) stall_us: f64,
    pub(super) commands: Commands,
    pub(super) exposed: Exposed,
    /// The price that most of it rests on, if that is assumed.
    pub(super) assumed: Option<Event>,
}

impl Cost {
    /// Cost for the traced kernel, under its own policy; `None` if nothing tells.
    pub(super) fn now(input: &Input<'_>, now: &Situation) -> Option<Self> {
        let us = match now.now {
            Now::Nothing => return None,
            Now::Untranslated => 0.0,
            Now::Bounced => copies(input)?.0,
            Now::Strict | Now::Shadowed | Now::Lazy => return Self::of(input, now.now),
        };
        Some(Self {
            us,
            range_us: [us; 2],
            causes: Causes { copies: us, ..Causes::default() },
            stall_us: 0.0,
            commands: Commands { count: 0, most: 0, are: CountSource::Counted },
            exposed: Exposed::default(),
            assumed: None,
        })
    }

    /// Cost where the kernel is under the policy `how`; `None` if that was not replayed.
    pub(super) fn of(input: &Input<'_>, how: Now) -> Option<Self> {
        let linux = |of: fn(&LinuxCounts) -> &LinuxReport| input.linux.map(of);
        let (policies, linux) = match how {
            Now::Strict => (&["strict-range", "strict-page"][..], linux(|l| &l.strict)),
            // Without Linux's rules the cost of shadowing is not known.
            Now::Shadowed => (&["strict-range"][..], Some(linux(|l| &l.shadowed)?)),
            Now::Lazy => (&["lazy"][..], linux(|l| &l.lazy)),
            Now::Nothing | Now::Untranslated | Now::Bounced => return None,
        };
        let lane = |name: &&str| input.policies.iter().find(|lane| lane.policy == **name);
        let lane = policies.iter().find_map(lane)?;
        let Some(linux) = linux else {
            return Some(Self::of_lane(input, how, lane));
        };
        let cost = Self::of_linux(input, how, lane, linux);
        let other = input
            .linux
            .and_then(|counts| counts.lazy_else.as_ref())
            .filter(|_| how == Now::Lazy && recorded(input, how).is_none());
        Some(match other {
            Some(other) => cost.or(&Self::of_linux(input, how, lane, other)),
            None => cost,
        })
    }

    /// Widens the range to include `other`, if the kernel may be one with that cost.
    fn or(self, other: &Self) -> Self {
        let [low, high] = self.range_us;
        let [other_low, other_high] = other.range_us;
        let most = self.commands.most.max(other.commands.most);
        Self {
            range_us: [low.min(other_low), high.max(other_high)],
            commands: Commands { most, ..self.commands },
            ..self
        }
    }

    /// The whole of `lane`, with a call for each piece.
    fn of_lane(input: &Input<'_>, how: Now, lane: &PolicyReport) -> Self {
        let mut bill = Bill::of_tables(input, lane);
        bill.us += lane.time_us.waits();
        let cpu = lane.time_us.cpu;
        let more = lane.cpu_range_us().unwrap_or([cpu; 2]);
        Self {
            us: bill.us,
            range_us: more.map(|end| bill.us + end - cpu),
            causes: Causes {
                invalidation: lane.time_us.invalidation,
                wait: lane.time_us.sync_wait + lane.time_us.exits,
                ..bill.causes()
            },
            stall_us: lane.time_us.device_stall,
            commands: Commands {
                count: lane.invalidations.total(),
                most: lane.invalidations.total(),
                are: CountSource::of(how),
            },
            exposed: lane.exposed,
            assumed: None,
        }
    }

    /// Cost of Linux: the table work of `lane`, and the invalidations that the kernel sent, or else those of `linux`.
    fn of_linux(input: &Input<'_>, how: Now, lane: &PolicyReport, linux: &LinuxReport) -> Self {
        let recorded = recorded(input, how);
        let (done, syncs, are) = match recorded {
            Some(sent) => {
                let done = sent.invalidations;
                (done, done.total(), CountSource::Counted)
            }
            None => (linux.invalidations, linux.syncs, CountSource::of(how)),
        };
        let flushes = match recorded {
            Some(sent) => sent.device,
            // Each flush is one of the device's TLB too, where it has one.
            None if input.summary.recorded.device > 0 => done.total(),
            None => 0,
        };
        let mut bill = match &linux.time_us {
            Some(times) => Bill::of_linux(input, linux, times),
            None => Bill::of_tables(input, lane),
        };
        bill.pay(Event::CmdRange, done.range);
        bill.pay(Event::CmdContext, done.context);
        bill.pay(Event::CmdGlobal, done.global);
        bill.pay(Event::CmdPage, flushes);
        bill.pay(Event::Sync, syncs);
        bill.pay(Event::Exit, syncs);
        Self {
            us: bill.us,
            range_us: bill.range_us(),
            causes: bill.causes(),
            stall_us: lane.time_us.device_stall,
            commands: Commands {
                count: done.total(),
                most: match are {
                    CountSource::Counted => done.total(),
                    CountSource::Predicted => done.total().max(linux.syncs_range[1]),
                },
                are,
            },
            exposed: linux.exposed,
            assumed: bill.assumed(),
        }
    }
}

impl CountSource {
    /// Source of the invalidations of a kernel under the policy `how`, from a recording of another policy.
    fn of(how: Now) -> Self {
        match how {
            Now::Lazy => Self::Predicted,
            _ => Self::Counted,
        }
    }
}

/// Invalidations that the kernel sent, if its policy is `how` and the trace itself shows that.
fn recorded(input: &Input<'_>, how: Now) -> Option<Sent> {
    let now = Situation::of(input);
    let told = now.now == how && matches!(now.known_by, KnownBy::Line(_));
    Sent::of(input.summary).filter(|sent| told && sent.invalidations != Invalidations::default())
}

/// Events that are paid.
struct Bill<'a> {
    profile: &'a Profile,
    us: f64,
    paid: Vec<(Event, u64)>,
    /// Amount by which the rest may differ, at either end of its prices.
    spread_us: [f64; 2],
    /// Microseconds of each event.
    by_event: Vec<(Event, f64)>,
}

impl<'a> Bill<'a> {
    /// The table work of `lane`, as Linux does it: piece by piece.
    fn of_tables(input: &Input<'a>, lane: &PolicyReport) -> Self {
        let (map, unmap) = (lane.time_us.map, lane.time_us.unmap);
        let mut bill = Self {
            profile: input.profile,
            us: map + unmap,
            paid: Vec::new(),
            spread_us: [0.0; 2],
            by_event: vec![(Event::MapCall, map), (Event::UnmapCall, unmap)],
        };
        bill.pay(Event::MapCall, further_pieces(input));
        bill
    }

    /// Costs of Linux's tables, addresses and queues, at the prices of its own path.
    fn of_linux(input: &Input<'a>, linux: &LinuxReport, times: &LinuxTimes) -> Self {
        let profile = input.profile;
        let done = linux.invalidations;
        let paid = [
            (Event::CmdRange, done.range),
            (Event::CmdContext, done.context),
            (Event::Sync, linux.syncs),
            (Event::Exit, linux.syncs),
        ];
        let ends = [Price::low, Price::high].map(|end| spread_us(profile, &paid, end));
        let spread = |at: usize| times.range[at] - times.total - ends[at];
        Self {
            profile,
            us: times.map + times.unmap + times.addresses + times.queues,
            paid: Vec::new(),
            spread_us: [spread(0), spread(1)],
            by_event: vec![
                (Event::LinuxMap, times.map),
                (Event::LinuxUnmap, times.unmap),
                (Event::IovaCached, times.addresses),
                (Event::FlushQueueEntry, times.queues),
            ],
        }
    }

    fn pay(&mut self, event: Event, count: u64) {
        let Ok(price) = self.profile.quote(event) else {
            return;
        };
        let us = count as f64 * price.ns / 1000.0;
        self.us += us;
        self.paid.push((event, count));
        self.by_event.push((event, us));
    }

    fn of(&self, event: Event) -> f64 {
        let same = self.by_event.iter().filter(|(other, _)| *other == event);
        same.map(|(_, us)| us).sum()
    }

    fn causes(&self) -> Causes {
        let both = |one, other| self.of(one) + self.of(other);
        let map = both(Event::MapCall, Event::LinuxMap);
        let unmap = both(Event::UnmapCall, Event::LinuxUnmap);
        let addresses = both(Event::IovaCached, Event::FlushQueueEntry);
        let wait = both(Event::Sync, Event::Exit);
        Causes {
            map,
            unmap,
            addresses,
            invalidation: self.us - map - unmap - addresses - wait,
            wait,
            copies: 0.0,
        }
    }

    fn range_us(&self) -> [f64; 2] {
        let ends = [Price::low, Price::high].map(|end| spread_us(self.profile, &self.paid, end));
        [0, 1].map(|at| self.us + ends[at] + self.spread_us[at])
    }

    /// The event that costs most, if its price is assumed and it is half of all.
    fn assumed(&self) -> Option<Event> {
        let of = |event: Event| self.of(event);
        let events = self.by_event.iter().map(|(event, _)| *event);
        let most = events.max_by(|a, b| of(*a).total_cmp(&of(*b)))?;
        let price = self.profile.quote(most).ok()?;
        let assumed = price.source.starts_with("assumed");
        (assumed && of(most) >= self.us / 2.0 && self.us > 0.0).then_some(most)
    }
}

/// Price of a further piece of a list: Linux's own, where the machine has it.
pub(super) fn of_piece(profile: &Profile) -> Event {
    match profile.quote(Event::LinuxPiece) {
        Ok(_) => Event::LinuxPiece,
        Err(_) => Event::MapCall,
    }
}

/// Pieces of lists beyond one for each list: calls that Linux makes and this library does not.
pub(super) fn further_pieces(input: &Input<'_>) -> u64 {
    let lists = &input.shape.scattered;
    input.shape.scattered_pieces.saturating_sub(lists.count)
}

/// Amount by which `paid` differs at one end of the prices' ranges, in microseconds.
pub(in crate::replay) fn spread_us(
    profile: &Profile,
    paid: &[(Event, u64)],
    end: fn(&Price) -> f64,
) -> f64 {
    let more = paid.iter().filter_map(|(event, count)| {
        let price = profile.quote(*event).ok()?;
        Some(*count as f64 * (end(price) - price.ns) / 1000.0)
    });
    more.sum()
}

/// Saving of `after` against `before`.
pub(super) fn saving(before: &Cost, after: &Cost) -> Option<Saving> {
    let end = |n: usize| pct(before.range_us[n], after.range_us[n]);
    let saving = Saving::of(before.us, after.us, [end(0)?, end(1)?])?;
    Some(saving.to(after.range_us))
}
