//! Origins of the values of settings, for error messages and `cofferdam config`.

use std::{fmt, path::PathBuf};

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueOrigin {
    /// The flag of this name.
    Flag(String),
    /// The environment variable of this name.
    EnvVar(String),
    /// A file, and the line in it if it is known.
    File(PathBuf, Option<usize>),
    /// No source: the default.
    Default,
}

impl ValueOrigin {
    /// The origin and the key, for an error message; a flag names its key already.
    pub(crate) fn with_key(&self, key: &str) -> String {
        match self {
            Self::Flag(name) if name == key => self.to_string(),
            Self::Flag(_) | Self::EnvVar(_) | Self::File(..) | Self::Default => format!("{self}: {key}"),
        }
    }
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag --{name}"),
            Self::EnvVar(name) => write!(f, "environment variable {name}"),
            Self::File(path, Some(line)) => write!(f, "{}:{line}", path.display()),
            Self::File(path, None) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}
