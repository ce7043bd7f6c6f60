//! Compiles the guests with a cargo of their own.
//!
//! The outer cargo holds the lock of its target directory while this script runs, so the guests have another one; it is
//! shared by all profiles of the host, because guests are built with one profile only.

use std::{
    env,
    error::Error,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const TARGET: &str = "wasm32-wasip2";
const PROFILE: &str = "guest";

/// A guest: its package, its folder in the repository, and the variable that tells the crate where its component is.
struct Guest {
    package: &'static str,
    folder: &'static str,
    variable: &'static str,
    wanted: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let guests = [
        Guest {
            package: "cofferdam-backend-memory",
            folder: "backends/memory",
            variable: "COFFERDAM_GUEST_MEMORY",
            wanted: true,
        },
        Guest {
            package: "cofferdam-backend-pool",
            folder: "backends/pool",
            variable: "COFFERDAM_GUEST_POOL",
            wanted: true,
        },
        Guest {
            package: "cofferdam-guest-pool-tricks",
            folder: "host/backend/tests/guests/pool-tricks",
            variable: "COFFERDAM_GUEST_POOL_TRICKS",
            wanted: env::var_os("CARGO_FEATURE_HOSTILE").is_some(),
        },
        Guest {
            package: "cofferdam-guest-hostile",
            folder: "host/backend/tests/guests/hostile",
            variable: "COFFERDAM_GUEST_HOSTILE",
            wanted: env::var_os("CARGO_FEATURE_HOSTILE").is_some(),
        },
        Guest {
            package: "cofferdam-guest-net",
            folder: "host/backend/tests/guests/net",
            variable: "COFFERDAM_GUEST_NET",
            wanted: env::var_os("CARGO_FEATURE_NET").is_some(),
        },
        Guest {
            package: "cofferdam-guest-broken",
            folder: "host/suite/tests/guests/broken",
            variable: "COFFERDAM_GUEST_BROKEN",
            wanted: env::var_os("CARGO_FEATURE_BROKEN").is_some(),
        },
        Guest {
            package: "cofferdam-example-starter",
            folder: "examples/starter",
            variable: "COFFERDAM_GUEST_STARTER",
            wanted: env::var_os("CARGO_FEATURE_EXAMPLES").is_some(),
        },
        Guest {
            package: "cofferdam-example-array",
            folder: "examples/array-driver",
            variable: "COFFERDAM_GUEST_ARRAY",
            wanted: env::var_os("CARGO_FEATURE_EXAMPLES").is_some(),
        },
    ];
    for watched in ["wit", "guest-sdk", "Cargo.toml", "Cargo.lock", "host/guests/build.rs"] {
        println!("cargo:rerun-if-changed={}", root.join(watched).display());
    }
    let target = target_directory()?;
    install_target(&root)?;
    for guest in guests.iter().filter(|guest| guest.wanted) {
        println!("cargo:rerun-if-changed={}", root.join(guest.folder).display());
        let component = build(guest, &root, &target)?;
        println!("cargo:rustc-env={}={}", guest.variable, component.display());
    }
    Ok(())
}

fn variable(name: &str) -> Result<OsString, String> {
    env::var_os(name).ok_or_else(|| format!("cargo has not set {name}"))
}

/// A folder beside the host's profiles: `OUT_DIR` is `<target>/<profile>/build/<package>/out`.
fn target_directory() -> Result<PathBuf, Box<dyn Error>> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let target = out
        .ancestors()
        .nth(4)
        .ok_or_else(|| format!("OUT_DIR is {out:?}; expected four folders above it"))?;
    Ok(target.join("guests"))
}

/// Adds the target to the toolchain where rustup knows that it is missing; without rustup, the compiler itself tells.
fn install_target(root: &Path) -> Result<(), String> {
    let rustup = |arguments: &[&str]| {
        Command::new("rustup").args(arguments).current_dir(root).stderr(Stdio::inherit()).output().ok()
    };
    let Some(installed) = rustup(&["target", "list", "--installed"]) else { return Ok(()) };
    if String::from_utf8_lossy(&installed.stdout).lines().any(|line| line == TARGET) {
        return Ok(());
    }
    match rustup(&["target", "add", TARGET]) {
        Some(added) if added.status.success() => Ok(()),
        _ => Err(format!("the compiler lacks the target {TARGET}: run `rustup target add {TARGET}`")),
    }
}

fn build(guest: &Guest, root: &Path, target: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let mut cargo = Command::new(variable("CARGO")?);
    cargo
        .args(["build", "--locked", "--package", guest.package, "--target", TARGET, "--profile", PROFILE])
        .arg("--target-dir")
        .arg(target)
        .current_dir(root);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_the_outer_build) {
            cargo.env_remove(name);
        }
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("{} does not build for {TARGET}: {status}", guest.package).into());
    }
    let file = format!("{}.wasm", guest.package.replace('-', "_"));
    let component = target.join(TARGET).join(PROFILE).join(file);
    if !component.is_file() {
        return Err(format!("cargo has not written {}", component.display()).into());
    }
    Ok(component)
}

/// What the outer cargo, clippy or a coverage tool says of the host's compilation; a guest must hear none of it.
fn is_of_the_outer_build(name: &str) -> bool {
    const KEPT: [&str; 2] = ["CARGO_HOME", "CARGO_NET_OFFLINE"];
    let prefixes = ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "CLIPPY", "LLVM_PROFILE", "DEP_"];
    let cargo_input = ["OUT_DIR", "TARGET", "HOST", "NUM_JOBS", "OPT_LEVEL", "PROFILE", "DEBUG"];
    let of_registry =
        name.starts_with("CARGO_REGISTR") || name.starts_with("CARGO_HTTP") || name.starts_with("CARGO_NET");
    !KEPT.contains(&name)
        && !of_registry
        && (prefixes.iter().any(|prefix| name.starts_with(prefix)) || cargo_input.contains(&name))
}
