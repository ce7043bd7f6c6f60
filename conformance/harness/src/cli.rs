//! The command line: runs suites on a real Kubernetes, each in namespaces of its own.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{self, ExitCode},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    launcher::{self, SuiteOutcome},
    leftovers, namespace_init,
    peers::PeerPrograms,
    print_status,
    results::SuiteResults,
    run::{self, SuiteRun},
    suites::{self, Suite},
};

/// Shows on a real Kubernetes what Cofferdam claims. The programs come from `make peers`.
#[derive(Parser)]
#[command(name = "conformance", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<InternalCommand>,
    /// Suites to run; none: all
    suites: Vec<String>,
    /// List the suites and run none
    #[arg(long)]
    list: bool,
    /// Document whose table of results is written anew; for a run of all suites
    #[arg(long, conflicts_with = "suites")]
    results: Option<PathBuf>,
}

/// What this program starts itself as.
#[derive(Subcommand)]
enum InternalCommand {
    /// Process 1 of a run's namespaces
    #[command(hide = true)]
    Init(SuiteArgs),
    /// The suite in them
    #[command(hide = true)]
    Suite(SuiteArgs),
}

#[derive(clap::Args)]
struct SuiteArgs {
    suite: String,
    #[arg(long)]
    scratch: PathBuf,
    #[arg(long)]
    directory: PathBuf,
    #[arg(long)]
    peers: PathBuf,
}

/// Does what the command line says.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        None => run_command(&cli),
        Some(InternalCommand::Init(args)) => init(args).map(ExitCode::from),
        Some(InternalCommand::Suite(args)) => run_suite(args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        print_status(format_args!("conformance: {error:#}"));
        ExitCode::FAILURE
    })
}

fn run_command(cli: &Cli) -> Result<ExitCode> {
    if cli.list {
        for suite in suites::SUITES.iter().chain(suites::BENCHMARKS) {
            writeln!(io::stdout(), "{:<16} {}", suite.name, suite.description)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut selected = Vec::new();
    for name in &cli.suites {
        selected.push(suites::find(name)?);
    }
    if selected.is_empty() {
        selected.extend(suites::SUITES);
    }
    let base = std::env::temp_dir().join("cofferdam-conformance").join(process::id().to_string());
    launcher::check_requirements(&base)?;
    runtime()?.block_on(run_suites(&selected, &base, cli.results.as_deref()))
}

async fn run_suites(selected: &[&Suite], base: &Path, document: Option<&Path>) -> Result<ExitCode> {
    let peers = PeerPrograms::find()?;
    for leftover in leftovers::remove_stale()? {
        print_status(format_args!("removed {}, which an earlier run has left", leftover.display()));
    }
    let mut results = SuiteResults::default();
    for suite in selected {
        print_status(format_args!("suite {} ... {}", suite.name, suite.description));
        let started = Instant::now();
        let directory = base.join(suite.name);
        let outcome = launcher::run(suite.name, &directory, &peers, suite.limit).await;
        let seconds = started.elapsed().as_secs_f64();
        let failed = match outcome {
            Ok(SuiteOutcome::Passed) => None,
            Ok(SuiteOutcome::Failed) => Some(format!("FAILED: {}", failure_reason(&directory))),
            Ok(SuiteOutcome::TimedOut) => Some(format!("FAILED: it did not end within {:?}", suite.limit)),
            Ok(SuiteOutcome::Interrupted) => {
                bail!("suite {} was interrupted, logs in {}", suite.name, directory.display())
            }
            Err(error) => Some(format!("FAILED: {error:#}")),
        };
        let result = failed.as_deref().unwrap_or("ok");
        print_status(format_args!(
            "suite {} ... {result} ({seconds:.1} s), logs in {}",
            suite.name,
            directory.display()
        ));
        results.add(suite.name, failed, seconds, &directory)?;
    }
    if let Some(document) = document {
        results.write(document, &jiff::Timestamp::now().strftime("%Y-%m-%d").to_string())?;
    }
    let (passed, failed) = results.totals();
    // Once more: what a suite said when it failed stands an hour further up.
    for (suite, reason) in results.failures() {
        print_status(format_args!("suite {suite} {reason}, logs in {}", base.join(suite).display()));
    }
    print_status(format_args!("conformance: {passed} passed, {failed} failed"));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn init(args: &SuiteArgs) -> Result<u8> {
    let mut worker = process::Command::new(std::env::current_exe()?);
    worker
        .args(["suite", &args.suite, "--scratch"])
        .arg(&args.scratch)
        .arg("--directory")
        .arg(&args.directory)
        .arg("--peers")
        .arg(&args.peers)
        .stdin(process::Stdio::null());
    namespace_init::init(&args.scratch, &mut worker)
}

fn run_suite(args: &SuiteArgs) -> Result<()> {
    let suite = suites::find(&args.suite)?;
    let run = SuiteRun::new(
        args.directory.clone(),
        args.scratch.clone(),
        PeerPrograms::in_directory(args.peers.clone()),
    )?;
    let result = runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            result = (suite.run)(&run) => result,
            _ = terminate.recv() => bail!("told to end"),
            _ = interrupt.recv() => bail!("interrupted"),
        }
    });
    if let Err(error) = &result {
        fs::write(run::failure_file(&args.directory), format!("{error:#}"))?;
    }
    result
}

/// What the suite that ran here said when it failed.
fn failure_reason(directory: &Path) -> String {
    fs::read_to_string(run::failure_file(directory)).unwrap_or_else(|_| "it ended without a word".to_owned())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")
}
