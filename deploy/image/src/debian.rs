//! Debian packages: download, verification and content.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Once,
};

use crate::{FileTree, ImageError, PinnedPackage, Result, sha256};

/// Maximum length of the standard error in an error message, in characters.
const MAX_STDERR: usize = 500;

/// A Debian package.
#[derive(Clone, Debug)]
pub struct Package {
    pub(crate) pin: PinnedPackage,
    /// The paragraph of the control file, with a newline at the end.
    pub(crate) control: String,
    pub(crate) files: FileTree,
}

impl Package {
    /// A package with this control file and these files.
    ///
    /// # Errors
    /// The control file does not have the pinned name, version and architecture.
    pub fn new(pin: PinnedPackage, control: &str, files: FileTree) -> Result<Self> {
        let package = Self { pin, control: format!("{}\n", control.trim_end()), files };
        let PinnedPackage { name, version, architecture, .. } = &package.pin;
        for (field, expected) in [("Package", name), ("Version", version), ("Architecture", architecture)] {
            let actual = package.field(field).unwrap_or_default();
            if actual != expected {
                let (name, actual, expected) = (name.clone(), actual.to_owned(), expected.clone());
                return Err(ImageError::PackageField { name, field, actual, expected });
            }
        }
        Ok(package)
    }

    /// The name, version and digest.
    pub const fn pin(&self) -> &PinnedPackage {
        &self.pin
    }

    /// The files.
    pub const fn files(&self) -> &FileTree {
        &self.files
    }

    /// Reads a `.deb` file with dpkg-deb.
    fn read(pin: PinnedPackage, deb: &Path) -> Result<Self> {
        let archive = deb.to_string_lossy();
        let control = run("dpkg-deb", &["--field", &archive])?;
        let files = FileTree::read_package(&run("dpkg-deb", &["--fsys-tarfile", &archive])?[..], &archive)?;
        Self::new(pin, &String::from_utf8_lossy(&control), files)
    }

    /// The value of a field of the control file.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.control, name)
    }
}

/// Set after apt's lists were updated.
static LISTS_UPDATED: Once = Once::new();

/// A directory of downloaded packages.
#[derive(Clone, Debug)]
pub struct PackageCache(PathBuf);

impl PackageCache {
    /// The directory is created when a package is downloaded.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Reads a package, and downloads it first with apt if it is not in the cache.
    ///
    /// # Errors
    /// apt does not have the pinned version, the download fails, or the file does not have the pinned digest.
    pub fn get(&self, pin: &PinnedPackage) -> Result<Package> {
        let PinnedPackage { name, version, architecture, sha256: expected } = pin;
        let deb = self.0.join(format!("{name}_{}_{architecture}.deb", version.replace(':', "%3a")));
        if deb.is_file() {
            let data = fs::read(&deb).map_err(ImageError::read(&deb))?;
            if sha256(&data) == *expected {
                return Package::read(pin.clone(), &deb);
            }
        }
        let downloaded = self.download(pin)?;
        let actual = sha256(&fs::read(&downloaded).map_err(ImageError::read(&downloaded))?);
        if actual != *expected {
            let _ = fs::remove_file(&downloaded);
            let (name, version, expected) = (name.clone(), version.clone(), expected.clone());
            return Err(ImageError::PackageDigest { name, version, actual, expected });
        }
        fs::rename(&downloaded, &deb).map_err(ImageError::write(&deb))?;
        Package::read(pin.clone(), &deb)
    }

    /// As [`get`](Self::get), but returns the version that apt would install if apt no longer has the pinned
    /// one: Debian's mirrors keep no superseded versions.
    ///
    /// # Errors
    /// apt has no version of the package, the download fails, or the file does not have the digest in apt's
    /// lists.
    pub fn get_or_current(&self, pin: &PinnedPackage) -> Result<Package> {
        match self.get(pin) {
            Err(ImageError::MissingPackage { .. }) => self.get(&current(pin)?),
            found => found,
        }
    }

    /// Downloads a package into a directory of its own, because only apt knows the name of the file.
    fn download(&self, pin: &PinnedPackage) -> Result<PathBuf> {
        let PinnedPackage { name, version, architecture, .. } = pin;
        let pinned = format!("{}={version}", qualified(name, architecture));
        let is_missing = || -> Result<bool> {
            Ok(stanza(&pinned)?.is_none_or(|stanza| field(&stanza, "Version") != Some(version)))
        };
        if is_missing()? {
            // apt's lists may be missing or old. Only root can update them.
            LISTS_UPDATED.call_once(|| drop(run("apt-get", &["--quiet", "update"])));
        }
        if is_missing()? {
            let candidate = stanza(&qualified(name, architecture))?;
            return Err(ImageError::MissingPackage {
                name: name.clone(),
                version: version.clone(),
                architecture: architecture.clone(),
                candidate: candidate.and_then(|stanza| field(&stanza, "Version").map(str::to_owned)),
            });
        }
        let directory = self.0.join(format!("download-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(ImageError::write(&directory))?;
        let mut command = Command::new("apt-get");
        command.args(["--quiet", "download", &pinned]).current_dir(&directory);
        let result = run_command(&mut command).and_then(|_| {
            let mut entries = fs::read_dir(&directory).map_err(ImageError::read(&directory))?.flatten();
            let deb = entries.find(|entry| entry.path().extension().is_some_and(|end| end == "deb"));
            let deb = deb.ok_or_else(|| ImageError::Program {
                program: format!("apt-get download {pinned}"),
                problem: "no .deb file was written".to_owned(),
            })?;
            let moved = self.0.join(format!("{name}-{}.unverified", std::process::id()));
            fs::rename(deb.path(), &moved).map_err(ImageError::write(&moved))?;
            Ok(moved)
        });
        let _ = fs::remove_dir_all(&directory);
        result
    }
}

/// Replaces the versions and digests of all packages in a file of pins by those that apt would install. Each
/// package is an inline table on a line of its own. Other lines are not changed.
///
/// # Errors
/// apt cannot be run, or has no version of a package.
pub fn pin(text: &str) -> Result<String> {
    text.split_inclusive('\n').map(pin_line).collect()
}

fn pin_line(line: &str) -> Result<String> {
    let table = line.trim().trim_end_matches(',');
    match PinnedPackage::parse(table) {
        Ok(package) => Ok(line.replace(table, &current(&package)?.to_string())),
        Err(_) => Ok(line.to_owned()),
    }
}

/// The version of a package that apt would install.
fn current(package: &PinnedPackage) -> Result<PinnedPackage> {
    let PinnedPackage { name, version, architecture, .. } = package.clone();
    let found = stanza(&qualified(&name, &architecture))?;
    let fields = found.as_deref().and_then(|found| Some((field(found, "Version")?, field(found, "SHA256")?)));
    match fields {
        Some((version, sha256)) => {
            Ok(PinnedPackage { name, version: version.to_owned(), architecture, sha256: sha256.to_owned() })
        }
        None => Err(ImageError::MissingPackage { name, version, architecture, candidate: None }),
    }
}

fn qualified(name: &str, architecture: &str) -> String {
    if architecture == "all" { name.to_owned() } else { format!("{name}:{architecture}") }
}

/// apt's data about a package, such as `libc6:amd64` or `libc6:amd64=2.36-9`; `None` if it has none.
fn stanza(package: &str) -> Result<Option<String>> {
    let mut command = Command::new("apt-cache");
    command.args(["show", "--no-all-versions", package]).env("LC_ALL", "C");
    let output = command.output().map_err(not_started(&command))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.split("\n\n").next().unwrap_or_default().trim();
    Ok((output.status.success() && !first.is_empty()).then(|| first.to_owned()))
}

/// The value of a field of a paragraph, without continuation lines.
fn field<'text>(paragraph: &'text str, name: &str) -> Option<&'text str> {
    let values = paragraph.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.map(str::trim).next()
}

fn run(program: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    run_command(Command::new(program).args(arguments))
}

/// Runs a program and returns its standard output.
fn run_command(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.env("LC_ALL", "C").output().map_err(not_started(command))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stderr: Vec<char> = stderr.trim().replace('\n', "; ").chars().collect();
    let end = stderr.get(stderr.len().saturating_sub(MAX_STDERR)..).unwrap_or_default();
    let problem = format!("{}: {}", output.status, end.iter().collect::<String>());
    Err(ImageError::Program { program: shown(command), problem })
}

fn not_started(command: &Command) -> impl FnOnce(std::io::Error) -> ImageError {
    let program = shown(command);
    move |error| ImageError::Program {
        program,
        problem: format!("{error}; expected Debian's apt and dpkg on this machine"),
    }
}

fn shown(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_must_be_the_pinned_one() {
        let pin = PinnedPackage {
            name: "libc6".to_owned(),
            version: "2.36-9".to_owned(),
            architecture: "amd64".to_owned(),
            sha256: sha256(b""),
        };
        let control =
            "Package: libc6\nVersion: 2.36-9\nDescription: C library\n Version: 1\nArchitecture: amd64";
        assert!(Package::new(pin.clone(), control, FileTree::new()).is_ok());
        let control = control.replace("Architecture: amd64", "Architecture: arm64");
        let error = Package::new(pin, &control, FileTree::new()).unwrap_err().to_string();
        assert_eq!(error, "the package libc6 has Architecture: arm64, expected amd64");
    }
}
