//! Resource quantities: `10Gi`, `500M`, `1e3`.

/// Maximum length of the number without its suffix. Longer numbers are rejected.
const MAX_DIGITS: usize = 64;

const NANO: i128 = 1_000_000_000;

const MILLI: i128 = 1_000_000;

/// Larger values are capped at the largest signed 64-bit number, as in Kubernetes.
const CAP: i128 = (i64::MAX as i128) * NANO;

/// The value in units of 10⁻⁹, rounded away from zero and capped. `None` if the text is not a quantity or its
/// number is too long.
pub(crate) fn parse(text: &str) -> Option<i128> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) || number.len() > MAX_DIGITS {
        return None;
    }
    let (base, exponent) = scale(suffix)?;
    let digits: String = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let exponent = exponent + 9 - i32::try_from(fraction.len()).ok()?;
    let value = match digits {
        "" => 0,
        digits => scale_digits(digits, base, exponent),
    };
    Some(if negative { -value } else { value })
}

/// The canonical form of a quantity, rounded up to thousandths. It has the largest suffix with which the
/// number is an integer. `None` if the text is not a quantity.
pub(crate) fn canonical(text: &str) -> Option<String> {
    // ResourceLists are rounded up to thousandths.
    let value = parse(text)?;
    let value =
        value.div_euclid(MILLI).checked_add(i128::from(value.rem_euclid(MILLI) != 0))?.checked_mul(MILLI)?;
    let suffix = text.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-'));
    if value.abs() >= CAP && !suffix.ends_with('i') {
        return canonical_large(text);
    }
    let binary = suffix.ends_with('i') && value.abs() >= 1024 * NANO && value % NANO == 0;
    if binary {
        let (mut number, mut power) = (value / NANO, 0);
        while number % 1024 == 0 && power < 6 {
            number /= 1024;
            power += 1;
        }
        return Some(format!("{number}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].get(power)?));
    }
    let (mut number, mut step) = (value, 0);
    while number != 0 && number % 1000 == 0 && step < 9 {
        number /= 1000;
        step += 1;
    }
    if number == 0 {
        return Some("0".to_owned());
    }
    let exponential = suffix.len() > 1 && suffix.starts_with(['e', 'E']);
    let exponent = (i32::try_from(step).ok()? - 3) * 3;
    Some(match (exponential, exponent) {
        (_, 0) => number.to_string(),
        (true, exponent) => format!("{number}e{exponent}"),
        (false, _) => format!("{number}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"].get(step)?),
    })
}

/// The canonical form of a decimal quantity that is too large for exact arithmetic.
fn canonical_large(text: &str) -> Option<String> {
    let sign = if text.starts_with('-') { "-" } else { "" };
    let rest = text.trim_start_matches(['+', '-']);
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_start_matches('0').trim_end_matches('0');
    let zeros = digits.len() - digits.trim_end_matches('0').len();
    let exponent = scale(suffix)?.1 - i32::try_from(fraction.len()).ok()? + i32::try_from(zeros).ok()?;
    let exponential = suffix.len() > 1;
    // `E` is the largest suffix without an exponent.
    let shown = if exponential { exponent.div_euclid(3) * 3 } else { (exponent.div_euclid(3) * 3).min(18) };
    let padding = "0".repeat(usize::try_from(exponent - shown).ok()?);
    let suffix = match (exponential, shown) {
        (true, shown) => format!("e{shown}"),
        (false, shown) => {
            let step = usize::try_from(shown / 3).ok()?;
            (*["", "k", "M", "G", "T", "P", "E"].get(step)?).to_owned()
        }
    };
    Some(format!("{sign}{significant}{padding}{suffix}"))
}

/// The exponent of 1024 and the exponent of 10 for a suffix; `None` if the text is not a suffix.
fn scale(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (1, 0),
        "Mi" => (2, 0),
        "Gi" => (3, 0),
        "Ti" => (4, 0),
        "Pi" => (5, 0),
        "Ei" => (6, 0),
        other => (0, other.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?.clamp(-1000, 1000)),
    })
}

fn scale_digits(digits: &str, base: u32, exponent: i32) -> i128 {
    let value = digits.parse::<i128>().ok().and_then(|value| value.checked_mul(1024_i128.checked_pow(base)?));
    let Some(value) = value else {
        // Too many digits for exact arithmetic: far above the cap, or a small fraction.
        let magnitude = i32::try_from(digits.len()).unwrap_or(i32::MAX).saturating_add(exponent);
        return if magnitude > 28 { CAP } else { 1 };
    };
    let power = |exponent: u32| 10_i128.checked_pow(exponent);
    match u32::try_from(exponent) {
        Ok(exponent) => power(exponent).and_then(|factor| value.checked_mul(factor)).unwrap_or(CAP).min(CAP),
        Err(_) => match power(exponent.unsigned_abs()) {
            Some(divisor) => value.div_euclid(divisor).min(CAP) + i128::from(value.rem_euclid(divisor) != 0),
            None => 1,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{CAP, NANO, canonical, parse};

    #[test]
    fn quantities_are_parsed_to_nano_units() {
        for (text, expected) in [
            ("0", 0),
            ("1", NANO),
            ("-1", -NANO),
            ("+1.5", NANO * 3 / 2),
            (".5", NANO / 2),
            ("1Ki", 1024 * NANO),
            ("1.5Gi", 1_610_612_736 * NANO),
            ("1k", 1000 * NANO),
            ("1e3", 1000 * NANO),
            ("1E3", 1000 * NANO),
            ("1E", 1_000_000_000_000_000_000 * NANO),
            ("100m", NANO / 10),
            ("1n", 1),
            ("0.1n", 1),
            ("1e99", CAP),
            ("100000Ei", CAP),
            ("0e99", 0),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn quantities_have_a_canonical_form() {
        for (text, expected) in [
            ("0", "0"),
            ("0Gi", "0"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("512", "512"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("0.5", "500m"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("1E", "1E"),
            ("12e5", "1200e3"),
            ("512Ki", "512Ki"),
            ("0.5Ki", "512"),
            ("-1024Ki", "-1Mi"),
            ("+5", "5"),
            ("0.0001", "1m"),
            ("1.1Gi", "1181116006400m"),
            ("100000Ei", "9223372036854775807"),
            ("1e99", "1e99"),
            ("1e20", "100e18"),
            ("10E", "10E"),
            ("9e18", "9e18"),
            ("100000000000000000000", "100E"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(canonical("ten"), None);
    }

    #[test]
    fn invalid_quantities_are_rejected() {
        for text in ["", "Gi", "1gb", "1 Gi", "1.2.3", "--1", "1e", "ten", "1KI", "."] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
