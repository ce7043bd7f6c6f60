//! Reads class parameters, mutable parameters and settings. The error of an invalid value names the key, the
//! value and the expected values.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, Unexpected, Visitor},
};

use crate::{
    KeyValues, Result, host,
    values::{self, KeyKind, list},
};

/// Prefix of the keys that external-provisioner and external-snapshotter add with
/// `--extra-create-metadata`.
const METADATA_PREFIX: &str = "csi.storage.k8s.io/";
/// The valid texts of a size.
const EXPECTED_BYTES: &str = "bytes such as 1073741824 or 500Gi";

/// Reads the parameters of a StorageClass, VolumeSnapshotClass or VolumeGroupSnapshotClass as a type that
/// implements [`Deserialize`]. Unknown keys are refused. Keys with the prefix `csi.storage.k8s.io/` are
/// ignored. Values have the forms that are listed at [`settings::parse`](crate::settings::parse).
///
/// ```
/// use cofferdam_guest::{ErrorKind, KeyValues, parameters::{self, ByteSize}};
/// use serde::Deserialize;
///
/// #[derive(Debug, PartialEq, Deserialize)]
/// #[serde(rename_all = "kebab-case")]
/// enum VolumeType {
///     Fast,
///     Cheap,
/// }
///
/// #[derive(Debug, PartialEq, Deserialize)]
/// #[serde(rename_all = "kebab-case")]
/// struct Parameters {
///     #[serde(rename = "type")]
///     volume_type: VolumeType,
///     #[serde(default)]
///     encrypted: bool,
///     max_burst: Option<ByteSize>,
/// }
///
/// let given = |pairs: &[(&str, &str)]| -> KeyValues {
///     pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
/// };
/// let parameters: Parameters = parameters::parse(given(&[("type", "fast"), ("max-burst", "1Gi")])).unwrap();
/// let max_burst = Some(ByteSize(1 << 30));
/// assert_eq!(parameters, Parameters { volume_type: VolumeType::Fast, encrypted: false, max_burst });
///
/// let error = |pairs| parameters::parse::<Parameters>(given(pairs)).unwrap_err();
/// assert_eq!(
///     error(&[("tpye", "fast")]).message,
///     r#"unknown parameter "tpye"; known are "encrypted", "max-burst" and "type""#
/// );
/// assert_eq!(
///     error(&[("type", "slow")]).message,
///     r#"the parameter "type" is "slow"; expected "fast" or "cheap""#
/// );
/// assert_eq!(error(&[]).message, r#"the parameter "type" is missing"#);
/// assert_eq!(error(&[]).kind, ErrorKind::InvalidArgument);
/// ```
///
/// # Errors
///
/// [`invalid_argument`](crate::StorageError::invalid_argument) if a key is unknown or missing, or a value has
/// another form. The message names the key, the value and the expected values. The error is final unless this
/// call [has changed](crate::has_changed) something before.
pub fn parse<T: DeserializeOwned>(parameters: KeyValues) -> Result<T> {
    values::from_pairs(KeyKind::PARAMETER, without_metadata(parameters))
}

/// Reads mutable parameters as [`parse`] does; see [`Modification`](crate::abilities::Modification). No key
/// is ignored.
///
/// ```
/// use cofferdam_guest::parameters;
/// use serde::Deserialize;
///
/// #[derive(Debug, Deserialize)]
/// struct Mutable {
///     iops: Option<u32>,
/// }
///
/// let given = vec![("iops".to_owned(), "many".to_owned())];
/// assert_eq!(
///     parameters::parse_mutable::<Mutable>(given).unwrap_err().message,
///     r#"the mutable parameter "iops" is "many"; expected a whole number from 0 to 4294967295"#
/// );
/// ```
///
/// # Errors
///
/// Those of [`parse`].
pub fn parse_mutable<T: DeserializeOwned>(parameters: KeyValues) -> Result<T> {
    values::from_pairs(KeyKind::MUTABLE_PARAMETER, parameters)
}

fn without_metadata(mut pairs: KeyValues) -> KeyValues {
    pairs.retain(|(key, _)| !key.starts_with(METADATA_PREFIX));
    pairs
}

/// A size in bytes in a type for [`parse`] or [`settings::parse`](crate::settings::parse). Its text is a
/// number of bytes, or a number with the suffix `Ki`, `Mi`, `Gi`, `Ti` or `Pi`.
///
/// ```
/// use cofferdam_guest::{mock::MockHost, parameters::ByteSize, settings};
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct Settings {
///     step: ByteSize,
/// }
///
/// let _host = MockHost::new().setting("step", "4Mi").install();
/// assert_eq!(settings::parse::<Settings>().unwrap().step, ByteSize(4 << 20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a size is a number of bytes")]
pub struct ByteSize(
    /// The bytes.
    pub u64,
);

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl Visitor<'_> for TextVisitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED_BYTES)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ByteSize, E> {
                parse_bytes(text)
                    .map(ByteSize)
                    .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &EXPECTED_BYTES))
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

fn parse_bytes(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, u32); 5] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50)];
    let (digits, shift) = SUFFIXES
        .iter()
        .find_map(|(suffix, shift)| Some((text.strip_suffix(suffix)?, *shift)))
        .unwrap_or((text, 0));
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|_| !digits.starts_with('+'))
}

/// Reads keys one by one, and rejects the remaining keys in [`finish`](Self::finish). A key that is read a
/// second time counts as absent.
///
/// All errors of a reader have the kind that its constructor names. They are final unless this call [has
/// changed](crate::has_changed) something before.
///
/// ```
/// use cofferdam_guest::{KeyValues, Result, parameters::ParameterReader};
///
/// fn tier(parameters: KeyValues) -> Result<(u8, Option<u64>)> {
///     let mut reader = ParameterReader::parameters(parameters);
///     let tier = reader.choice("tier", &[("fast", 1), ("cheap", 2)])?.unwrap_or(2);
///     let burst = reader.bytes("burst")?;
///     reader.finish()?;
///     Ok((tier, burst))
/// }
///
/// let given = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
/// assert_eq!(tier(given("burst", "64Mi")).unwrap(), (2, Some(64 << 20)));
/// assert_eq!(
///     tier(given("tier", "gold")).unwrap_err().message,
///     r#"the parameter "tier" is "gold"; expected "fast" or "cheap""#
/// );
/// assert_eq!(
///     tier(given("teir", "fast")).unwrap_err().message,
///     r#"unknown parameter "teir"; known are "burst" and "tier""#
/// );
/// ```
#[derive(Clone, Debug)]
#[must_use = "unknown keys are only refused by `finish`"]
pub struct ParameterReader {
    kind: KeyKind,
    remaining: BTreeMap<String, String>,
    read_keys: BTreeSet<String>,
}

impl ParameterReader {
    /// Reads the parameters of a StorageClass, VolumeSnapshotClass or VolumeGroupSnapshotClass. Errors are
    /// [`invalid_argument`](crate::StorageError::invalid_argument). Keys with the prefix
    /// `csi.storage.k8s.io/` are ignored.
    pub fn parameters(pairs: KeyValues) -> Self {
        Self::new(KeyKind::PARAMETER, without_metadata(pairs))
    }

    /// Reads mutable parameters; see [`Modification`](crate::abilities::Modification). Errors are
    /// [`invalid_argument`](crate::StorageError::invalid_argument).
    pub fn mutable_parameters(pairs: KeyValues) -> Self {
        Self::new(KeyKind::MUTABLE_PARAMETER, pairs)
    }

    /// Reads the operator's settings. Errors are
    /// [`failed_precondition`](crate::StorageError::failed_precondition).
    pub fn settings() -> Self {
        Self::new(KeyKind::SETTING, host::settings())
    }

    fn new(kind: KeyKind, pairs: KeyValues) -> Self {
        Self { kind, remaining: pairs.into_iter().collect(), read_keys: BTreeSet::new() }
    }

    /// An optional text. `None` if the key is absent.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.read_keys.insert(key.to_owned());
        self.remaining.remove(key)
    }

    /// A required text.
    ///
    /// # Errors
    ///
    /// The key is missing.
    pub fn required(&mut self, key: &str) -> Result<String> {
        self.text(key).ok_or_else(|| self.kind.missing(key))
    }

    /// A value of any type that implements [`FromStr`], or `None` if the key is absent. `expected` describes
    /// the valid texts in error messages.
    ///
    /// # Errors
    ///
    /// The text cannot be parsed.
    pub fn parse<T: FromStr>(&mut self, key: &str, expected: &str) -> Result<Option<T>> {
        let Some(text) = self.text(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| self.kind.invalid_value(key, &text, expected))
    }

    /// `true` or `false`, or `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// The value is something else.
    pub fn boolean(&mut self, key: &str) -> Result<Option<bool>> {
        self.choice(key, &[("true", true), ("false", false)])
    }

    /// Reads a key whose text must be one of these words, and returns the value of the word. `None` if the
    /// key is absent.
    ///
    /// # Errors
    ///
    /// The value is none of the words.
    pub fn choice<T: Clone>(&mut self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>> {
        let Some(text) = self.text(key) else { return Ok(None) };
        match choices.iter().find(|(name, _)| *name == text) {
            Some((_, meaning)) => Ok(Some(meaning.clone())),
            None => {
                Err(self.kind.invalid_value(key, &text, &list(choices.iter().map(|(name, _)| *name), "or")))
            }
        }
    }

    /// A size: a number of bytes, or a number with the suffix `Ki`, `Mi`, `Gi`, `Ti` or `Pi`. `None` if the
    /// key is absent.
    ///
    /// # Errors
    ///
    /// The value has another form or does not fit into 64 bits.
    pub fn bytes(&mut self, key: &str) -> Result<Option<u64>> {
        let Some(text) = self.text(key) else { return Ok(None) };
        match parse_bytes(&text) {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(self.kind.invalid_value(key, &text, EXPECTED_BYTES)),
        }
    }

    /// Rejects the keys that were not read.
    ///
    /// # Errors
    ///
    /// There are such keys. The message names the first one, and as known keys those that were read.
    pub fn finish(self) -> Result<()> {
        match self.remaining.keys().next() {
            Some(key) => Err(self.kind.unknown(key, self.read_keys.iter().map(String::as_str))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, StorageError, mock};

    fn reader(key: &str, value: &str) -> ParameterReader {
        ParameterReader::parameters(vec![(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("12", 12), ("3Ki", 3072), ("500Gi", 500 << 30), ("16383Pi", 16383 << 50)]
        {
            assert_eq!(reader("s", text).bytes("s"), Ok(Some(bytes)), "{text}");
        }
        for text in ["", "Gi", "-1", "+1", "1e9", "1.5Gi", "99999999999999999999", "16385Pi", "1 Gi"] {
            let error = reader("s", text).bytes("s").unwrap_err();
            assert!(error.message.contains(&format!("{text:?}")), "{error:?}");
        }
    }

    #[test]
    fn invalid_and_missing_keys_are_reported() {
        let text = |error: StorageError| error.message;
        assert_eq!(
            text(reader("n", "x").parse::<u8>("n", "0 to 255").unwrap_err()),
            r#"the parameter "n" is "x"; expected 0 to 255"#
        );
        assert_eq!(
            text(reader("f", "yes").boolean("f").unwrap_err()),
            r#"the parameter "f" is "yes"; expected "true" or "false""#
        );
        assert_eq!(text(reader("f", "yes").finish().unwrap_err()), r#"unknown parameter "f"; there is none"#);
        let _host = mock::MockHost::new().setting("urls", "x").install();
        let mut settings = ParameterReader::settings();
        let missing = settings.required("url").unwrap_err();
        assert_eq!(
            (missing.kind, text(missing)),
            (ErrorKind::FailedPrecondition, r#"the setting "url" is missing"#.to_owned())
        );
        assert_eq!(text(settings.finish().unwrap_err()), r#"unknown setting "urls"; known is "url""#);
    }

    #[test]
    fn provisioner_metadata_is_not_an_unknown_parameter() {
        reader("csi.storage.k8s.io/pvc/name", "data").finish().unwrap();
        let error = ParameterReader::mutable_parameters(vec![("csi.storage.k8s.io/x".into(), String::new())])
            .finish();
        assert_eq!(error.unwrap_err().kind, ErrorKind::InvalidArgument);
    }
}
