//! Numbers as text, each digit checked.

/// A number with up to `places` digits behind its point, times ten to the power of `places`, checked.
pub(crate) fn fixed(text: &[u8], places: u32) -> Option<u64> {
    let dot = text.iter().position(|&b| b == b'.')?;
    let (whole, fraction) = (&text[..dot], &text[dot + 1..]);
    let missing = places.checked_sub(u32::try_from(fraction.len()).ok()?)?;
    let fraction = decimal(fraction)?.checked_mul(10u64.checked_pow(missing)?)?;
    let whole = decimal(whole)?.checked_mul(10u64.checked_pow(places)?)?;
    whole.checked_add(fraction)
}

/// A decimal number, checked.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, &b| {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

/// A hexadecimal number with or without `0x`, checked.
pub(crate) fn hexadecimal(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, &b| {
        let digit = match b {
            b'0'..=b'9' => b - b'0',
            b'a'..=b'f' => b - b'a' + 10,
            b'A'..=b'F' => b - b'A' + 10,
            _ => return None,
        };
        Some(sum << 4 | u64::from(digit))
    })
}
