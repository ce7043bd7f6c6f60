//! Paths that cannot leave where they begin: kubelet's, and those that operators give for attachments.
//!
//! What is checked here is the text. The machine opens every one of them from its root's descriptor, beneath
//! it, without links: the text alone is never the defence.

use std::fmt;

use crate::error::NodeError;

/// Longest path in bytes, as `docs/attachments.md` says.
const MAX_PATH_BYTES: usize = 4096;
/// Longest name of a file.
const MAX_NAME_BYTES: usize = 255;

/// Names parted by `/`, none of them empty, `.` or `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelativePath(String);

impl RelativePath {
    /// Reads a path.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let invalid = |problem: &str| {
            Err(format!("the path {text:?} {problem}: expected names parted by /, none of them . or .."))
        };
        if text.len() > MAX_PATH_BYTES {
            return Err(format!("a path has {} bytes: expected at most {MAX_PATH_BYTES}", text.len()));
        }
        if text.starts_with('/') {
            return invalid("is absolute");
        }
        for name in text.split('/') {
            match name {
                "" => return invalid("has an empty name"),
                "." | ".." => return invalid("leaves its directory"),
                _ if name.contains('\0') => return invalid("has a byte 0"),
                _ if name.len() > MAX_NAME_BYTES => return invalid("has a name that is too long"),
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
    pub fn split_parent(&self) -> (Option<&str>, &str) {
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
pub struct RootedPath {
    /// The root: an absolute path.
    pub root: String,
    /// The way from there.
    pub relative_path: RelativePath,
}

impl fmt::Display for RootedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.root, self.relative_path.as_str())
    }
}

/// A path of kubelet's: a staging path, a target path, or something in them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KubeletPath(RootedPath);

impl KubeletPath {
    /// Kubelet's root that it is beneath.
    pub fn root(&self) -> &str {
        &self.0.root
    }

    /// The way from there.
    pub fn relative_path(&self) -> &RelativePath {
        &self.0.relative_path
    }

    /// A name in this place.
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

/// Kubelet's root directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletRoots(Vec<String>);

impl KubeletRoots {
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
    pub fn resolve(&self, field: &str, path: &str) -> Result<KubeletPath, NodeError> {
        if path.is_empty() {
            return Err(NodeError::Invalid(format!("{field} is missing")));
        }
        let root_and_rest =
            self.0.iter().find_map(|root| Some((root, path.strip_prefix(root)?.strip_prefix('/')?)));
        let Some((root, rest)) = root_and_rest else {
            let roots = self.0.join(", ");
            return Err(NodeError::Invalid(format!(
                "{field} {path:?} is not beneath a root of kubelet: expected {roots}"
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
