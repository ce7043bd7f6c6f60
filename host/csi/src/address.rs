//! Where a driver listens.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Scheme of a unix socket.
const SCHEME: &str = "unix:";
/// Longest path of a unix socket on Linux, in bytes.
const MAX_PATH_BYTES: usize = 107;

/// A driver's unix socket: a path, `unix:PATH` or `unix:///PATH`.
///
/// Not `unix://PATH` with a relative path, which the sidecars' `--csi-address` takes: behind two slashes
/// stands a host in every other address, and who wrote it so has most likely forgotten the third.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(PathBuf);

impl Address {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether a text is an address for certain: it names the scheme.
    pub fn has_scheme(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = match text.strip_prefix(SCHEME) {
            Some(rest) => match rest.strip_prefix("//") {
                Some(path) => Some(path).filter(|path| path.starts_with('/')),
                None => Some(rest),
            },
            None => Some(text).filter(|text| !text.contains("://")),
        };
        let Some(path) = path.filter(|path| !path.is_empty() && !path.contains('\0')) else {
            return Err(format!(
                "{text:?} is not a driver's socket: expected a path, unix:PATH or unix:///PATH"
            ));
        };
        if path.len() > MAX_PATH_BYTES {
            return Err(format!(
                "the socket's path {path:?} has {} bytes: expected at most {MAX_PATH_BYTES}",
                path.len()
            ));
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
