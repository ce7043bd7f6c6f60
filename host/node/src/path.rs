//! Paths confined to a root: kubelet's paths, and the paths in connection info.
//!
//! These types validate only the text. On Linux, the [`Mounter`](crate::Mounter) opens each path relative to
//! its root's file descriptor, with `RESOLVE_BENEATH` and without following symbolic links below the root.

use std::{fmt, path::Path};

use crate::error::NodeError;

/// Maximum length of a [`RelativePath`] in bytes.
const MAX_PATH_BYTES: usize = 4096;
/// Maximum file name length in bytes (`NAME_MAX`).
const MAX_NAME_BYTES: usize = 255;

/// An invalid [`RelativePath`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path is too long.
    #[error("a path has {bytes} bytes: expected at most {MAX_PATH_BYTES}")]
    TooLong {
        /// The path's length in bytes.
        bytes: usize,
    },
    /// The path is absolute, or one of its names is empty, `.`, `..`, longer than 255 bytes, or has a NUL
    /// byte.
    #[error("the path {path:?} {problem}: expected names separated by /, none of them . or ..")]
    Invalid {
        /// The path.
        path: String,
        /// The problem, as a verb phrase.
        problem: &'static str,
    },
}

/// Invalid kubelet root directories.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeletRootError {
    /// No root is given.
    #[error("no kubelet root: expected at least one, such as /var/lib/kubelet")]
    None,
    /// A root is not an absolute path, or is `/`.
    #[error("the kubelet root {root:?} is relative: expected an absolute path such as /var/lib/kubelet")]
    Relative {
        /// The root.
        root: String,
    },
    /// A root is absolute, but the path below `/` is invalid, for example because of `..`.
    #[error("the kubelet root {root:?} is invalid: {source}")]
    Path {
        /// The root.
        root: String,
        /// The problem with the path below `/`.
        source: PathError,
    },
}

/// A relative path: names separated by `/`, none of them empty, `.` or `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelativePath(String);

impl RelativePath {
    /// Parses a path.
    ///
    /// # Errors
    /// [`PathError`]
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let invalid = |problem: &'static str| Err(PathError::Invalid { path: text.to_owned(), problem });
        if text.len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong { bytes: text.len() });
        }
        if text.starts_with('/') {
            return invalid("is absolute");
        }
        for name in text.split('/') {
            match name {
                "" => return invalid("has an empty name"),
                "." | ".." => return invalid("has a name . or .."),
                _ if name.contains('\0') => return invalid("has a NUL byte"),
                _ if name.len() > MAX_NAME_BYTES => return invalid("has a name that is too long"),
                _ => {}
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Splits off the last name. The parent is absent if the path is a single name.
    pub fn split_parent(&self) -> (Option<&str>, &str) {
        match self.0.rsplit_once('/') {
            Some((parent, name)) => (Some(parent), name),
            None => (None, &self.0),
        }
    }
}

impl RelativePath {
    /// Returns true if both paths are the same, or one is below the other.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        overlap(&self.0, &other.0)
    }

    /// Returns true if the path is below another one.
    pub(crate) fn is_below(&self, other: &Self) -> bool {
        self != other && Path::new(&self.0).starts_with(&other.0)
    }
}

fn overlap(one: &str, other: &str) -> bool {
    Path::new(one).starts_with(other) || Path::new(other).starts_with(one)
}

impl fmt::Debug for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// A path below a root that the node's operator configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RootedPath {
    /// The root, an absolute path.
    pub root: String,
    /// The path relative to the root.
    pub relative_path: RelativePath,
}

impl RootedPath {
    /// Returns true if both paths are the same, or one is below the other. Links are not resolved.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        overlap(&self.to_string(), &other.to_string())
    }
}

impl fmt::Display for RootedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.root, self.relative_path.as_str())
    }
}

/// A path below a kubelet root: a staging path, a target path, or a path below one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KubeletPath(RootedPath);

impl KubeletPath {
    /// Returns the kubelet root that contains the path.
    pub fn root(&self) -> &str {
        &self.0.root
    }

    /// The path relative to the root.
    pub fn relative_path(&self) -> &RelativePath {
        &self.0.relative_path
    }

    /// Appends a name.
    #[must_use]
    pub(crate) fn join(&self, name: &'static str) -> Self {
        let path = RelativePath(format!("{}/{name}", self.0.relative_path.as_str()));
        Self(RootedPath { root: self.0.root.clone(), relative_path: path })
    }
}

impl fmt::Display for KubeletPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Kubelet's root directories (`--root-dir`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletRoots(Vec<String>);

impl KubeletRoots {
    /// Validates the roots. The paths of requests are compared with them as text, so each root must be
    /// spelled as in kubelet's requests, with the same symbolic links.
    ///
    /// # Errors
    /// [`KubeletRootError`] if there is no root, or if a root is not a valid absolute path or is `/`.
    pub fn new(roots: impl IntoIterator<Item = String>) -> Result<Self, KubeletRootError> {
        let mut all = Vec::new();
        for root in roots {
            let trimmed = root.trim_end_matches('/');
            let relative =
                trimmed.strip_prefix('/').ok_or_else(|| KubeletRootError::Relative { root: root.clone() })?;
            RelativePath::parse(relative)
                .map_err(|source| KubeletRootError::Path { root: root.clone(), source })?;
            all.push(trimmed.to_owned());
        }
        if all.is_empty() {
            return Err(KubeletRootError::None);
        }
        // Longest first: of two nested roots, the inner one matches.
        all.sort_by_key(|root| std::cmp::Reverse(root.len()));
        Ok(Self(all))
    }

    /// Returns the roots.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Resolves a path of a request or of a record. `field` names the request field in errors.
    ///
    /// # Errors
    /// [`NodeError::Invalid`] if the path is empty, is below none of the roots, or is no [`RelativePath`]
    /// below its root.
    pub fn resolve(&self, field: &str, path: &str) -> Result<KubeletPath, NodeError> {
        if path.is_empty() {
            return Err(NodeError::Invalid(format!("{field} is missing")));
        }
        let root_and_rest =
            self.0.iter().find_map(|root| Some((root, path.strip_prefix(root)?.strip_prefix('/')?)));
        let Some((root, rest)) = root_and_rest else {
            let roots = self.0.join(", ");
            return Err(NodeError::Invalid(format!(
                "{field} {path:?} is not below a kubelet root: expected {roots}"
            )));
        };
        let path = RelativePath::parse(rest.trim_end_matches('/'))
            .map_err(|problem| NodeError::Invalid(format!("{field}: {problem}")))?;
        Ok(KubeletPath(RootedPath { root: root.clone(), relative_path: path }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_and_parent_paths_are_rejected() {
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
    fn only_paths_beneath_a_kubelet_root_are_accepted() {
        let roots =
            KubeletRoots::new(["/var/lib/kubelet/".to_owned(), "/var/lib/kubelet/other".to_owned()]).unwrap();
        let kubelet_path = roots.resolve("target_path", "/var/lib/kubelet/pods/x/mount").unwrap();
        assert_eq!(
            (kubelet_path.root(), kubelet_path.relative_path().as_str()),
            ("/var/lib/kubelet", "pods/x/mount")
        );
        let nested = roots.resolve("target_path", "/var/lib/kubelet/other/x").unwrap();
        assert_eq!((nested.root(), nested.relative_path().as_str()), ("/var/lib/kubelet/other", "x"));
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
            assert!(matches!(roots.resolve("target_path", bad), Err(NodeError::Invalid(_))), "{bad:?}");
        }
        for bad in ["", "/", "relative", "/a/../b"] {
            assert!(KubeletRoots::new([bad.to_owned()]).is_err(), "{bad:?}");
        }
        assert!(KubeletRoots::new([]).is_err());
    }
}
