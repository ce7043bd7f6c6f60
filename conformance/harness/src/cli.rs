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
    inside, leftovers,
    outside::{self, Outcome},
    peers::Peers,
    results::Results,
    run::{self, Run},
    say,
    suites::{self, Suite},
};

/// Shows on a real Kubernetes what Cofferdam claims. The programs come from `make peers`.
#[derive(Parser)]
#[command(name = "conformance", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    side: Option<Side>,
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
enum Side {
    /// Process 1 of a run's namespaces
    #[command(hide = true)]
    Inside(Inside),
    /// The suite in them
    #[command(hide = true)]
    Suite(Inside),
}

#[derive(clap::Args)]
struct Inside {
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
    let done = match &cli.side {
        None => all(&cli),
        Some(Side::Inside(inside)) => init(inside).map(ExitCode::from),
        Some(Side::Suite(inside)) => suite(inside).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        say(format_args!("conformance: {error:#}"));
        ExitCode::FAILURE
    })
}

fn all(cli: &Cli) -> Result<ExitCode> {
    if cli.list {
        for suite in suites::ALL.iter().chain(suites::BENCHES) {
            writeln!(io::stdout(), "{:<16} {}", suite.name, suite.about)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut chosen = Vec::new();
    for name in &cli.suites {
        chosen.push(suites::named(name)?);
    }
    if chosen.is_empty() {
        chosen.extend(suites::ALL);
    }
    let base = std::env::temp_dir().join("cofferdam-conformance").join(process::id().to_string());
    outside::requirements(&base)?;
    runtime()?.block_on(run_all(&chosen, &base, cli.results.as_deref()))
}

async fn run_all(chosen: &[&Suite], base: &Path, document: Option<&Path>) -> Result<ExitCode> {
    let peers = Peers::find()?;
    for thing in leftovers::remove_stale()? {
        say(format_args!("removed {}, which an earlier run has left", thing.display()));
    }
    let mut results = Results::default();
    for suite in chosen {
        say(format_args!("suite {} ... {}", suite.name, suite.about));
        let started = Instant::now();
        let directory = base.join(suite.name);
        let outcome = outside::run(suite.name, &directory, &peers, suite.limit).await;
        let taken = started.elapsed().as_secs_f64();
        let failed = match outcome {
            Ok(Outcome::Passed) => None,
            Ok(Outcome::Failed) => Some(format!("FAILED: {}", why(&directory))),
            Ok(Outcome::TimedOut) => Some(format!("FAILED: it did not end within {:?}", suite.limit)),
            Ok(Outcome::Interrupted) => {
                bail!("suite {} was interrupted, logs in {}", suite.name, directory.display())
            }
            Err(error) => Some(format!("FAILED: {error:#}")),
        };
        let ended = failed.as_deref().unwrap_or("ok");
        say(format_args!("suite {} ... {ended} ({taken:.1} s), logs in {}", suite.name, directory.display()));
        results.add(suite.name, failed, taken, &directory)?;
    }
    if let Some(document) = document {
        results.write(document, &jiff::Timestamp::now().strftime("%Y-%m-%d").to_string())?;
    }
    let (passed, failed) = results.count();
    // Once more: what a suite said when it failed stands an hour further up.
    for (suite, why) in results.failed() {
        say(format_args!("suite {suite} {why}, logs in {}", base.join(suite).display()));
    }
    say(format_args!("conformance: {passed} passed, {failed} failed"));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn init(inside: &Inside) -> Result<u8> {
    let mut worker = process::Command::new(std::env::current_exe()?);
    worker
        .args(["suite", &inside.suite, "--scratch"])
        .arg(&inside.scratch)
        .arg("--directory")
        .arg(&inside.directory)
        .arg("--peers")
        .arg(&inside.peers)
        .stdin(process::Stdio::null());
    inside::init(&inside.scratch, &mut worker)
}

fn suite(inside: &Inside) -> Result<()> {
    let suite = suites::named(&inside.suite)?;
    let run = Run::new(inside.directory.clone(), inside.scratch.clone(), Peers::at(inside.peers.clone()))?;
    let done = runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            done = (suite.run)(&run) => done,
            _ = terminate.recv() => bail!("told to end"),
            _ = interrupt.recv() => bail!("interrupted"),
        }
    });
    if let Err(error) = &done {
        fs::write(run::failure(&inside.directory), format!("{error:#}"))?;
    }
    done
}

/// What the suite that ran here said when it failed.
fn why(directory: &Path) -> String {
    fs::read_to_string(run::failure(directory)).unwrap_or_else(|_| "it ended without a word".to_owned())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")
}
