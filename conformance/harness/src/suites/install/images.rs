//! The images of the suite: those of a release, of the program under test, in two versions, one of the Go
//! driver, and one that contains a component.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use cofferdam_image::{
    CrateList, Entry, FileTree, Image, ImageError, Layer, Layout, PackageCache, Packages, Pins, Release,
    ReleaseLayers, Report, write_archive,
};

use super::{VERSIONS, helm::source_directory};
use crate::{peers, process, run::SuiteRun};

/// Prefix of the images' names in containerd.
const PREFIX: &str = "conformance.cofferdam.dev";
/// Name of the controller's image in containerd, without the tag.
pub(in crate::suites) const REPOSITORY: &str = "conformance.cofferdam.dev/cofferdam";
/// The image of the Go driver.
pub(super) const DRIVER_IMAGE: &str = "conformance.cofferdam.dev/csi-driver:1";
/// The image with the component of the driver `pool`, and its file in the image.
pub(super) const COMPONENT_IMAGE: &str = "conformance.cofferdam.dev/pool:1";
pub(super) const COMPONENT_FILE: &str = "pool.wasm";
/// Time of creation of the images: an arbitrary second, so that they are the same in every run.
const CREATED: u64 = 1_800_000_000;

/// Name of the controller's image of a version.
pub(super) fn name(version: &str) -> String {
    format!("{REPOSITORY}:{version}")
}

/// Writes the images of both [`VERSIONS`] as `make image` does, from the program under test without its debug
/// information, the image of the Go driver and that of the component. Returns their archive.
///
/// # Errors
/// If a program or package cannot be read, a layer cannot be made, or a file cannot be written.
pub(in crate::suites) async fn write(run: &SuiteRun) -> Result<PathBuf> {
    let stripped = run.scratch().join("cofferdam-stripped");
    let (program, output) = (run.program().display().to_string(), stripped.display().to_string());
    process::run_to_completion("strip", &["-o", &output, &program]).await?;
    let input = ArchiveInput {
        stripped,
        driver: run.peers().program("csi-driver")?,
        current_packages: run.directory().join("packages.toml"),
        layout: run.scratch().join("images"),
        archive: run.scratch().join("images.tar"),
        report: run.directory().join("images.txt"),
    };
    let archive = input.archive.clone();
    let notes = tokio::task::spawn_blocking(move || input.write()).await.context("the images")??;
    for note in notes {
        run.add_note(&note)?;
    }
    Ok(archive)
}

/// Files from which the archive is written, and those that are written.
struct ArchiveInput {
    /// The program under test.
    stripped: PathBuf,
    /// The static Go driver.
    driver: PathBuf,
    /// Pins of the current packages, if a pinned one is gone.
    current_packages: PathBuf,
    layout: PathBuf,
    archive: PathBuf,
    /// Sizes of the images.
    report: PathBuf,
}

impl ArchiveInput {
    /// Writes the archive, and returns the notes of the suite. Compresses, so it takes seconds of CPU time.
    fn write(&self) -> Result<Vec<String>> {
        let (packages, notes) = self.load_packages()?;
        let binary =
            fs::read(&self.stripped).with_context(|| format!("cannot read {}", self.stripped.display()))?;
        let mut release = Release {
            binary_name: self.stripped.display().to_string(),
            binary,
            // The program under test is not built by `cargo auditable`.
            crates: CrateList::Omitted,
            packages,
            created: CREATED,
            version: String::new(),
            repository: PREFIX.to_owned(),
            source: None,
            output: self.layout.clone(),
        };
        let layers = ReleaseLayers::new(&release)?;
        let mut layout = Layout::create(&self.layout, release.packages.architecture, CREATED)?;
        let mut images = Vec::new();
        for version in VERSIONS {
            version.clone_into(&mut release.version);
            images.extend(layers.add_images(&mut layout, &release)?);
        }
        add_driver(&mut layout, &self.driver)?;
        add_component(&mut layout)?;
        let digest = layout.finish()?;
        let report = Report { layers: layers.reports().to_vec(), images, digest };
        fs::write(&self.report, report.to_string())?;
        write_archive(&self.layout, &self.archive)?;
        fs::remove_dir_all(&self.layout)?;
        Ok(notes)
    }

    /// The pinned packages. Debian's mirrors keep no superseded versions, so the suite uses the current ones
    /// if a pinned one is gone.
    fn load_packages(&self) -> Result<(Packages, Vec<String>)> {
        let file = source_directory().join("deploy/image/packages.toml");
        let pins = Pins::read(&file)?;
        let cache = PackageCache::new(peers::cache()?.join("packages"));
        match Packages::load(&pins, &cache) {
            Err(ImageError::MissingPackage { name, version, .. }) => {
                let note = format!("the images have current packages: {name} {version} is gone");
                fs::write(&self.current_packages, cofferdam_image::pin(&fs::read_to_string(&file)?)?)?;
                Ok((Packages::load(&Pins::read(&self.current_packages)?, &cache)?, vec![note]))
            }
            loaded => Ok((loaded?, Vec::new())),
        }
    }
}

/// Adds an image of the static Go driver.
fn add_driver(layout: &mut Layout, program: &Path) -> Result<()> {
    let program = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mut tree = FileTree::new();
    tree.insert("/csi-driver", Entry::program(program))?;
    let layer = Layer::new("csi-driver", &tree, CREATED)?;
    let image = Image {
        name: "csi-driver:1".to_owned(),
        containerd_name: DRIVER_IMAGE.to_owned(),
        entrypoint: vec!["/csi-driver".to_owned()],
        ..Image::default()
    };
    layout.add_image(&image, &[&layer])?;
    Ok(())
}

/// Adds an image of the component of the driver `pool`, for a volume.
fn add_component(layout: &mut Layout) -> Result<()> {
    let mut tree = FileTree::new();
    tree.insert(&format!("/{COMPONENT_FILE}"), Entry::file(cofferdam_carried::POOL.to_vec()))?;
    let layer = Layer::new("pool", &tree, CREATED)?;
    let image =
        Image { name: "pool:1".to_owned(), containerd_name: COMPONENT_IMAGE.to_owned(), ..Image::default() };
    layout.add_image(&image, &[&layer])?;
    Ok(())
}
