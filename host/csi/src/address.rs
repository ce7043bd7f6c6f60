//! Addresses of CSI drivers.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// URI scheme of unix sockets.
const SCHEME: &str = "unix:";
/// Maximum length of a unix socket path on Linux in bytes.
const MAX_PATH_BYTES: usize = 107;

/// A text that is not the address of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is not a path, `unix:PATH` or `unix:///PATH`, or its path is empty or contains a NUL
    /// character.
    #[error("{text:?} is not a driver's socket: expected a path, unix:PATH or unix:///PATH")]
    Invalid {
        /// The text.
        text: String,
    },
    /// The path is longer than Linux allows for unix sockets.
    #[error("the socket's path {path:?} has {} bytes: expected at most {MAX_PATH_BYTES}", path.len())]
    TooLong {
        /// The path.
        path: String,
    },
}

/// A driver's unix socket: a path, `unix:PATH` or `unix:///PATH`.
///
/// Unlike the sidecars' `--csi-address`, `unix://PATH` with a relative path is rejected: most likely the
/// third slash is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(PathBuf);

impl Address {
    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns true if a text has the `unix:` scheme.
    pub fn has_scheme(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let path = match text.strip_prefix(SCHEME) {
            Some(rest) => match rest.strip_prefix("//") {
                Some(path) => Some(path).filter(|path| path.starts_with('/')),
                None => Some(rest),
            },
            None => Some(text).filter(|text| !text.contains("://")),
        };
        let Some(path) = path.filter(|path| !path.is_empty() && !path.contains('\0')) else {
            return Err(AddressError::Invalid { text: text.to_owned() });
        };
        if path.len() > MAX_PATH_BYTES {
            return Err(AddressError::TooLong { path: path.to_owned() });
        }
        Ok(Self(PathBuf::from(path)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_as_in_the_sidecars() {
        for (text, path) in [
            ("/run/csi/socket", Some("/run/csi/socket")),
            ("unix:///run/csi/socket", Some("/run/csi/socket")),
            ("unix:/run/csi/socket", Some("/run/csi/socket")),
            ("csi.sock", Some("csi.sock")),
            ("unix:csi.sock", Some("csi.sock")),
            ("unix://csi.sock", None),
            ("", None),
            ("unix://", None),
            ("tcp://127.0.0.1:9000", None),
            ("dns:///csi", None),
            (&"x".repeat(108), None),
        ] {
            let address = text.parse::<Address>();
            assert_eq!(address.as_ref().ok().map(Address::path), path.map(Path::new), "{text} {address:?}");
        }
        assert!(Address::has_scheme("unix:///a") && !Address::has_scheme("/unix:"));
    }
}
