//! What is wrong with a configuration, in one line: where it stands, the key, the value, what was expected.

use std::path::PathBuf;

use figment::error::{Actual, Kind};

use super::source::Origin;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("{named}: cannot read configuration file {}: {source}", path.display())]
    Read { named: Origin, path: PathBuf, source: std::io::Error },
    #[error("{named}: configuration file {} has {size} bytes: expected at most {most}", path.display())]
    TooLarge { named: Origin, path: PathBuf, size: u64, most: u64 },
    #[error("{named}: {}:{line}: not TOML: {problem}", path.display())]
    Syntax { named: Origin, path: PathBuf, line: usize, problem: String },
    #[error("{origin}: unknown key {key}: expected one of {known}")]
    UnknownKey { origin: Origin, key: String, known: String },
    #[error("{}: {problem}", origin.with(key))]
    Value { origin: Origin, key: String, problem: String },
    #[error(
        "two backends are called {name}, {first} and {second}: expected a name each, as in --backend NAME=FILE"
    )]
    TwoBackends { name: String, first: String, second: String },
    #[error("{origin}: backend name {name:?}: expected letters, digits, dashes and underscores")]
    BackendName { origin: Origin, name: String },
    #[error("{0}")]
    Missing(String),
}

impl ConfigError {
    /// Says in our words what figment found; `origin` knows who said a key's value.
    pub(crate) fn from_figment(error: figment::Error, origin: impl Fn(&str) -> Origin) -> Self {
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
        let origin = origin(&key);
        match error.kind {
            Kind::UnknownField(_, known) => Self::UnknownKey { origin, key, known: known.join(", ") },
            Kind::Message(message) => Self::Value { origin, key, problem: message },
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
                let problem = if is_secret(&path) { SECRET.to_owned() } else { problem(kind) };
                Self::Value { origin, key, problem }
            }
        }
    }
}

/// Somebody may have written the secret where the name of its file belongs.
const SECRET: &str = "expected the path of a file that holds the secret; what stands there is not shown";

fn is_secret(path: &[String]) -> bool {
    matches!(path, [backend, _, secrets, ..] if backend == "backend" && secrets == "secrets")
}

fn problem(kind: Kind) -> String {
    match kind {
        Kind::Message(message) => message,
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            format!("found {}, expected {}", found(&actual), plain(&expected))
        }
        Kind::InvalidLength(length, expected) => format!("found {length} items, expected {expected}"),
        Kind::UnknownVariant(variant, known) => {
            format!("found {variant:?}, expected one of {}", known.join(", "))
        }
        Kind::UnknownField(..) => "is not known".to_owned(),
        Kind::MissingField(_) => "is missing".to_owned(),
        Kind::DuplicateField(_) => "stands there twice".to_owned(),
        Kind::ISizeOutOfRange(number) => format!("{number} is out of range"),
        Kind::USizeOutOfRange(number) => format!("{number} is out of range"),
        Kind::Unsupported(actual) => format!("found {}, which has no meaning here", found(&actual)),
        Kind::UnsupportedKey(actual, expected) => {
            format!("found the key {}, expected {expected}", found(&actual))
        }
    }
}

/// What was expected, without the names of Rust's types.
fn plain(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number",
        section if section.starts_with("struct ") => "a section",
        other => other,
    }
}

fn found(actual: &Actual) -> String {
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
