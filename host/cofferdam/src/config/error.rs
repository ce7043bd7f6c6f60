//! Errors of the configuration. Each message is one line. A message about an invalid value names the origin
//! of the value, its key and the expected value.

use std::path::PathBuf;

use figment::error::{Actual, Kind};

use super::origin::ValueOrigin;

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("{named_by}: cannot read configuration file {}: {source}", path.display())]
    Read { named_by: ValueOrigin, path: PathBuf, source: std::io::Error },
    #[error("{named_by}: configuration file {} has {size} bytes: expected at most {limit}", path.display())]
    TooLarge { named_by: ValueOrigin, path: PathBuf, size: u64, limit: u64 },
    #[error("{named_by}: {}:{line}: not TOML: {problem}", path.display())]
    Syntax { named_by: ValueOrigin, path: PathBuf, line: usize, problem: String },
    #[error("{origin}: unknown key {key}: expected one of {known_keys}")]
    UnknownKey { origin: ValueOrigin, key: String, known_keys: String },
    #[error("{}: {problem}", origin.with_key(key))]
    Value { origin: ValueOrigin, key: String, problem: String },
    #[error(
        "two backends have the name {name}, {first} and {second}: expected different names, as in --backend \
         NAME=FILE"
    )]
    DuplicateBackend { name: String, first: String, second: String },
    #[error("{origin}: backend name {name:?}: expected letters, digits, dashes and underscores")]
    BackendName { origin: ValueOrigin, name: String },
    #[error("{0}")]
    Missing(String),
}

impl ConfigError {
    /// Converts an error of figment; `origin_of` returns the origin of a key's value.
    pub(crate) fn from_figment(error: figment::Error, origin_of: impl Fn(&str) -> ValueOrigin) -> Self {
        let mut path = error.path;
        if let Kind::UnknownField(field, _) = &error.kind
            && path.last() != Some(field)
        {
            path.push(field.clone());
        }
        if let Kind::MissingField(field) = &error.kind {
            path.push(field.to_string());
        }
        let key = path.join(".");
        let origin_of = origin_of(&key);
        match error.kind {
            Kind::UnknownField(_, known) => {
                Self::UnknownKey { origin: origin_of, key, known_keys: known.join(", ") }
            }
            Kind::Message(message) => Self::Value { origin: origin_of, key, problem: message },
            kind @ (Kind::InvalidType(..)
            | Kind::InvalidValue(..)
            | Kind::InvalidLength(..)
            | Kind::UnknownVariant(..)
            | Kind::MissingField(_)
            | Kind::DuplicateField(_)
            | Kind::ISizeOutOfRange(_)
            | Kind::USizeOutOfRange(_)
            | Kind::Unsupported(_)
            | Kind::UnsupportedKey(..)) => {
                let problem =
                    if is_secret_key(&path) { SECRET_PROBLEM.to_owned() } else { problem_text(kind) };
                Self::Value { origin: origin_of, key, problem }
            }
        }
    }
}

/// Problem with an entry of `backend.NAME.secrets`. The message does not quote the entry's value: it may be a
/// secret in place of the path of the secret's file.
const SECRET_PROBLEM: &str = "expected the path of a file with the secret; the value is not shown";

fn is_secret_key(path: &[String]) -> bool {
    matches!(path, [backend, _, secrets, ..] if backend == "backend" && secrets == "secrets")
}

fn problem_text(kind: Kind) -> String {
    match kind {
        Kind::Message(message) => message,
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            format!("found {}, expected {}", actual_text(&actual), expected_text(&expected))
        }
        Kind::InvalidLength(length, expected) => format!("found {length} items, expected {expected}"),
        Kind::UnknownVariant(variant, known) => {
            format!("found {variant:?}, expected one of {}", known.join(", "))
        }
        Kind::UnknownField(..) => "is not known".to_owned(),
        Kind::MissingField(_) => "is missing".to_owned(),
        Kind::DuplicateField(_) => "occurs twice".to_owned(),
        Kind::ISizeOutOfRange(number) => format!("{number} is out of range"),
        Kind::USizeOutOfRange(number) => format!("{number} is out of range"),
        Kind::Unsupported(actual) => format!("found {}, which is not supported", actual_text(&actual)),
        Kind::UnsupportedKey(actual, expected) => {
            format!("found the key {}, expected {expected}", actual_text(&actual))
        }
    }
}

/// The expectation without names of Rust types.
fn expected_text(expected: &str) -> &str {
    match expected {
        "u16" => "a whole number from 0 to 65535",
        "u8" | "u32" | "u64" | "usize" => "a whole number",
        section if section.starts_with("struct ") => "a section",
        other => other,
    }
}

fn actual_text(actual: &Actual) -> String {
    match actual {
        Actual::Bool(value) => value.to_string(),
        Actual::Unsigned(number) => format!("the number {number}"),
        Actual::Signed(number) => format!("the number {number}"),
        Actual::Float(number) => format!("the number {number}"),
        Actual::Char(value) => format!("the text {:?}", value.to_string()),
        Actual::Str(value) => format!("the text {value:?}"),
        Actual::Bytes(_) => "bytes".to_owned(),
        Actual::Unit | Actual::Option => "nothing".to_owned(),
        Actual::Seq => "a list".to_owned(),
        Actual::Map | Actual::StructVariant => "a table".to_owned(),
        Actual::NewtypeStruct
        | Actual::Enum
        | Actual::UnitVariant
        | Actual::NewtypeVariant
        | Actual::TupleVariant => "something else".to_owned(),
        Actual::Other(value) => value.clone(),
    }
}
