//! Axes: places of numbers, and ticks.
//!
//! The plotting library sees places between 0 and 1 alone: the ends of an axis are finite and apart for any numbers.

use crate::figure::{Axis, Scale};
use crate::unit::Unit;

#[cfg(test)]
mod tests;

/// Numbers beyond are drawn here: differences and sums of two stay finite.
const MOST: f64 = 1e300;
/// Ends that are closer than this, in proportion, are one.
const APART: f64 = 1e-9;

/// Numbers that an axis shows in addition to its values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    /// Zero: lengths are compared.
    Zero,
    /// Zero, if that takes at most half of the axis.
    NearZero,
    /// Ends of the data.
    Data,
}

/// A tick: its place and its text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    /// The place, from 0 to 1.
    pub(crate) at: f64,
    /// Text next to the mark.
    pub(crate) text: String,
}

/// An axis with its ends.
#[derive(Clone, Debug)]
pub(crate) struct Ruler {
    /// Ends; of a logarithmic axis both are above zero.
    low: f64,
    high: f64,
    scale: Scale,
    unit: Unit,
    /// Least distance of ticks; 1 for whole numbers.
    least: f64,
    /// Text at the lower end of a logarithmic axis, below its least number: zero and less.
    foot: Option<&'static str>,
}

/// The part of such an axis that is below its least number.
const FOOT: f64 = 0.1;

impl Ruler {
    /// Makes an axis for the finite numbers of `values`.
    pub(crate) fn over(values: impl Iterator<Item = f64>, axis: &Axis, show: Show) -> Self {
        let (mut low, mut high, mut least) = (f64::INFINITY, f64::NEG_INFINITY, 1.0);
        let mut foot = None;
        for value in values.filter(|value| value.is_finite()).map(within) {
            if axis.scale == Scale::Log && value <= 0.0 {
                let said = if value < 0.0 { "≤ 0" } else { "0" };
                foot = foot.max(Some(said)).filter(|_| show != Show::Zero);
                continue;
            }
            low = low.min(value);
            high = high.max(value);
            if value.fract() != 0.0 {
                least = 0.0;
            }
        }
        if low > high {
            (low, high) = match axis.scale {
                Scale::Linear => (0.0, 1.0),
                Scale::Log => (1.0, 10.0),
            };
        }
        let (scale, unit) = (axis.scale, axis.unit);
        let mut ruler = Self { low, high, scale, unit, least, foot };
        match scale {
            Scale::Linear => ruler.open(show),
            Scale::Log => ruler.open_log(show),
        }
        ruler
    }

    /// Brings zero in and ends apart.
    fn open(&mut self, show: Show) {
        let near = match show {
            Show::Zero => true,
            Show::NearZero => self.low < self.high / 2.0,
            Show::Data => false,
        };
        if near || (show == Show::NearZero && self.low == self.high) {
            self.low = self.low.min(0.0);
            self.high = self.high.max(0.0);
        }
        let size = self.low.abs().max(self.high.abs());
        if size < 1e-290 {
            (self.low, self.high) = (0.0, 1.0);
        } else if self.high - self.low < size * APART {
            (self.low, self.high) = (self.low - size / 2.0, self.high + size / 2.0);
        }
    }

    /// Ends on 1, 2 or 5 times a power of ten, or on a power of two.
    fn open_log(&mut self, show: Show) {
        self.low = self.low.max(1.0 / MOST);
        self.high = self.high.max(1.0 / MOST);
        if show != Show::Data || self.high <= self.low * (1.0 + APART) {
            // The least bar has a length too.
            let below = if show == Show::Zero { 2.0 } else { 1.0 };
            self.low = self.marks(self.low / below).0;
            self.high = self.marks(self.high).1;
        }
        if self.high <= self.low * (1.0 + APART) {
            self.high = self.low * 10.0;
        }
    }

    /// The marks of a logarithmic axis on either side of `value`, which may be one.
    fn marks(&self, value: f64) -> (f64, f64) {
        if self.unit == Unit::Bytes {
            let power = value.log2();
            return (power.floor().exp2(), power.ceil().exp2());
        }
        let decade = value.log10().floor();
        let marks = [0.5, 1.0, 2.0, 5.0, 10.0].map(|times| times * 10f64.powf(decade));
        let (mut low, mut high) = (marks[0], marks[4]);
        for mark in marks {
            let slack = 1.0 + APART;
            if mark <= value * slack {
                low = mark;
            }
            if mark * slack >= value {
                high = high.min(mark);
            }
        }
        (low, high)
    }

    /// Moves the upper end of an axis to a tick, and the lower end if it is below zero.
    pub(crate) fn rounded(mut self, most: usize) -> Self {
        if self.scale == Scale::Linear {
            let step = self.step(most);
            self.high = (self.high / step - APART).ceil() * step;
            if self.low != 0.0 {
                self.low = (self.low / step + APART).floor() * step;
            }
        }
        self
    }

    /// Place of `value`, from 0 to 1.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let value = within(value);
        let at = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value <= 0.0 => 0.0,
            Scale::Log => {
                let [value, low, high] = [value, self.low, self.high].map(f64::log10);
                let foot = if self.foot.is_some() { FOOT } else { 0.0 };
                foot + (1.0 - foot) * (value - low) / (high - low)
            }
        };
        if at.is_finite() { at.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// `value` with its unit.
    pub(crate) fn say(&self, value: f64) -> String {
        self.unit.say(value)
    }

    /// Chooses about `most` ticks at round numbers.
    pub(crate) fn ticks(&self, most: usize) -> Vec<Tick> {
        let values = match self.scale {
            Scale::Linear => self.even(most),
            Scale::Log => self.powers(most),
        };
        let foot = self.foot.map(|said| Tick { at: 0.0, text: said.to_owned() });
        foot.into_iter().chain(self.at_values(&values)).collect()
    }

    /// Ticks at `values`, with enough digits that no two look alike.
    pub(crate) fn at_values(&self, values: &[f64]) -> Vec<Tick> {
        let said = |digits| -> Vec<String> {
            let say = |value: &f64| self.unit.say_to(*value, digits);
            values.iter().map(say).collect()
        };
        let told_apart = |texts: &Vec<String>| texts.windows(2).all(|pair| pair[0] != pair[1]);
        let texts = (3..=15).map(said).find(told_apart).unwrap_or_else(|| said(15));
        let places = values.iter().map(|value| self.at(*value));
        places.zip(texts).map(|(at, text)| Tick { at, text }).collect()
    }

    /// The distance of ticks: 1, 2 or 5 times a power of ten, bytes by powers of two.
    fn step(&self, most: usize) -> f64 {
        let rough = (self.high - self.low) / most.max(1) as f64;
        let step = match self.unit {
            Unit::Bytes if rough >= 1.0 => rough.log2().ceil().exp2(),
            _ => {
                let decade = 10f64.powf(rough.log10().floor());
                let times = [1.0, 2.0, 5.0].into_iter().find(|times| times * decade >= rough);
                times.unwrap_or(10.0) * decade
            }
        };
        step.max(self.least)
    }

    fn even(&self, most: usize) -> Vec<f64> {
        let step = self.step(most);
        let first = (self.low / step - APART).ceil();
        let count = (self.high / step + APART).floor() - first;
        let count = count.clamp(0.0, 2.0 * most as f64) as usize;
        (0..=count).map(|nth| (first + nth as f64) * step).collect()
    }

    fn powers(&self, most: usize) -> Vec<f64> {
        let base: f64 = if self.unit == Unit::Bytes { 2.0 } else { 10.0 };
        let power = |value: f64| value.log10() / base.log10();
        let first = (power(self.low) - APART).ceil() as i64;
        let last = (power(self.high) + APART).floor() as i64;
        let between = |value: &f64| (self.low..=self.high * (1.0 + APART)).contains(value);
        if base == 10.0 && last - first < 3 {
            let decades = (first - 1..=last).map(|decade| 10f64.powi(decade as i32));
            let marks = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|times| times * decade));
            let marks: Vec<f64> = marks.filter(between).collect();
            if marks.len() <= most.max(2) {
                return marks;
            }
        }
        let steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000];
        let fits = |step: &&i64| (last - first) / **step < most.max(2) as i64;
        let step = *steps.iter().find(fits).unwrap_or(&2000);
        // Decades at multiples, powers of two from the lowest on.
        let first = match self.unit {
            Unit::Bytes => first,
            _ => (first + step - 1).div_euclid(step) * step,
        };
        let powers = (first..=last).step_by(step as usize);
        powers.map(|power| base.powi(power as i32)).collect()
    }
}

/// `value`, no farther from zero than sums and differences bear.
pub(crate) fn within(value: f64) -> f64 {
    value.clamp(-MOST, MOST)
}
