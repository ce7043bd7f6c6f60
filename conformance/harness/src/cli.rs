//! The command line: runs suites on a real Kubernetes, each in Linux namespaces of its own; lists them; and
//! writes the report of the benchmarks.

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
    bench,
    launcher::{self, SuiteOutcome, SuiteOutput},
    leftovers, machine, namespace_init,
    peers::PeerPrograms,
    print_status,
    results::SuiteResults,
    run::{self, SuiteRun},
    suites::{self, Suite, SuiteLane},
};

/// Runs the conformance suites of Cofferdam on a real Kubernetes. `make peers` builds the programs.
#[derive(Parser)]
#[command(name = "conformance", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<HarnessCommand>,
    /// Suites to run (default: all)
    suites: Vec<String>,
    /// List the suites and exit
    #[arg(long)]
    list: bool,
    /// Replace the results of this document: all of them, or those of the named suites
    #[arg(long)]
    results: Option<PathBuf>,
    /// Replace the row of this version of Kubernetes in the table of versions of this document
    #[arg(long, conflicts_with = "results")]
    matrix: Option<PathBuf>,
}

/// Subcommands. The hidden ones are for the program itself.
#[derive(Subcommand)]
enum HarnessCommand {
    /// Write benchmarks.md from benchmarks.json, both in a directory
    BenchReport { directory: PathBuf },
    /// Process 1 of a run's PID namespace
    #[command(hide = true)]
    Init(SuiteArgs),
    /// The suite, within the namespaces
    #[command(hide = true)]
    Suite(SuiteArgs),
    /// The agent in an emulated machine
    #[command(hide = true)]
    MachineAgent,
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
    #[arg(long)]
    first_port: u16,
}

/// Runs the command that the command line names. Prints an error to stderr, and then returns
/// [`ExitCode::FAILURE`], as it does if a suite failed.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        None => run_command(&cli),
        Some(HarnessCommand::Init(args)) => init(args).map(ExitCode::from),
        Some(HarnessCommand::BenchReport { directory }) => {
            bench::write_markdown(directory).map(|()| ExitCode::SUCCESS)
        }
        Some(HarnessCommand::Suite(args)) => run_suite(args).map(|()| ExitCode::SUCCESS),
        Some(HarnessCommand::MachineAgent) => {
            runtime().and_then(|runtime| runtime.block_on(machine::serve_agent())).map(|()| ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        print_status(format_args!("conformance: {error:#}"));
        ExitCode::FAILURE
    })
}

fn run_command(cli: &Cli) -> Result<ExitCode> {
    if cli.list {
        for suite in suites::SUITES.iter().chain(suites::ON_REQUEST) {
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
    let runs = std::env::temp_dir().join("cofferdam-conformance");
    let base = runs.join(process::id().to_string());
    launcher::check_requirements(&base)?;
    let _lock = launcher::lock(&runs)?;
    runtime()?.block_on(run_suites(&selected, &base, cli))
}

async fn run_suites(selected: &[&Suite], base: &Path, cli: &Cli) -> Result<ExitCode> {
    let peers = PeerPrograms::find()?;
    // Not asked for otherwise: `cleanup` starts a nested run that has no peers.
    let kubernetes = cli.matrix.as_ref().map(|_| peers.kubernetes_version()).transpose()?;
    for leftover in leftovers::remove_stale()? {
        print_status(format_args!("removed {}, left by an earlier run", leftover.display()));
    }
    let started = Instant::now();
    let outcomes = run_in_lanes(selected, base, &peers).await?;
    let mut results = SuiteResults::default();
    for (suite, FinishedSuite { failure, seconds }) in selected.iter().zip(outcomes) {
        results.add(suite.name, failure, seconds, &base.join(suite.name))?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    if let Some(document) = &cli.results {
        if cli.suites.is_empty() {
            results.write(document, &date, seconds)?;
        } else {
            let order: Vec<&str> = suites::SUITES.iter().map(|suite| suite.name).collect();
            results.update(document, &date, &order)?;
        }
    }
    if let (Some(document), Some(kubernetes)) = (&cli.matrix, &kubernetes) {
        results.write_version(document, kubernetes, &date)?;
    }
    let (passed, failed) = results.totals();
    // Repeated at the end: the first report may be a thousand lines above.
    for (suite, reason) in results.failures() {
        print_status(format_args!("suite {suite} {reason}, logs in {}", base.join(suite).display()));
    }
    print_status(format_args!("conformance: {passed} passed, {failed} failed in {seconds:.0} s"));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Result and duration of a suite that ended.
struct FinishedSuite {
    /// The reason of the failure, or `None` if the suite passed.
    failure: Option<String>,
    seconds: f64,
}

/// Runs suites: first those of [`SuiteLane::Exclusive`], one at a time, then the lanes of
/// [`SuiteLane::PARALLEL`] at the same time. Within a lane, suites run one after the other. Returns the
/// results in the order of `selected`.
async fn run_in_lanes(selected: &[&Suite], base: &Path, peers: &PeerPrograms) -> Result<Vec<FinishedSuite>> {
    let mut results: Vec<Option<FinishedSuite>> = selected.iter().map(|_| None).collect();
    let lane = |lane: SuiteLane| selected.iter().enumerate().filter(move |(_, suite)| suite.lane == lane);
    for (index, suite) in lane(SuiteLane::Exclusive) {
        let finished = run_one(suite, base, peers, 0, SuiteOutput::Unchanged).await?;
        if let Some(result) = results.get_mut(index) {
            *result = Some(finished);
        }
    }
    let is_parallel = SuiteLane::PARALLEL.iter().all(|parallel| lane(*parallel).next().is_some());
    let output = if is_parallel { SuiteOutput::Prefixed } else { SuiteOutput::Unchanged };
    let run_lane = async |number: u16, parallel: SuiteLane| {
        let mut finished = Vec::new();
        for (index, suite) in lane(parallel) {
            finished.push((index, run_one(suite, base, peers, number, output).await?));
        }
        anyhow::Ok(finished)
    };
    let lanes = (0..).zip(SuiteLane::PARALLEL).map(|(number, parallel)| run_lane(number, parallel));
    // Wait for every lane, also after an interrupt: a suite removes its leftovers when it ends.
    for finished in futures::future::join_all(lanes).await {
        for (index, finished) in finished? {
            if let Some(result) = results.get_mut(index) {
                *result = Some(finished);
            }
        }
    }
    Ok(results.into_iter().flatten().collect())
}

/// Runs a suite until it ends or its time limit is over, and prints and returns its result. Fails only if the
/// harness is interrupted: a failure of the suite is a result.
async fn run_one(
    suite: &Suite,
    base: &Path,
    peers: &PeerPrograms,
    lane: u16,
    output: SuiteOutput,
) -> Result<FinishedSuite> {
    print_status(format_args!("suite {} ... {}", suite.name, suite.description));
    let started = Instant::now();
    let directory = base.join(suite.name);
    let outcome = launcher::run(suite.name, &directory, peers, suite.limit, lane, output).await;
    let seconds = started.elapsed().as_secs_f64();
    let failure = match outcome {
        Ok(SuiteOutcome::Passed) => None,
        Ok(SuiteOutcome::Failed) => Some(format!("FAILED: {}", failure_reason(&directory))),
        Ok(SuiteOutcome::TimedOut) => Some(format!("FAILED: not finished within {:?}", suite.limit)),
        Ok(SuiteOutcome::Interrupted) => {
            bail!("suite {} was interrupted, logs in {}", suite.name, directory.display())
        }
        Err(error) => Some(format!("FAILED: {error:#}")),
    };
    print_status(format_args!(
        "suite {} ... {} ({seconds:.1} s), logs in {}",
        suite.name,
        failure.as_deref().unwrap_or("ok"),
        directory.display()
    ));
    Ok(FinishedSuite { failure, seconds })
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
        .arg("--first-port")
        .arg(args.first_port.to_string())
        .stdin(process::Stdio::null());
    namespace_init::init(&args.scratch, &mut worker)
}

fn run_suite(args: &SuiteArgs) -> Result<()> {
    let suite = suites::find(&args.suite)?;
    let run = SuiteRun::new(
        args.directory.clone(),
        args.scratch.clone(),
        PeerPrograms::in_directory(args.peers.clone()),
        args.first_port,
    )?;
    let result = runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            result = (suite.run)(&run) => result,
            _ = terminate.recv() => bail!("terminated"),
            _ = interrupt.recv() => bail!("interrupted"),
        }
    });
    if let Err(error) = &result {
        fs::write(run::failure_file(&args.directory), format!("{error:#}"))?;
    }
    result
}

/// The reason why a suite failed, from the file in its directory; a fixed text if there is no such file.
fn failure_reason(directory: &Path) -> String {
    fs::read_to_string(run::failure_file(directory))
        .unwrap_or_else(|_| "it ended without a reason".to_owned())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}
