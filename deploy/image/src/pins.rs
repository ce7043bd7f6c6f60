//! The file of pinned packages.

use std::{fmt, fs, path::Path};

use serde::Deserialize;

use crate::{ImageError, Result, elf::Architecture};

/// Debian packages of the images, and which of their files the images have.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    /// Architecture of the packages and of the images.
    pub architecture: Architecture,
    /// Packages of all images.
    pub controller: ControllerPins,
    /// Further packages of the node's image.
    pub node: NodePins,
}

/// Packages of all images.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerPins {
    /// Files that no program names as a library.
    pub files: Vec<String>,
    /// The packages.
    pub packages: Vec<PinnedPackage>,
}

/// Further packages of the node's image.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePins {
    /// The tools that the node role runs.
    pub programs: Vec<String>,
    /// Files that no program names as a library.
    pub files: Vec<String>,
    /// The packages.
    pub packages: Vec<PinnedPackage>,
}

/// A version of a Debian package.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinnedPackage {
    /// The name.
    pub name: String,
    /// The version.
    pub version: String,
    /// The architecture, or `all`.
    pub architecture: String,
    /// SHA-256 of the `.deb` file, in lower-case hexadecimal digits.
    pub sha256: String,
}

impl PinnedPackage {
    /// Parses an inline table of TOML.
    ///
    /// # Errors
    /// The text is not one, has an unknown key, or misses one. The error is a text for people.
    pub(crate) fn parse(table: &str) -> std::result::Result<Self, String> {
        #[derive(Deserialize)]
        struct Document {
            package: PinnedPackage,
        }
        let document: Document =
            toml::from_str(&format!("package = {table}")).map_err(|error| error.to_string())?;
        Ok(document.package)
    }

    /// Returns an error if this is not the name, version and digest of a package for `expected` or all
    /// architectures. The error is a text for people.
    fn check(&self, expected: Architecture) -> std::result::Result<(), String> {
        let Self { name, version, architecture, sha256 } = self;
        if architecture != "all" && architecture != expected.name() {
            return Err(format!("{name} is for {architecture}, expected {expected} or all"));
        }
        if sha256.len() != 64 || !sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(format!("sha256 of {name} is {sha256:?}, expected 64 lower-case hexadecimal digits"));
        }
        if !is_package_name(name) || version.is_empty() || !version.bytes().all(is_version_byte) {
            return Err(format!("{name:?} {version:?} is not the name and version of a Debian package"));
        }
        Ok(())
    }
}

impl fmt::Display for PinnedPackage {
    /// Formats the package as an inline table of TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, architecture, sha256 } = self;
        write!(
            f,
            "{{ name = {name:?}, version = {version:?}, architecture = {architecture:?}, sha256 = {sha256:?} }}"
        )
    }
}

impl Pins {
    /// Reads a file of pins.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, has an unknown key, misses one, or has a package for another
    /// architecture or with an invalid digest.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(ImageError::read(path))?;
        Self::parse(&text).map_err(|problem| ImageError::Pins { path: path.to_owned(), problem })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let pins: Self = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        for package in pins.packages() {
            package.check(pins.architecture)?;
        }
        Ok(pins)
    }

    /// All packages.
    pub fn packages(&self) -> impl Iterator<Item = &PinnedPackage> {
        self.controller.packages.iter().chain(&self.node.packages)
    }
}

fn is_package_name(name: &str) -> bool {
    let inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'-' | b'.');
    name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && name.bytes().all(inner)
}

const fn is_version_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-' | b'~' | b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../packages.toml");

    #[test]
    fn packages_are_formatted_as_in_the_file() {
        let lines: Vec<&str> = TEXT.lines().filter(|line| line.contains("name = ")).collect();
        assert_eq!(lines.len(), Pins::parse(TEXT).unwrap().packages().count());
        for line in lines {
            let table = line.trim().trim_end_matches(',');
            assert_eq!(PinnedPackage::parse(table).unwrap().to_string(), table);
        }
    }

    #[test]
    fn an_invalid_pin_is_named() {
        let replaced = |from: &str, to: &str| Pins::parse(&TEXT.replacen(from, to, 1)).unwrap_err();
        let error = replaced("architecture = \"amd64\", ", "architecture = \"i386\", ");
        assert!(error.ends_with(" is for i386, expected amd64 or all"), "{error}");
        let error = replaced("sha256 = \"", "sha256 = \"F");
        assert!(error.contains("expected 64 lower-case hexadecimal digits"), "{error}");
        let error = replaced("programs = [", "program = [");
        assert!(error.contains("unknown field `program`"), "{error}");
        let error = replaced("name = \"libc6\"", "name = \"../libc6\"");
        assert!(error.starts_with("\"../libc6\" "), "{error}");
    }
}
