//! The file of pinned packages.

use std::{fmt::Write as _, fs, path::Path};

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
            let PinnedPackage { name, version, architecture, sha256 } = package;
            if architecture != "all" && architecture != pins.architecture.name() {
                let expected = pins.architecture;
                return Err(format!("{name} is for {architecture}, expected {expected} or all"));
            }
            if sha256.len() != 64 || !sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                return Err(format!(
                    "sha256 of {name} is {sha256:?}, expected 64 lower-case hexadecimal digits"
                ));
            }
            if !is_package_name(name) || version.is_empty() || !version.bytes().all(is_version_byte) {
                return Err(format!("{name:?} {version:?} is not the name and version of a Debian package"));
            }
        }
        Ok(pins)
    }

    /// All packages.
    pub fn packages(&self) -> impl Iterator<Item = &PinnedPackage> {
        self.controller.packages.iter().chain(&self.node.packages)
    }

    /// The text of the file.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::from(
            "# Debian packages of the images, by version and digest. `make image-pin` writes the versions that apt would install.\n\
             #\n\
             # The images have the files that this file names, and the libraries that the programs need. Scanners read\n\
             # debian_version and os-release. The copyright files of the packages refer to common-licenses.\n\n",
        );
        let _ = writeln!(text, "architecture = \"{}\"\n\n[controller]", self.architecture);
        write_list(&mut text, "files", &self.controller.files);
        write_packages(&mut text, &self.controller.packages);
        text.push_str("\n[node]\n");
        write_list(&mut text, "programs", &self.node.programs);
        write_list(&mut text, "files", &self.node.files);
        write_packages(&mut text, &self.node.packages);
        text
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

fn write_list(text: &mut String, key: &str, values: &[String]) {
    let _ = writeln!(text, "{key} = [");
    for value in values {
        let _ = writeln!(text, "  {value:?},");
    }
    text.push_str("]\n");
}

fn write_packages(text: &mut String, packages: &[PinnedPackage]) {
    text.push_str("packages = [\n");
    for PinnedPackage { name, version, architecture, sha256 } in packages {
        let _ = writeln!(
            text,
            "  {{ name = {name:?}, version = {version:?}, architecture = {architecture:?}, sha256 = {sha256:?} }},"
        );
    }
    text.push_str("]\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../packages.toml");

    #[test]
    fn the_file_in_the_repository_is_what_pin_writes() {
        assert_eq!(Pins::parse(TEXT).unwrap().to_text(), TEXT);
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
