//! Storage quantities of the Kubernetes API, in bytes.

use std::{cmp::Ordering, fmt};

use serde::{Deserialize, Serialize};

/// An amount of storage in whole bytes. Fractions of a byte are rounded up, as in Kubernetes.
///
/// 128 bits wide, because Kubernetes compares amounts beyond 64 bits, such as `800E` and `950E`, exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantity(u128);

/// A text that is not an amount of storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text does not have Kubernetes' quantity syntax, or its exponent does not fit 32 bits.
    #[error(
        "{0:?} is not a quantity: expected a number with an optional suffix such as Ki, Mi, Gi, k, M, G or e3"
    )]
    Syntax(String),
    /// The amount is below zero.
    #[error("quantity {0:?} is negative: expected zero or more bytes")]
    Negative(String),
    /// The amount is above the supported maximum of 2^127 bytes. Or an intermediate result exceeds 128 bits,
    /// although the amount is smaller: the digits without the decimal point, or their product with the
    /// factor of a binary suffix.
    #[error("quantity {0:?} is too large: expected at most 2^127 bytes")]
    TooLarge(String),
}

/// Maximum amount in bytes. It keeps the arithmetic within 128 bits.
const MAX_BYTES: u128 = 1 << 127;

impl Quantity {
    /// An amount of whole bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes as u128)
    }

    /// The amount in bytes. `None` if it is above the maximum of `int64`, the type of sizes in CSI.
    pub fn bytes_within_int64(self) -> Option<u64> {
        u64::try_from(self.0).ok().filter(|bytes| i64::try_from(*bytes).is_ok())
    }

    /// Returns `true` if the amount is zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Parses a quantity in the syntax of the Kubernetes API: a decimal number with an optional sign, then
    /// optionally a binary suffix (`Ki` … `Ei`), a decimal one (`n` … `E`) or an exponent (`e3`, `E3`).
    ///
    /// # Errors
    /// [`QuantityError`], with the text.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let syntax = || QuantityError::Syntax(text.to_owned());
        let too_large = || QuantityError::TooLarge(text.to_owned());
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at_checked(end).ok_or_else(syntax)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(syntax());
        }
        let scale = Scale::parse(suffix).ok_or_else(syntax)?;
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return Ok(Self(0));
        }
        if negative {
            return Err(QuantityError::Negative(text.to_owned()));
        }
        let digits: u128 = digits.parse().map_err(|_| too_large())?;
        let fraction_digits = i64::try_from(fraction.len()).map_err(|_| syntax())?;
        let bytes = match scale {
            Scale::Binary(shift) => {
                let factor = 1_u128.checked_shl(shift).ok_or_else(too_large)?;
                power_of_ten(digits.checked_mul(factor).ok_or_else(too_large)?, -fraction_digits)
            }
            Scale::Decimal(exponent) => power_of_ten(digits, i64::from(exponent) - fraction_digits),
        };
        bytes.filter(|bytes| *bytes <= MAX_BYTES).map(Self).ok_or_else(too_large)
    }
}

/// The factor that a quantity's suffix stands for.
enum Scale {
    /// Exponent of a power of two.
    Binary(u32),
    /// Exponent of a power of ten.
    Decimal(i32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "Ki" => Self::Binary(10),
            "Mi" => Self::Binary(20),
            "Gi" => Self::Binary(30),
            "Ti" => Self::Binary(40),
            "Pi" => Self::Binary(50),
            "Ei" => Self::Binary(60),
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "" => Self::Decimal(0),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            exponent => Self::Decimal(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
        })
    }
}

/// `digits × 10^exponent`, rounded up to a whole number; `None` if the result does not fit 128 bits.
fn power_of_ten(digits: u128, exponent: i64) -> Option<u128> {
    match exponent.cmp(&0) {
        Ordering::Equal => Some(digits),
        Ordering::Greater => {
            let factor = 10_u128.checked_pow(u32::try_from(exponent).ok()?)?;
            digits.checked_mul(factor)
        }
        Ordering::Less => match u32::try_from(-exponent).ok().and_then(|e| 10_u128.checked_pow(e)) {
            Some(divisor) => Some(digits.div_ceil(divisor)),
            // More decimal places than 128 bits can represent: the result is a fraction of a byte.
            None => Some(1),
        },
    }
}

impl fmt::Display for Quantity {
    /// The canonical form of a binary quantity: the largest suffix that keeps the number whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let mut value = self.0;
        let mut suffix = "";
        for next in SUFFIXES {
            if value == 0 || !value.is_multiple_of(1024) {
                break;
            }
            value /= 1024;
            suffix = next;
        }
        write!(f, "{value}{suffix}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quantity_form_of_kubernetes_is_parsed() {
        let cases = [
            ("0", 0),
            ("1", 1),
            ("1Gi", 1 << 30),
            ("1.5Gi", 3 << 29),
            (".5Mi", 1 << 19),
            ("5.", 5),
            ("+7", 7),
            ("1k", 1000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("12e-1", 2),
            ("100m", 1),
            ("1500m", 2),
            ("1n", 1),
            ("0.000000000000000000000000000000000000000000001", 1),
            ("0001Ki", 1024),
            ("-0", 0),
        ];
        for (text, bytes) in cases {
            assert_eq!(Quantity::parse(text), Ok(Quantity(bytes)), "{text}");
        }
    }

    #[test]
    fn quantities_beyond_64_bits_are_compared() {
        let exa = |n: &str| Quantity::parse(n).unwrap();
        assert!(exa("950E") > exa("800E"));
        assert!(exa("800E").bytes_within_int64().is_none());
        assert_eq!(
            Quantity::parse("9223372036854775807").unwrap().bytes_within_int64(),
            Some(i64::MAX as u64)
        );
        assert_eq!(Quantity::parse("9223372036854775808").unwrap().bytes_within_int64(), None);
    }

    #[test]
    fn invalid_quantities_are_rejected_with_their_text() {
        for text in ["", "Gi", "1.2.3", "1 Gi", "1GiB", "0x10", "one", "1e", "1ee3", "٣", "."] {
            assert!(matches!(Quantity::parse(text), Err(QuantityError::Syntax(t)) if t == text), "{text}");
        }
        assert_eq!(Quantity::parse("-1"), Err(QuantityError::Negative("-1".to_owned())));
        for text in [
            "1e99",
            "1e2000000000",
            "999999999999999999999999999999999999999999",
            "99999999999999999999999999999Ei",
        ] {
            assert_eq!(Quantity::parse(text), Err(QuantityError::TooLarge(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn display_uses_the_largest_exact_binary_suffix() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1024, "1Ki"),
            (1500, "1500"),
            (1 << 30, "1Gi"),
            (3 << 29, "1536Mi"),
            (1 << 70, "1024Ei"),
        ] {
            assert_eq!(Quantity(bytes).to_string(), text);
            assert_eq!(Quantity::parse(text), Ok(Quantity(bytes)));
        }
    }
}
