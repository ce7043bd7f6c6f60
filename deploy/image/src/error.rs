//! Errors of building images.

use std::{io, path::PathBuf};

use crate::elf::Architecture;

/// The reason for which an image is not built.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file or directory cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The output directory has files of something else.
    #[error("{} is not empty and has no file oci-layout; expected an empty directory or an earlier image layout", .0.display())]
    NotALayout(PathBuf),
    /// A path leaves the root directory, or is neither a file, a directory nor a symbolic link.
    #[error("{path}: {problem}")]
    Entry {
        /// The path in the package or directory.
        path: String,
        /// The problem.
        problem: &'static str,
    },
    /// Two parts of a layer have one path with different content.
    #[error("{path} is in {first} and in {second}, with different content")]
    Conflict {
        /// The path.
        path: String,
        /// The part that has it first.
        first: String,
        /// The other part.
        second: String,
    },
    /// The file of pins is invalid.
    #[error("{}: {problem}", path.display())]
    Pins {
        /// The file.
        path: PathBuf,
        /// The line and the reason.
        problem: String,
    },
    /// A program that this tool runs cannot be started or fails.
    #[error("{program}: {problem}")]
    Program {
        /// The program and its arguments.
        program: String,
        /// The cause, or the end of its standard error.
        problem: String,
    },
    /// apt does not have the pinned version of a package.
    #[error(
        "apt has no {name} {version} for {architecture}{}: run `apt-get update`, and if the archive has a newer version, \
         `make image-pin`, which pins it",
        candidate.as_ref().map(|candidate| format!(" (its candidate is {candidate})")).unwrap_or_default()
    )]
    MissingPackage {
        /// The package.
        name: String,
        /// The pinned version.
        version: String,
        /// The architecture.
        architecture: String,
        /// The version that apt would install.
        candidate: Option<String>,
    },
    /// A downloaded package has another digest.
    #[error("{name} {version}: its SHA-256 is {actual}, expected {expected}")]
    PackageDigest {
        /// The package.
        name: String,
        /// The pinned version.
        version: String,
        /// The digest of the file.
        actual: String,
        /// The pinned digest.
        expected: String,
    },
    /// A package is not what its pin says.
    #[error("the package {name} has {field}: {actual}, expected {expected}")]
    PackageField {
        /// The pinned name.
        name: String,
        /// The field of its control file.
        field: &'static str,
        /// The field's value.
        actual: String,
        /// The pinned value.
        expected: String,
    },
    /// A file is not an ELF file that this tool reads.
    #[error("{file}: {problem}; expected a 64-bit ELF file for amd64 or arm64")]
    Elf {
        /// The file.
        file: String,
        /// The cause.
        problem: String,
    },
    /// A file is for another architecture than the packages.
    #[error("{file} is built for {actual}, and the packages are for {expected}")]
    Architecture {
        /// The file.
        file: String,
        /// The architecture of the file.
        actual: Architecture,
        /// The architecture of the packages.
        expected: Architecture,
    },
    /// A tool is a script.
    #[error("{file} of the package {package} is a script for {interpreter}; the images have no interpreter")]
    Script {
        /// The tool.
        file: String,
        /// Its package.
        package: String,
        /// The program in its first line.
        interpreter: String,
    },
    /// No package has a file that the pins or a symbolic link name.
    #[error("no package of {packages} has {file}")]
    MissingFile {
        /// The file.
        file: String,
        /// The packages that were searched.
        packages: String,
    },
    /// No package has a library that a file needs.
    #[error("{file} needs {library}, which no package of {packages} has")]
    MissingLibrary {
        /// The file.
        file: String,
        /// The library.
        library: String,
        /// The packages that were searched.
        packages: String,
    },
    /// A library is older than a file needs.
    #[error(
        "{file} needs {symbol_version} of {library}, which {package} {package_version} does not have: \
         build it on the release of Debian that the packages are from"
    )]
    OldLibrary {
        /// The file.
        file: String,
        /// The symbol version, such as `GLIBC_2.38`.
        symbol_version: String,
        /// The library.
        library: String,
        /// The library's package.
        package: String,
        /// The version of the package.
        package_version: String,
    },
    /// A package is pinned, and no file of it is needed.
    #[error("no image needs a file of the package {0}: remove its pin")]
    UnusedPackage(String),
    /// The program has no list of its crates.
    #[error(
        "{0} has no section .dep-v0, the list of its crates: build it with `cargo auditable build`, \
         or pass --without-crates for a bill of materials without crates"
    )]
    NoCrates(String),
    /// The program's list of crates cannot be read.
    #[error("the list of crates of {file}: {problem}")]
    Crates {
        /// The program.
        file: String,
        /// The cause.
        problem: String,
    },
    /// The time of creation is after the year 9999.
    #[error("the time {0} is not in the years 1970 to 9999, in seconds since 1970")]
    Time(u64),
    /// A layout that is compared is invalid.
    #[error("{}: {problem}", path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// The cause.
        problem: String,
    },
}

impl ImageError {
    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Read { path, source }
    }

    pub(crate) fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Write { path, source }
    }
}
