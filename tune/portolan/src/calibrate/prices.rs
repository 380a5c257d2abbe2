//! Prices of a profile from a fit, and the reasons why some cannot be determined.
//!
//! Where calls tell the sum of two prices and not each, one stays as it was and the other gets the rest; the profiles
//! that come with the program were put together in the same way. A price that the profile took over from
//! another one which is measured now (a command for a context from one for a page) is kept in proportion, as assumed.

use std::collections::BTreeMap;

use portolan_cli::display::grouped;
use portolan_sim::profile::{Event, Price, Profile};
use serde::Serialize;

use super::function::Family;
use super::judge::Judged;
use super::robust::{Estimate, FittedLine, Slope, rounded};
use super::samples::CommandScope;

/// Prices that follow another: a profile that has both took the first over, or has to keep them in order.
const FOLLOWERS: [(Event, Event); 8] = [
    (Event::LinuxPiece, Event::LinuxMap),
    (Event::IovaTree, Event::IovaCached),
    (Event::FlushQueueEntry, Event::IovaCached),
    (Event::UnmapCallTables, Event::UnmapCall),
    (Event::MapPage, Event::PteWrite),
    (Event::CmdContext, Event::CmdPage),
    (Event::CmdGlobal, Event::CmdPage),
    (Event::CmdContext, Event::CmdRange),
];
/// Commands that name addresses: one instruction of the hardware, so one price.
const BY_ADDRESS: [Event; 3] = [Event::CmdPage, Event::CmdPageAfterMap, Event::CmdRange];

/// A price that is another one now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NewPrice {
    /// Event that the price is for.
    pub event: Event,
    /// Price in the profile before, in nanoseconds.
    pub before_ns: Option<f64>,
    /// New price.
    #[serde(flatten)]
    pub price: Price,
}

/// A price that did not change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Untold {
    /// Event that the price is for.
    pub event: Event,
    /// Price in the profile, in nanoseconds.
    pub ns: Option<f64>,
    /// Reason why the traces do not tell it.
    pub why: String,
}

/// Both.
pub(super) struct Told<'b> {
    base: &'b Profile,
    pub(super) prices: Vec<NewPrice>,
    pub(super) untold: BTreeMap<Event, Untold>,
}

impl<'b> Told<'b> {
    /// The prices of `base` that `fits` tell.
    pub(super) fn of(base: &'b Profile, fits: &BTreeMap<(Family, CommandScope), Judged>) -> Self {
        let mut told = Self { base, prices: Vec::new(), untold: BTreeMap::new() };
        let fit = |family, kind| fits.get(&(family, kind));
        told.table(fit(Family::Map, CommandScope::Pages), Family::Map);
        told.table(fit(Family::Unmap, CommandScope::Pages), Family::Unmap);
        told.linux(fit(Family::Map, CommandScope::Pages), Family::Map, Event::LinuxMap);
        told.linux(fit(Family::Unmap, CommandScope::Pages), Family::Unmap, Event::LinuxUnmap);
        // An unmap that gave its addresses back at once is told from one that queued by the call that does so.
        if with_line(fit(Family::GiveAddresses, CommandScope::Pages)).is_some() {
            let queued = fit(Family::Queue, CommandScope::Pages);
            told.linux(queued, Family::Queue, Event::FlushQueueEntry);
        }
        told.leave(
            Event::FlushQueueEntry,
            "no unmap in the trace is known to have joined a flush queue",
        );
        let addresses = [Family::TakeAddresses, Family::GiveAddresses];
        let addresses = addresses.map(|family| (fit(family, CommandScope::Pages), family));
        told.sum(Event::IovaCached, addresses, &[]);
        let kinds = [CommandScope::Pages, CommandScope::Context, CommandScope::Global];
        // With the driver's work around it, where that is told.
        let has_line = |family| kinds.map(|kind| with_line(fit(family, kind)).is_some());
        let family =
            if has_line(Family::Flush).contains(&true) { Family::Flush } else { Family::Submit };
        let [pages, context, global] = kinds.map(|kind| fit(family, kind));
        told.submissions(&[
            (&BY_ADDRESS, pages),
            (&[Event::CmdContext], context),
            (&[Event::CmdGlobal], global),
        ]);
        let bounce = [Family::Take, Family::Give, Family::Copy];
        told.bounce(bounce.map(|family| fit(family, CommandScope::Pages)));
        for (follower, of) in FOLLOWERS {
            told.follow(follower, of);
        }
        for (event, _) in base.prices().iter() {
            if told.found(event).is_none() {
                told.leave(event, "no function of Linux stands for it");
            }
        }
        told.untold.retain(|event, _| {
            let has = |price: &NewPrice| price.event == *event;
            base.prices().get(*event).is_some() && !told.prices.iter().any(has)
        });
        told.prices.sort_by_key(|price| price.event);
        told
    }

    fn found(&self, event: Event) -> Option<&NewPrice> {
        self.prices.iter().find(|price| price.event == event)
    }

    fn before(&self, event: Event) -> Option<f64> {
        self.base.prices().get(event).map(|price| price.ns)
    }

    /// The current price.
    fn now(&self, event: Event) -> f64 {
        let new = self.found(event).map(|price| price.price.ns);
        new.or(self.before(event)).unwrap_or(0.0)
    }

    fn leave(&mut self, event: Event, why: impl Into<String>) {
        let (ns, why) = (self.before(event), why.into());
        let untold = Untold { event, ns, why };
        self.untold.entry(event).or_insert(untold);
    }

    /// Sets a price that the profile has.
    fn set(&mut self, event: Event, found: Estimate, source: String) {
        let before_ns = self.before(event);
        if before_ns.is_none() || self.found(event).is_some() {
            return;
        }
        let price = Price {
            ns: rounded(found.ns),
            low_ns: Some(rounded(found.low_ns.min(found.ns))),
            high_ns: Some(rounded(found.high_ns.max(found.ns))),
            source,
        };
        self.prices.push(NewPrice { event, before_ns, price });
    }

    /// Sets the price of `rest` from calls whose other parts are `known`: a number of each event.
    fn remainder(&mut self, judged: &Judged, sum: Estimate, known: &[(Event, f64)], rest: Event) {
        let parts = known.iter().map(|(event, count)| self.now(*event) * count);
        let taken: f64 = parts.sum();
        let from = self.base.name();
        if sum.ns > taken {
            let names = known
                .iter()
                .map(|(event, count)| match *count {
                    1.0 => event.to_string(),
                    count => format!("{} times {event}", rounded(count)),
                })
                .collect::<Vec<_>>()
                .join(" and ");
            let source = format!("{}, less {names} as in {from}", judged.source());
            return self.set(rest, sum.map(|ns| (ns - taken).max(0.0)), source);
        }
        // Cheaper than its known parts: all of them are cheaper here, and the calls do not tell which.
        let all = taken + self.now(rest);
        let factor = if all > 0.0 { sum.ns / all } else { 0.0 };
        let source = judged.source();
        let source = format!("assumed: the same part of the sum as in {from}; the sum is {source}");
        let events = known.iter().map(|(event, _)| *event).chain([rest]);
        let scaled = events.map(|event| (event, self.now(event) * factor));
        for (event, ns) in scaled.collect::<Vec<_>>() {
            let (low_ns, high_ns) = (0.0, sum.high_ns.max(ns));
            let found = Estimate { ns, low_ns, high_ns };
            self.set(event, found, source.clone());
        }
    }

    /// Mapping and unmapping in a table.
    fn table(&mut self, judged: Option<&Judged>, family: Family) {
        let (call, page) = match family {
            Family::Unmap => (Event::UnmapCall, Event::UnmapPage),
            _ => (Event::MapCall, Event::PteWrite),
        };
        let Some((judged, line)) = with_line(judged) else {
            let why = absent(judged, family);
            self.leave(call, why.as_str());
            return self.leave(page, why);
        };
        if line.each == Slope::Unsaid {
            let why = "the trace does not say how many pages a call is for: enable the events iommu:map and unmap";
            self.leave(call, why);
            return self.leave(page, why);
        }
        if let Slope::Told(each) = line.each {
            self.set(call, line.call, judged.source());
            return self.set(page, each, judged.source());
        }
        self.leave(page, inseparable(line, family));
        self.remainder(judged, line.call, &[(page, line.units)], call);
    }

    /// Mapping and unmapping in a table as Linux does it: calls of the mean size.
    fn linux(&mut self, judged: Option<&Judged>, family: Family, event: Event) {
        match with_line(judged) {
            Some((judged, line)) => self.set(event, whole(line), judged.source()),
            None => self.leave(event, absent(judged, family)),
        }
    }

    /// Sets prices of commands of each width. The first width with calls tells the time of waiting, which is
    /// subtracted from the others.
    fn submissions(&mut self, widths: &[(&[Event], Option<&Judged>)]) {
        let mut wait_is_told = false;
        for (forms, judged) in widths {
            let forms = forms.iter().copied();
            let forms: Vec<Event> = forms.filter(|form| self.before(*form).is_some()).collect();
            let Some((judged, line)) = with_line(*judged) else {
                let why = match judged.map_or(0, |judged| judged.seen) {
                    0 => "no submission in the trace has commands of that width alone".to_owned(),
                    seen => format!("{seen} submissions of that width are too few"),
                };
                for form in forms {
                    self.leave(form, why.as_str());
                }
                continue;
            };
            match (wait_is_told, forms.as_slice()) {
                (_, []) => {}
                (false, _) => self.submission(judged, line, &forms),
                (true, [event, ..]) => self.wide(*event, judged, line),
            }
            wait_is_told = true;
        }
        if !wait_is_told {
            for event in [Event::Sync, Event::Exit] {
                self.leave(event, absent(None, Family::Submit));
            }
        }
    }

    /// Commands, and waiting for them.
    fn submission(&mut self, judged: &Judged, line: &FittedLine, forms: &[Event]) {
        let wait = match self.before(Event::Exit) {
            Some(_) => Event::Exit,
            None => Event::Sync,
        };
        // Event that occurs once for each submission, in addition to its commands.
        let once: &[(Event, f64)] = match wait {
            Event::Exit => &[(Event::Sync, 1.0)],
            _ => &[],
        };
        if let Slope::Told(each) = line.each {
            for form in forms {
                self.set(*form, each, judged.source());
            }
            let why = "each submission has one wait and one exit: only their sum is told";
            self.leave(Event::Sync, why);
            return match once {
                [] => self.set(wait, line.call, judged.source()),
                _ => self.remainder(judged, line.call, once, wait),
            };
        }
        for event in forms.iter().chain([&Event::Sync, &Event::Exit]) {
            self.leave(*event, inseparable(line, Family::Submit));
        }
        let command = forms.last().copied();
        let known = command.map(|event| (event, line.units));
        let known: Vec<(Event, f64)> = known.into_iter().chain(once.iter().copied()).collect();
        self.remainder(judged, line.call, &known, wait);
        // If the parts were scaled, the other form is the same instruction.
        let scaled = command.and_then(|event| self.found(event));
        if let Some(price) = scaled.map(|new| new.price.clone()) {
            for form in forms {
                self.set(*form, Estimate::of(&price), price.source.clone());
            }
        }
    }

    /// Sets the price of commands that are waited for like the others.
    fn wide(&mut self, event: Event, judged: &Judged, line: &FittedLine) {
        let waits = self.now(Event::Sync) + self.now(Event::Exit);
        let whole = line.predicts(line.units);
        if whole <= waits {
            let why = "its submissions take no longer than the wait in them";
            return self.leave(event, why);
        }
        let found = Estimate { ns: whole, high_ns: line.call.high_ns.max(whole), ..line.call };
        let part = |ns: f64| ((ns - waits) / line.units.max(1.0)).max(0.0);
        let source = format!("{}, less the wait of the others", judged.source());
        self.set(event, found.map(part), source);
    }

    /// Slots taken and given back, and bytes copied.
    fn bounce(&mut self, [take, give, copy]: [Option<&Judged>; 3]) {
        let mut call = Vec::new();
        match with_line(copy) {
            None => self.leave(Event::CopyByte, absent(copy, Family::Copy)),
            Some((judged, line)) => match line.each {
                Slope::Told(each) => {
                    call.push(line.call);
                    self.set(Event::CopyByte, each, judged.source());
                }
                _ => self.leave(Event::CopyByte, inseparable(line, Family::Copy)),
            },
        }
        let calls = [(take, Family::Take), (give, Family::Give)];
        self.sum(Event::CopyCall, calls, &call);
    }

    /// Sets a price that is the sum of a take and a give-back, which are calls of their own; `more` is a part of the
    /// price.
    fn sum(
        &mut self,
        event: Event,
        [(take, taking), (give, giving)]: [(Option<&Judged>, Family); 2],
        more: &[Estimate],
    ) {
        match (with_line(take), with_line(give)) {
            (Some((take, taken)), Some((_, given))) => {
                let calls = [more, &[whole(taken), whole(given)]].concat();
                let sum = |part: fn(&Estimate) -> f64| calls.iter().map(part).sum();
                let found = Estimate {
                    ns: sum(|part| part.ns),
                    low_ns: sum(|part| part.low_ns),
                    high_ns: sum(|part| part.high_ns),
                };
                let (take, gave) = (take.source(), grouped(given.calls));
                let source = format!("{take}, and {gave} that give them back");
                self.set(event, found, source);
            }
            (None, _) => self.leave(event, absent(take, taking)),
            (_, None) => self.leave(event, absent(give, giving)),
        }
    }

    /// Keeps a price in proportion to a measured one.
    fn follow(&mut self, follower: Event, of: Event) {
        let (Some(new), Some(before)) = (self.found(of).cloned(), self.before(follower)) else {
            return;
        };
        let factor = match new.before_ns {
            Some(was) if was > 0.0 => before / was,
            _ => 1.0,
        };
        let from = self.base.name();
        let source = match factor {
            1.0 => format!("assumed: as {of}, which is measured; so it is in {from}"),
            _ => format!(
                "assumed: {} times {of}, which is measured; so it is in {from}",
                rounded(factor)
            ),
        };
        let found = Estimate::of(&new.price);
        self.set(follower, found.map(|ns| ns * factor), source);
    }
}

fn with_line(judged: Option<&Judged>) -> Option<(&Judged, &FittedLine)> {
    let judged = judged?;
    Some((judged, judged.line.as_ref()?))
}

/// Time of a call of mean size, with all of its units.
fn whole(line: &FittedLine) -> Estimate {
    let more = match line.each {
        Slope::Told(each) => each.ns * line.units,
        _ => 0.0,
    };
    line.call.map(|ns| ns + more)
}

/// Reason for a missing line.
fn absent(judged: Option<&Judged>, family: Family) -> String {
    match judged.map_or(0, |judged| judged.seen) {
        0 => format!("no call of {} in the trace", family.functions()),
        seen => format!(
            "{seen} calls that {} are too few: {} are needed",
            family.name(),
            super::robust::FEWEST * 5 / 4
        ),
    }
}

/// Reason why a unit's price is not told from a call's.
fn inseparable(line: &FittedLine, family: Family) -> String {
    let units = family.units();
    let [least, most] = line.range;
    match line.each {
        Slope::Unsaid => format!("the trace does not say how many {units} a call is for"),
        Slope::OneSize if least == most => {
            format!(
                "all calls have one size ({units}: {least}): call and unit cannot be told apart"
            )
        }
        Slope::OneSize => format!(
            "too few calls of different sizes ({units}: {least} to {most}): call and unit cannot be told apart"
        ),
        Slope::Buckets => {
            "the histogram's buckets are wider than what a unit makes of a call".to_owned()
        }
        Slope::Noise | Slope::Told(_) => {
            format!("calls for more {units} do not take longer by more than calls vary")
        }
    }
}
