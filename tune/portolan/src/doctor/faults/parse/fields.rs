//! Numbers, devices and names in a line.

use portolan::addr::PciFunction;

use super::super::seen::Sender;

/// A hexadecimal number, with or without `0x`.
pub(super) fn hexadecimal(word: &str) -> Option<u64> {
    let digits = word.strip_prefix("0x").unwrap_or(word);
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    all.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// The word behind `key`, up to a space, comma or bracket.
pub(super) fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let ends = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']' | ';');
    let mut from = 0;
    while let Some(at) = text.get(from..)?.find(key) {
        let (start, end) = (from + at, from + at + key.len());
        let before = text.get(..start)?.chars().next_back();
        if before.is_none_or(ends) {
            return text.get(end..)?.trim_start().split(ends).next();
        }
        from = end;
    }
    None
}

/// The hexadecimal number behind `key`.
pub(super) fn number(text: &str, key: &str) -> Option<u64> {
    hexadecimal(value(text, key)?)
}

/// A PCI function as the kernel's drivers print it: `01:00.0`, `0000:01:00.0`, `0x01:0x00.0`.
pub(super) fn function(word: &str) -> Option<Sender> {
    let plain = word.replace("0x", "");
    let function: PciFunction = plain.parse().ok()?;
    Some(Sender::Pci { function, has_segment: plain.matches(':').count() == 2 })
}

/// The last word of `head`, without its colon: the name of the device that a message is about.
pub(super) fn subject(head: &str) -> &str {
    head.trim_end()
        .strip_suffix(':')
        .and_then(|head| head.split_whitespace().next_back())
        .unwrap_or("")
}

/// Driver and function that a message is about: `nvme 0000:01:00.0: `.
pub(super) fn driver_and_function(head: &str) -> Option<(&str, Sender)> {
    let head = head.trim_end().strip_suffix(':')?;
    let mut words = head.split_whitespace().rev();
    let sender = function(words.next()?)?;
    let driver = words.next().filter(|word| !word.ends_with([']', ':']))?;
    Some((driver, sender))
}
