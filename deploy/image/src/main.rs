//! Writes the container images of Cofferdam.
#![forbid(unsafe_code)]

use std::{
    env, fs,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use cofferdam_image::{
    CrateList, PackageCache, Packages, Pins, Release, assemble, compare, pin, write_archive,
};

/// Writes the container images of Cofferdam, without a daemon or a registry.
#[derive(Debug, Parser)]
#[command(name = "cofferdam-image", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write an OCI image layout with all images, and their bills of materials
    Build(Box<Build>),
    /// Pin the versions of the packages that apt would install
    Pin(Pin),
    /// Name the differences between two layouts; exits with 1 if there are any
    Compare {
        /// An image layout
        first: PathBuf,
        /// Another image layout
        second: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Build {
    /// The program
    #[arg(long, value_name = "FILE", default_value = "target/release/cofferdam")]
    binary: PathBuf,
    /// Pinned Debian packages
    #[arg(long, value_name = "FILE", default_value = "deploy/image/packages.toml")]
    packages: PathBuf,
    /// Directory of downloaded packages [default: cofferdam/packages in $XDG_CACHE_HOME or ~/.cache]
    #[arg(long, value_name = "DIR")]
    package_cache: Option<PathBuf>,
    /// Directory of the image layout; an earlier layout is replaced
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Also write the layout as one archive, for `ctr images import`
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,
    /// Time of the images and of every file in them, in seconds since 1970
    #[arg(long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH")]
    created: u64,
    /// Version and tag of the images
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    version: String,
    /// Prefix of the names of the images in containerd
    #[arg(long, default_value = "localhost")]
    repository: String,
    /// URL of the source code, as a label
    #[arg(long, value_name = "URL")]
    source: Option<String>,
    /// Accept a program that `cargo auditable` did not build; its bills of materials have no crates
    #[arg(long)]
    without_crates: bool,
}

#[derive(Debug, Args)]
struct Pin {
    /// Pinned Debian packages
    #[arg(long, value_name = "FILE", default_value = "deploy/image/packages.toml")]
    packages: PathBuf,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "cofferdam-image: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Build(build) => {
            let report = build.run()?;
            writeln!(io::stdout(), "{report}")?;
        }
        Command::Pin(Pin { packages }) => {
            let text = fs::read_to_string(&packages)
                .with_context(|| format!("cannot read {}", packages.display()))?;
            fs::write(&packages, pin(&text)?)
                .with_context(|| format!("cannot write {}", packages.display()))?;
        }
        Command::Compare { first, second } => {
            let differences = compare(&first, &second)?;
            for difference in &differences {
                writeln!(io::stdout(), "{difference}")?;
            }
            if !differences.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Build {
    fn run(self) -> Result<cofferdam_image::Report> {
        let pins = Pins::read(&self.packages)?;
        let binary =
            fs::read(&self.binary).with_context(|| format!("cannot read {}", self.binary.display()))?;
        let cache = self.package_cache.or_else(default_cache);
        let cache = cache.context("neither XDG_CACHE_HOME nor HOME is set: expected --package-cache")?;
        let report = assemble(&Release {
            binary_name: self.binary.display().to_string(),
            binary,
            crates: if self.without_crates { CrateList::Omitted } else { CrateList::Required },
            packages: Packages::load(&pins, &PackageCache::new(cache))?,
            created: self.created,
            version: self.version,
            repository: self.repository,
            source: self.source,
            output: self.output.clone(),
        })?;
        if let Some(archive) = self.archive {
            write_archive(&self.output, &archive)?;
        }
        Ok(report)
    }
}

fn default_cache() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Some(cache?.join("cofferdam/packages"))
}
