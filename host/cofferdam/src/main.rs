//! Cofferdam: Kubernetes persistent storage from one binary.
#![forbid(unsafe_code)]

#[cfg(test)]
mod chart_tests;
mod cli;
mod client;
mod commands;
mod config;
mod core_dumps;
mod drivers;
mod error;
mod host_name;
mod leader_election;
mod logging;
mod other_controller;
mod process_metrics;
mod reload;
mod rights;
mod roles;
mod secret;
mod sidecar;
mod signals;
mod snapshot_kinds;
mod storage_capacity;
mod style;
mod supervisor;
mod table;
mod telemetry;
mod wait;

use std::{
    collections::HashMap,
    ffi::OsString,
    io::{self, Write as _},
    num::NonZeroUsize,
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser as _};
use clap_complete::Shell;
use cli::{Cli, Command};
use commands::{backend, dev, orphans, pre_stop, render, run, status};
use config::ResolvedConfig;
use error::CommandError;
use sidecar::{Sidecar, SidecarCommand};
use signals::ProcessOutcome;
use style::TerminalText;
use tokio::runtime::Runtime;

/// The allocator of the program. jemalloc returns freed memory to the system after a burst of objects;
/// glibc's allocator does not (docs/performance.md, "Memory"). `.cargo/config.toml` holds jemalloc's
/// settings.
#[cfg(all(feature = "jemalloc", target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static GLOBAL_ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Number of worker threads of the tokio runtime. The roles mostly wait for the API and for drivers.
/// Components run on other threads, and CSI drivers in other processes.
const WORKER_THREADS: usize = 2;
/// Exit code if a second SIGTERM or SIGINT ends the program: the code with which a shell reports a process
/// that SIGINT ended.
const EXIT_CODE_SIGINT: u8 = 130;

fn main() -> ExitCode {
    // Settings are UTF-8: a variable that is not UTF-8 is not a setting.
    let environment: HashMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    if let Err(error) = core_dumps::disable() {
        let _ = writeln!(io::stderr(), "a core dump of this process may contain Secrets: {error}");
    }
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let sidecar = Sidecar::from_program(&program);
    let result = match sidecar {
        Some(sidecar) => run_sidecar(sidecar, arguments, &environment),
        None => run_command(Cli::parse().command, &environment),
    };
    match result {
        Ok(ProcessOutcome::Drained) => ExitCode::SUCCESS,
        Ok(ProcessOutcome::Failed) => ExitCode::FAILURE,
        Ok(ProcessOutcome::Forced) => ExitCode::from(EXIT_CODE_SIGINT),
        Err(failure) => {
            let line = client::one_line(&failure);
            let program = sidecar.map_or("cofferdam", Sidecar::program);
            // If stderr is closed, the error cannot be reported.
            let _ = writeln!(io::stderr(), "{program}: {line}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run_command(
    command: Command,
    environment: &HashMap<String, String>,
) -> Result<ProcessOutcome, CommandError> {
    match command {
        Command::Run(flags) => block_on(WORKER_THREADS, run::run(&flags, environment)),
        Command::Dev(flags) => block_on(WORKER_THREADS, dev::run(&flags, environment)),
        Command::Status(flags) => run_and_print(status::run(flags, environment)),
        Command::Orphans(flags) => run_and_print(orphans::run(flags, environment)),
        Command::Backend(command) => run_and_print(backend::run(command, environment)),
        Command::Render(command) => print(&TerminalText::from_lines(&render::render(&command)?)),
        Command::PreStop(flags) => run_and_print(pre_stop::run(flags, environment)),
        Command::Config(flags) => print(&ResolvedConfig::for_cluster(&flags.values, environment)?.to_table()),
        Command::Completions { shell } => print(&TerminalText::from_lines(&completions(shell))),
        Command::Version => print(&TerminalText::from_lines(&version())),
    }
}

/// Runs the role that replaces a sidecar, with the sidecar's command line.
fn run_sidecar(
    sidecar: Sidecar,
    arguments: impl Iterator<Item = OsString>,
    environment: &HashMap<String, String>,
) -> Result<ProcessOutcome, CommandError> {
    let command = sidecar::parse(sidecar, arguments, environment);
    match command.map_err(|error| CommandError::Usage(Box::new(error)))? {
        SidecarCommand::Run(sidecar_run) => {
            block_on(worker_threads(&sidecar_run), run::run_sidecar(&sidecar_run, environment))
        }
        SidecarCommand::Version => {
            let version = format!("{} {}\n", sidecar.program(), env!("CARGO_PKG_VERSION"));
            print(&TerminalText::from_lines(&version))
        }
        SidecarCommand::Help => print(&TerminalText::from_lines(&sidecar::help(sidecar))),
        SidecarCommand::Exit => Ok(ProcessOutcome::Drained),
    }
}

/// Number of worker threads with the command line of a sidecar. The standard library's parallelism is within
/// the CPU quota of the control group.
fn worker_threads(sidecar_run: &sidecar::SidecarRun) -> usize {
    let quota = std::thread::available_parallelism().map_or(WORKER_THREADS, NonZeroUsize::get);
    if sidecar_run.limits_threads { WORKER_THREADS.min(quota) } else { WORKER_THREADS }
}

/// Runs a command and prints its text. A command that returns `false` ends with exit code 1.
fn run_and_print(
    command: impl Future<Output = Result<(TerminalText, bool), CommandError>>,
) -> Result<ProcessOutcome, CommandError> {
    let mut has_succeeded = true;
    block_on(WORKER_THREADS, async {
        let (text, success) = command.await?;
        has_succeeded = success;
        print(&text)
    })?;
    if has_succeeded { Ok(ProcessOutcome::Drained) } else { Ok(ProcessOutcome::Failed) }
}

/// The script with the completions of the command line.
fn completions(shell: Shell) -> String {
    let (mut command, mut script) = (Cli::command(), Vec::new());
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

fn version() -> String {
    format!(
        "cofferdam {} ({} {})\ncontract cofferdam:storage@0.1.0\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
    )
}

fn block_on(
    worker_threads: usize,
    command: impl Future<Output = Result<ProcessOutcome, CommandError>>,
) -> Result<ProcessOutcome, CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(worker_threads)
        .thread_name("cofferdam")
        .enable_all()
        .build()
        .map_err(CommandError::Runtime)?;
    // Shut down without waiting: tasks that still run must not delay the exit after a second signal or a
    // panic.
    let runtime = scopeguard::guard(runtime, Runtime::shutdown_background);
    runtime.block_on(command)
}

/// Prints to stdout. A closed pipe, such as that of `head`, is no error.
fn print(text: &TerminalText) -> Result<ProcessOutcome, CommandError> {
    match io::stdout().write_all(text.as_str().as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CommandError::Output(error)),
        Ok(()) | Err(_) => Ok(ProcessOutcome::Drained),
    }
}
