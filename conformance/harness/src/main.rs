//! The program of `make conformance`, which runs the conformance suites on a real Kubernetes, and of
//! `make bench-peers` and `make bench-report`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    cofferdam_conformance::cli::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "conformance: expected Linux, whose namespaces a run lives in");
    ExitCode::FAILURE
}
