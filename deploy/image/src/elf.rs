//! Requirements of an ELF file: its architecture, dynamic loader, libraries and symbol versions.

use std::{collections::BTreeSet, fmt};

use object::{
    Endianness,
    elf::{DT_NEEDED, EM_AARCH64, EM_X86_64, FileHeader64},
    read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _},
};
use serde::Deserialize;

use crate::{ImageError, Result};

/// An architecture, by Debian's and OCI's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// AArch64.
    Arm64,
}

impl Architecture {
    /// The architecture of this machine, if it is one of these.
    pub fn of_this_machine() -> Option<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Self::Amd64),
            "aarch64" => Some(Self::Arm64),
            _ => None,
        }
    }

    /// The name that Debian and OCI use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The directory of the architecture's libraries.
    pub(crate) const fn triplet(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The parts of an ELF file that decide what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ElfFile {
    pub(crate) architecture: Architecture,
    /// The dynamic loader.
    pub(crate) interpreter: Option<String>,
    /// Names of libraries.
    pub(crate) needed: Vec<String>,
    /// Symbol versions that it needs, each with the library's name.
    pub(crate) needed_versions: Vec<(String, String)>,
    /// Symbol versions that it defines.
    pub(crate) defined_versions: BTreeSet<String>,
}

impl ElfFile {
    /// Reads the file `name`.
    ///
    /// # Errors
    /// [`ImageError::Elf`]
    pub(crate) fn parse(name: &str, data: &[u8]) -> Result<Self> {
        let failed = |problem: String| ImageError::Elf { file: name.to_owned(), problem };
        let invalid = |error: object::Error| failed(error.to_string());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let header = FileHeader64::<Endianness>::parse(data).map_err(invalid)?;
        let endian = header.endian().map_err(invalid)?;
        let architecture = match (header.e_machine(endian), endian) {
            (EM_X86_64, Endianness::Little) => Architecture::Amd64,
            (EM_AARCH64, Endianness::Little) => Architecture::Arm64,
            (machine, _) => return Err(failed(format!("its machine is {machine}"))),
        };
        let mut interpreter = None;
        for segment in header.program_headers(endian, data).map_err(invalid)? {
            if let Some(path) = segment.interpreter(endian, data).map_err(invalid)? {
                interpreter = Some(text(path));
            }
        }
        let sections = header.sections(endian, data).map_err(invalid)?;
        let mut needed = Vec::new();
        if let Some((entries, strings)) = sections.dynamic(endian, data).map_err(invalid)? {
            let strings = sections.strings(endian, data, strings).map_err(invalid)?;
            for entry in entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED) {
                needed.push(text(entry.string(endian, strings).map_err(invalid)?));
            }
        }
        let mut needed_versions = Vec::new();
        if let Some((mut libraries, strings)) = sections.gnu_verneed(endian, data).map_err(invalid)? {
            let strings = sections.strings(endian, data, strings).map_err(invalid)?;
            while let Some((library, mut versions)) = libraries.next().map_err(invalid)? {
                let library = text(library.file(endian, strings).map_err(invalid)?);
                while let Some(version) = versions.next().map_err(invalid)? {
                    let version = text(version.name(endian, strings).map_err(invalid)?);
                    needed_versions.push((library.clone(), version));
                }
            }
        }
        let mut defined_versions = BTreeSet::new();
        if let Some((mut versions, strings)) = sections.gnu_verdef(endian, data).map_err(invalid)? {
            let strings = sections.strings(endian, data, strings).map_err(invalid)?;
            while let Some((_, mut names)) = versions.next().map_err(invalid)? {
                if let Some(version) = names.next().map_err(invalid)? {
                    defined_versions.insert(text(version.name(endian, strings).map_err(invalid)?));
                }
            }
        }
        Ok(Self { architecture, interpreter, needed, needed_versions, defined_versions })
    }
}

/// The content of the section `section` of the file `name`, if it has one.
///
/// # Errors
/// [`ImageError::Elf`]
pub(crate) fn section<'data>(name: &str, data: &'data [u8], section: &str) -> Result<Option<&'data [u8]>> {
    let invalid =
        |error: object::Error| ImageError::Elf { file: name.to_owned(), problem: error.to_string() };
    let header = FileHeader64::<Endianness>::parse(data).map_err(invalid)?;
    let endian = header.endian().map_err(invalid)?;
    let sections = header.sections(endian, data).map_err(invalid)?;
    match sections.section_by_name(endian, section.as_bytes()) {
        Some((_, section)) => section.data(endian, data).map(Some).map_err(invalid),
        None => Ok(None),
    }
}
