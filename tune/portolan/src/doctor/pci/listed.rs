//! Functions of what `lspci -xxxx` prints, with the lines of `-v` where they are there: driver, group, node, windows.

use std::collections::BTreeMap;

use portolan::addr::PciFunction;

use super::function::{BarWindow, name};
use super::{KnownFunction, MOST_FUNCTIONS};
use crate::firmware::Config;

/// Adds the functions of `text` to `functions`. What `/sys` told of one stays, unless its configuration space is
/// shorter.
pub(super) fn add(text: &str, functions: &mut BTreeMap<PciFunction, KnownFunction>) {
    for (at, space) in Config::of_text(text).into_spaces() {
        let room = functions.len() < MOST_FUNCTIONS;
        if !room && !functions.contains_key(&at) {
            continue;
        }
        let one = functions.entry(at).or_insert_with(|| KnownFunction::unknown(at));
        if space.len() > one.space.len() {
            one.set_space(space);
        }
    }
    let mut of = None;
    for line in text.lines() {
        if !line.starts_with(char::is_whitespace) {
            of = line.split_whitespace().next().and_then(|word| word.parse().ok()).or(of);
            continue;
        }
        if let Some(one) = of.and_then(|at| functions.get_mut(&at)) {
            remark(line.trim(), one);
        }
    }
}

/// Notes what a line of `-v` says of its function.
fn remark(line: &str, one: &mut KnownFunction) {
    let Some((key, value)) = line.split_once(": ") else {
        return;
    };
    let value = value.trim();
    match key {
        "Kernel driver in use" if one.driver.is_none() => one.driver = Some(name(value)),
        "IOMMU group" if one.group.is_none() => one.group = value.parse().ok(),
        "NUMA node" if one.numa.is_none() => one.numa = value.parse().ok(),
        _ => {
            let number = key.strip_prefix("Region ").and_then(|number| number.parse().ok());
            let known = |number| one.windows.iter().any(|own| own.number == number);
            if let Some(number) = number.filter(|number| *number < 6 && !known(*number)) {
                one.windows.extend(window(number, value));
            }
        }
    }
}

/// The window in `Memory at 28000000000 (64-bit, prefetchable) [size=32G]`.
fn window(number: usize, text: &str) -> Option<BarWindow> {
    let place = text.strip_prefix("Memory at ")?.split(' ').next()?;
    let size = text.rsplit_once("[size=")?.1.strip_suffix(']')?;
    let (digits, unit) = size.split_at(size.find(|one: char| !one.is_ascii_digit())?);
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    Some(BarWindow { number, start: u64::from_str_radix(place, 16).unwrap_or(0), bytes })
}
