//! Units, and numbers as people write them.

/// Unit of an axis or a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Numbers of things, or of a unit that the axis' name states: `12,500`, `1.2 M`.
    #[default]
    Count,
    /// Bytes, in powers of 1,024: `64 KiB`.
    Bytes,
    /// Microseconds, said as ns, µs, ms or s.
    Micros,
    /// Parts of a hundred: `12.5 %`.
    Percent,
}

/// Prefixes of a unit: each with the least number for it, and the divisor.
type Steps = &'static [(f64, f64, &'static str)];

const COUNT: Steps = &[
    (1e15, 1.0, ""),
    (1e12, 1e12, "T"),
    (1e9, 1e9, "G"),
    (1e6, 1e6, "M"),
    (1e5, 1e3, "k"),
    (0.0, 1.0, ""),
];
const BYTES: Steps = &[
    (power(50), power(50), "PiB"),
    (power(40), power(40), "TiB"),
    (power(30), power(30), "GiB"),
    (power(20), power(20), "MiB"),
    (power(10), power(10), "KiB"),
    (0.0, 1.0, "B"),
];
const MICROS: Steps = &[(1e6, 1e6, "s"), (1e3, 1e3, "ms"), (1.0, 1.0, "µs"), (0.0, 1e-3, "ns")];
const PERCENT: Steps = &[(0.0, 1.0, "%")];

const fn power(exponent: u32) -> f64 {
    (1u64 << exponent) as f64
}

impl Unit {
    /// `value` with three significant digits, or all digits of a whole number, and its unit; zero has no unit.
    #[must_use]
    pub fn say(self, value: f64) -> String {
        self.say_to(value, 3)
    }

    /// `value` with at least `digits` that count.
    pub(crate) fn say_to(self, value: f64, digits: usize) -> String {
        if !value.is_finite() {
            return "not a number".to_owned();
        }
        let steps = match self {
            Self::Count => COUNT,
            Self::Bytes => BYTES,
            Self::Micros => MICROS,
            Self::Percent => PERCENT,
        };
        let step = steps.iter().find(|(from, ..)| value.abs() >= *from);
        let Some((_, divisor, unit)) = step.filter(|_| value != 0.0) else {
            return "0".to_owned();
        };
        let said = plain(value / divisor, digits);
        match *unit {
            "" => said,
            unit => format!("{said}\u{a0}{unit}"),
        }
    }
}

/// A number without its unit: commas between thousands, no zeros behind the point.
fn plain(value: f64, digits: usize) -> String {
    let size = value.abs();
    if !(1e-3..1e6).contains(&size) {
        let said = format!("{value:.*e}", digits.saturating_sub(1));
        return match said.split_once('e') {
            Some((number, exponent)) => format!("{}e{exponent}", trimmed(number)).replace('-', "−"),
            None => said,
        };
    }
    let before = if size < 1.0 { 0 } else { size.log10() as usize + 1 };
    let said = format!("{value:.*}", digits.saturating_sub(before));
    let (sign, said) = said.strip_prefix('-').map_or(("", &*said), |said| ("−", said));
    let said = trimmed(said);
    let whole = said.find('.').unwrap_or(said.len());
    let mut grouped = sign.to_owned();
    for (at, digit) in said.char_indices() {
        if at > 0 && at < whole && (whole - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn trimmed(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}
