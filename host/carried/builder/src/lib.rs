//! Compiles guests to WebAssembly components from a build script, with a cargo process of its own.
//!
//! The outer cargo holds the lock of its target directory while a build script runs, so guests have another
//! target directory. All profiles of the host share it, because guests are built with one profile only.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    reason = "cargo reads a build script's instructions from its standard output"
)]

use std::{
    env,
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

const TARGET: &str = "wasm32-wasip2";
const PROFILE: &str = "guest";

/// A guest crate of this workspace.
#[derive(Clone, Copy, Debug)]
pub struct GuestPackage {
    /// Cargo's package name.
    pub package: &'static str,
    /// Directory, relative to the workspace.
    pub directory: &'static str,
    /// Environment variable that passes the path of the component to the crate being built.
    pub path_variable: &'static str,
}

/// The reason for which [`build`] failed.
#[derive(thiserror::Error)]
pub enum BuildError {
    /// Cargo did not set a variable: the caller is not a build script.
    #[error("cargo has not set {0}; expected to run in a build script")]
    Variable(&'static str),
    /// The path of the calling crate's directory cannot be resolved.
    #[error("the directory {} of the crate: {source}", .directory.display())]
    CrateDirectory {
        /// The directory, as cargo named it.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Neither the directory of the calling crate nor one of its ancestors contains a `Cargo.lock`.
    #[error("no Cargo.lock in {} or above", .0.display())]
    NoWorkspace(PathBuf),
    /// `OUT_DIR` has fewer than four ancestors, so it is not inside a target directory.
    #[error("OUT_DIR is {}; expected four folders above it", .0.display())]
    OutDir(PathBuf),
    /// The target for components is not installed, and rustup cannot add it.
    #[error("the compiler lacks the target {TARGET}: run `rustup target add {TARGET}`")]
    MissingTarget,
    /// The inner cargo cannot be started.
    #[error("cargo cannot be started for {package}: {source}")]
    Start {
        /// The guest.
        package: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The inner cargo failed. Its output is above this error.
    #[error("{package} does not build for {TARGET}: {status}")]
    Compile {
        /// The guest.
        package: &'static str,
        /// The exit status of cargo.
        status: ExitStatus,
    },
    /// The inner cargo succeeded, but the component does not exist at this path.
    #[error("cargo has not written {}", .0.display())]
    NoComponent(PathBuf),
}

/// The message: a build script that returns an error prints its `Debug` form.
impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Builds the guests and passes the path of each component to the crate whose build script calls this.
///
/// # Errors
/// The caller is not a build script, the workspace or the target directory is not found, the target cannot be
/// installed, or a guest does not build.
pub fn build(guests: &[GuestPackage]) -> Result<(), BuildError> {
    let root = workspace()?;
    for watched in ["wit", "guest-sdk", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", root.join(watched).display());
    }
    let target = target_directory()?;
    install_target(&root)?;
    for guest in guests {
        println!("cargo:rerun-if-changed={}", root.join(guest.directory).display());
        let component = build_guest(guest, &root, &target)?;
        println!("cargo:rustc-env={}={}", guest.path_variable, component.display());
    }
    Ok(())
}

/// The closest ancestor of the calling crate's directory with a `Cargo.lock`.
fn workspace() -> Result<PathBuf, BuildError> {
    let directory = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let directory = match directory.canonicalize() {
        Ok(directory) => directory,
        Err(source) => return Err(BuildError::CrateDirectory { directory, source }),
    };
    let root = directory.ancestors().find(|ancestor| ancestor.join("Cargo.lock").is_file());
    root.map(Path::to_owned).ok_or(BuildError::NoWorkspace(directory))
}

fn variable(name: &'static str) -> Result<OsString, BuildError> {
    env::var_os(name).ok_or(BuildError::Variable(name))
}

/// A directory beside the host's profiles: `OUT_DIR` is `<target>/<profile>/build/<package>/out`.
fn target_directory() -> Result<PathBuf, BuildError> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let guests = out.ancestors().nth(4).map(|target| target.join("guests"));
    guests.ok_or(BuildError::OutDir(out))
}

/// Adds the target to the toolchain unless rustup lists it as installed. Does nothing if rustup cannot be
/// started: the compiler then reports a missing target.
fn install_target(root: &Path) -> Result<(), BuildError> {
    let rustup = |arguments: &[&str]| {
        Command::new("rustup").args(arguments).current_dir(root).stderr(Stdio::inherit()).output().ok()
    };
    let Some(installed) = rustup(&["target", "list", "--installed"]) else { return Ok(()) };
    if String::from_utf8_lossy(&installed.stdout).lines().any(|line| line == TARGET) {
        return Ok(());
    }
    match rustup(&["target", "add", TARGET]) {
        Some(added) if added.status.success() => Ok(()),
        _ => Err(BuildError::MissingTarget),
    }
}

fn build_guest(guest: &GuestPackage, root: &Path, target: &Path) -> Result<PathBuf, BuildError> {
    let mut cargo = Command::new(variable("CARGO")?);
    cargo
        .args(["build", "--locked", "--package", guest.package, "--target", TARGET, "--profile", PROFILE])
        .arg("--target-dir")
        .arg(target)
        .arg("--config")
        .arg(path_independence(root))
        .current_dir(root);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_from_outer_build) {
            cargo.env_remove(name);
        }
    }
    let package = guest.package;
    let status = cargo.status().map_err(|source| BuildError::Start { package, source })?;
    if !status.success() {
        return Err(BuildError::Compile { package, status });
    }
    let file = format!("{}.wasm", guest.package.replace('-', "_"));
    let component = target.join(TARGET).join(PROFILE).join(file);
    if !component.is_file() {
        return Err(BuildError::NoComponent(component));
    }
    Ok(component)
}

/// Cargo configuration that keeps the paths of this machine out of the component, so that its digest is the
/// same on each machine. It joins the flags of the workspace's configuration.
fn path_independence(root: &Path) -> String {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        let home = env::home_dir()?;
        Some(home.join(".cargo"))
    });
    let remapped = [(Some(root.to_owned()), "/cofferdam"), (cargo_home, "/cargo")];
    let flags: Vec<String> = remapped
        .into_iter()
        .filter_map(|(path, name)| Some(format!("--remap-path-prefix={}={name}", path?.display())))
        .map(|flag| format!("{flag:?}"))
        .collect();
    format!("target.{TARGET}.rustflags=[{}]", flags.join(","))
}

/// Returns `true` if this variable configures the host's compilation: the outer cargo, clippy, a coverage
/// tool or, like `RUSTFLAGS`, a person sets it. Guests must not inherit it.
fn is_from_outer_build(name: &str) -> bool {
    const KEPT: [&str; 2] = ["CARGO_HOME", "CARGO_NET_OFFLINE"];
    let prefixes = ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "CLIPPY", "LLVM_PROFILE", "DEP_"];
    let cargo_input = ["OUT_DIR", "TARGET", "HOST", "NUM_JOBS", "OPT_LEVEL", "PROFILE", "DEBUG"];
    let of_registry =
        name.starts_with("CARGO_REGISTR") || name.starts_with("CARGO_HTTP") || name.starts_with("CARGO_NET");
    !KEPT.contains(&name)
        && !of_registry
        && (prefixes.iter().any(|prefix| name.starts_with(prefix)) || cargo_input.contains(&name))
}
