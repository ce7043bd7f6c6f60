//! What the operator configures.

use std::collections::BTreeMap;

use cofferdam_guest::{Result, StorageError};

/// Key of the driver's name.
pub(crate) const DRIVER_NAME: &str = "driver-name";
/// The driver's name when the operator chooses none.
pub(crate) const DEFAULT_DRIVER_NAME: &str = "memory.cofferdam.dev";
/// Key of the total capacity.
const CAPACITY: &str = "capacity";

/// The operator's choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// How many bytes all volumes together may have; absent when there is no limit.
    pub(crate) capacity: Option<u64>,
}

impl Settings {
    /// Reads the settings; the error names the key, its value and what was expected.
    pub(crate) fn parse(settings: BTreeMap<String, String>) -> std::result::Result<Self, String> {
        let mut parsed = Self::default();
        for (key, value) in settings {
            match key.as_str() {
                DRIVER_NAME => {}
                CAPACITY => parsed.capacity = Some(bytes(&value)?),
                _ => {
                    return Err(format!(
                        "unknown setting {key:?}; known are {DRIVER_NAME:?} and {CAPACITY:?}"
                    ));
                }
            }
        }
        Ok(parsed)
    }
}

/// The settings of this call.
pub(crate) fn current() -> Result<Settings> {
    Settings::parse(cofferdam_guest::settings::all()).map_err(|message| {
        StorageError::failed_precondition(format!("the backend is misconfigured: {message}"))
    })
}

/// Reads a size: a whole number of bytes, or one with a binary suffix.
fn bytes(text: &str) -> std::result::Result<u64, String> {
    const SUFFIXES: [(&str, u32); 5] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50)];
    let (digits, shift) = SUFFIXES
        .iter()
        .find_map(|(suffix, shift)| Some((text.strip_suffix(suffix)?, *shift)))
        .unwrap_or((text, 0));
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or_else(|| {
        format!("the setting {CAPACITY:?} is {text:?}; expected bytes such as 1073741824 or 500Gi")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(key: &str, value: &str) -> std::result::Result<Settings, String> {
        Settings::parse([(key.to_owned(), value.to_owned())].into())
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("12", 12), ("3Ki", 3072), ("500Gi", 500 << 30), ("16383Pi", 16383 << 50)]
        {
            assert_eq!(parse("capacity", text), Ok(Settings { capacity: Some(bytes) }), "{text}");
        }
        for text in ["", "Gi", "-1", "1e9", "1.5Gi", "99999999999999999999", "16385Pi", "1 Gi"] {
            let error = parse("capacity", text).unwrap_err();
            assert!(error.contains(&format!("{text:?}")) && error.contains("500Gi"), "{error}");
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_the_known_ones() {
        let error = parse("size", "1").unwrap_err();
        assert_eq!(error, r#"unknown setting "size"; known are "driver-name" and "capacity""#);
    }
}
