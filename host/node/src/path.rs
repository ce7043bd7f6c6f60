//! Paths that cannot leave where they begin: kubelet's, and those that operators give for attachments.
//!
//! What is checked here is the text. The machine opens every one of them from its root's descriptor, beneath
//! it, without links: the text alone is never the defence.

use std::fmt;

use crate::error::NodeError;

/// Longest path in bytes, as `docs/attachments.md` says.
const MAX_PATH: usize = 4096;
/// Longest name of a file.
const MAX_NAME: usize = 255;

/// Names parted by `/`, none of them empty, `.` or `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelativePath(String);

impl RelativePath {
    /// Reads a path.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = |problem: &str| {
            Err(format!("the path {text:?} {problem}: expected names parted by /, none of them . or .."))
        };
        if text.len() > MAX_PATH {
            return Err(format!("a path has {} bytes: expected at most {MAX_PATH}", text.len()));
        }
        if text.starts_with('/') {
            return refuse("is absolute");
        }
        for name in text.split('/') {
            match name {
                "" => return refuse("has an empty name"),
                "." | ".." => return refuse("leaves its directory"),
                _ if name.contains('\0') => return refuse("has a byte 0"),
                _ if name.len() > MAX_NAME => return refuse("has a name that is too long"),
                _ => {}
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory that it is in, absent for a single name, and its own name.
    pub fn split(&self) -> (Option<&str>, &str) {
        match self.0.rsplit_once('/') {
            Some((parent, name)) => (Some(parent), name),
            None => (None, &self.0),
        }
    }
}

impl fmt::Debug for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Something beneath a root that the node's operator names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Beneath {
    /// The root: an absolute path.
    pub root: String,
    /// The way from there.
    pub path: RelativePath,
}

impl fmt::Display for Beneath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.root, self.path.as_str())
    }
}

/// A path of kubelet's: a staging path, a target path, or something in them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(Beneath);

impl Place {
    /// Kubelet's root that it is beneath.
    pub fn root(&self) -> &str {
        &self.0.root
    }

    /// The way from there.
    pub fn path(&self) -> &RelativePath {
        &self.0.path
    }

    /// A name in this place.
    #[must_use]
    pub(crate) fn join(&self, name: &'static str) -> Self {
        let path = RelativePath(format!("{}/{name}", self.0.path.as_str()));
        Self(Beneath { root: self.0.root.clone(), path })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Kubelet's root directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots(Vec<String>);

impl Roots {
    /// The roots, as kubelet spells them.
    ///
    /// # Errors
    /// When there is none, or one is not absolute or is all of the machine.
    pub fn new(roots: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut all = Vec::new();
        for root in roots {
            let trimmed = root.trim_end_matches('/');
            let relative = trimmed.strip_prefix('/').ok_or_else(|| {
                format!(
                    "kubelet's root {root:?} is not one: expected an absolute path such as /var/lib/kubelet"
                )
            })?;
            RelativePath::parse(relative)?;
            all.push(trimmed.to_owned());
        }
        if all.is_empty() {
            return Err("no kubelet root: expected at least one, such as /var/lib/kubelet".to_owned());
        }
        // The longest first: of two roots, one within the other, the closer one is meant.
        all.sort_by_key(|root| std::cmp::Reverse(root.len()));
        Ok(Self(all))
    }

    /// The roots.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// A path of kubelet's.
    ///
    /// # Errors
    /// [`NodeError::Invalid`] when it is beneath none of the roots; `field` names it.
    pub fn place(&self, field: &str, path: &str) -> Result<Place, NodeError> {
        if path.is_empty() {
            return Err(NodeError::Invalid(format!("{field} is missing")));
        }
        let found = self.0.iter().find_map(|root| Some((root, path.strip_prefix(root)?.strip_prefix('/')?)));
        let Some((root, rest)) = found else {
            let roots = self.0.join(", ");
            return Err(NodeError::Invalid(format!(
                "{field} {path:?} is not beneath a root of kubelet: expected {roots}"
            )));
        };
        let path = RelativePath::parse(rest.trim_end_matches('/'))
            .map_err(|problem| NodeError::Invalid(format!("{field}: {problem}")))?;
        Ok(Place(Beneath { root: root.clone(), path }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_where_it_begins() {
        for good in ["a", "a/b", "..a/b..", "with space", "ä"] {
            assert_eq!(RelativePath::parse(good).unwrap().as_str(), good);
        }
        let (long_name, long) = ("x".repeat(256), "x/".repeat(2048) + "x");
        for bad in
            ["", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\0b", &long_name, &long]
        {
            assert!(RelativePath::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_what_is_beneath_a_root_of_kubelet_is_a_place() {
        let roots =
            Roots::new(["/var/lib/kubelet/".to_owned(), "/var/lib/kubelet/other".to_owned()]).unwrap();
        let place = roots.place("target_path", "/var/lib/kubelet/pods/x/mount").unwrap();
        assert_eq!((place.root(), place.path().as_str()), ("/var/lib/kubelet", "pods/x/mount"));
        let nested = roots.place("target_path", "/var/lib/kubelet/other/x").unwrap();
        assert_eq!((nested.root(), nested.path().as_str()), ("/var/lib/kubelet/other", "x"));
        for bad in [
            "",
            "/",
            "relative",
            "/etc/passwd",
            "/var/lib/kubelet",
            "/var/lib/kubeletx/a",
            "/var/lib/kubelet/../etc",
            "/var/lib/kubelet/pods/../../../etc",
            "/var/lib/kubelet//etc",
            "/var/lib/kubelet/a\0b",
        ] {
            assert!(matches!(roots.place("target_path", bad), Err(NodeError::Invalid(_))), "{bad:?}");
        }
        for bad in ["", "/", "relative", "/a/../b"] {
            assert!(Roots::new([bad.to_owned()]).is_err(), "{bad:?}");
        }
        assert!(Roots::new([]).is_err());
    }
}
