//! The images of the suite: those of a release, of the program under test, and one of the Go driver.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use cofferdam_image::{
    Architecture, CrateList, Entry, FileTree, Image, ImageError, Layer, Layout, PackageCache, Packages, Pins,
    Release, assemble, write_archive,
};

use super::helm::source_directory;
use crate::{process, run::SuiteRun};

/// Prefix of the images' names in containerd.
const PREFIX: &str = "conformance.cofferdam.dev";
/// Name of the controller's image in containerd, without the tag.
pub(super) const REPOSITORY: &str = "conformance.cofferdam.dev/cofferdam";
/// The image of the Go driver.
pub(super) const DRIVER_IMAGE: &str = "conformance.cofferdam.dev/csi-driver:1";
/// Time of creation of the images: an arbitrary second, so that they are the same in every run.
const CREATED: u64 = 1_800_000_000;

/// Name of the controller's image of a version.
pub(super) fn name(version: &str) -> String {
    format!("{REPOSITORY}:{version}")
}

/// Writes the images of a release as `make image` does, from the program under test without its debug
/// information, and returns their archive.
///
/// # Errors
/// If the program cannot be read, or [`assemble`] fails.
pub(super) async fn write_release(run: &SuiteRun, version: &str) -> Result<PathBuf> {
    let stripped = run.scratch().join("cofferdam-stripped");
    if !stripped.exists() {
        let (program, output) = (run.program().display().to_string(), stripped.display().to_string());
        process::run_to_completion("strip", &["-o", &output, &program]).await?;
    }
    let binary = fs::read(&stripped).with_context(|| format!("cannot read {}", stripped.display()))?;
    let packages = load_packages(run)?;
    let output = run.scratch().join(format!("image-{version}"));
    let release = Release {
        binary_name: stripped.display().to_string(),
        binary,
        // The program under test is not built by `cargo auditable`.
        crates: CrateList::Omitted,
        packages,
        created: CREATED,
        version: version.to_owned(),
        repository: PREFIX.to_owned(),
        source: None,
        output: output.clone(),
    };
    let report = assemble(&release)?;
    fs::write(run.directory().join(format!("image-{version}.txt")), report.to_string())?;
    let archive = run.scratch().join(format!("image-{version}.tar"));
    write_archive(&output, &archive)?;
    fs::remove_dir_all(&output)?;
    Ok(archive)
}

/// The pinned packages. Debian's mirrors keep no superseded versions, so the suite uses the current ones if a
/// pinned one is gone.
fn load_packages(run: &SuiteRun) -> Result<Packages> {
    let pins = Pins::read(&source_directory().join("deploy/image/packages.toml"))?;
    let cache = PackageCache::new(package_cache()?);
    match Packages::load(&pins, &cache) {
        Err(ImageError::MissingPackage { name, version, .. }) => {
            run.add_note(&format!("the images have current packages: {name} {version} is gone"))?;
            let path = run.directory().join("packages.toml");
            fs::write(&path, cofferdam_image::pin(&pins)?)?;
            Ok(Packages::load(&Pins::read(&path)?, &cache)?)
        }
        loaded => Ok(loaded?),
    }
}

/// Writes an image of the static Go driver, and returns its archive.
///
/// # Errors
/// If the driver has not been built, or a file cannot be written.
pub(super) fn write_driver(run: &SuiteRun) -> Result<PathBuf> {
    let program = fs::read(run.peers().program("csi-driver")?)?;
    let mut tree = FileTree::new();
    tree.insert("/csi-driver", Entry::program(program))?;
    let layer = Layer::new("csi-driver", &tree, CREATED)?;
    let output = run.scratch().join("image-driver");
    let architecture =
        Architecture::of_this_machine().context("this machine's architecture has no images")?;
    let mut layout = Layout::create(&output, architecture, CREATED)?;
    let image = Image {
        name: "csi-driver:1".to_owned(),
        containerd_name: DRIVER_IMAGE.to_owned(),
        entrypoint: vec!["/csi-driver".to_owned()],
        ..Image::default()
    };
    layout.add_image(&image, &[&layer])?;
    layout.finish()?;
    let archive = run.scratch().join("image-driver.tar");
    write_archive(&output, &archive)?;
    Ok(archive)
}

/// The cache of Debian packages, beside that of the peers.
fn package_cache() -> Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => Path::new(&std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(cache.join("cofferdam/packages"))
}
