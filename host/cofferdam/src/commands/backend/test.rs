//! `cofferdam backend test`: runs the conformance suite on a component.

use std::{
    collections::HashMap,
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cofferdam_domain::storage::{AccessType, VolumeCapability};
use cofferdam_suite::{CaseOutcome, Progress, RunControl, SuiteOptions, TextReport, cases, run_with_control};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{arguments::unique_pairs, component::ConfiguredComponent, csi, error::BackendCommandError};
use crate::{
    cli::backend::{ReportFormat, TestFlags},
    config::GoDuration,
    error::CommandError,
    signals::Signals,
    style::TerminalText,
};

/// Random seeds are below this number, so that users can type them to repeat a run.
const SEED_LIMIT: u64 = 1_000_000;
/// Smallest `--size`, in bytes.
const MIN_VOLUME_SIZE: u64 = 4_096;

/// Runs the suite. Prints the report as text while it runs; reports in other formats are returned, and the
/// progress of the run is printed to stderr. Returns the rest of the report, and `true` if no case failed and
/// at least one passed.
///
/// SIGINT or SIGTERM ends the run: the suite deletes what it created. A second signal ends the deletion.
///
/// # Errors
/// [`CommandError`] if the suite could not run.
pub(crate) async fn test(
    flags: TestFlags,
    environment: &HashMap<String, String>,
) -> Result<(TerminalText, bool), CommandError> {
    if csi::is_socket(&flags.component.file) {
        let problem = "backend test is for components: csi-sanity of csi-test is the suite for CSI drivers";
        return Err(BackendCommandError::Argument(problem.to_owned()).into());
    }
    let component = ConfiguredComponent::open(&flags.component, environment)?;
    let output = flags.output;
    let options = suite_options(flags, &component)?;
    if let Some(pattern) = options.only.iter().find(|filter| !has_matching_case(filter)) {
        return Err(BackendCommandError::Argument(format!(
            "--only {pattern:?}: no case matches; docs/backend-test.md lists them"
        ))
        .into());
    }
    let text_report = Mutex::new(TextReport::new(io::stdout().is_terminal()));
    let observer = |progress: Progress<'_>| match output {
        ReportFormat::Text => print_text(&mut text_report.lock(), progress),
        ReportFormat::Json | ReportFormat::Junit => print_progress(progress),
    };
    let control = RunControl { observer: &observer, interrupts: interrupts()? };
    let report = run_with_control(&component.engine, component.source, options, control).await;
    let report =
        report.map_err(|source| CommandError::Component { name: component.name, source: source.into() })?;
    let text = match output {
        ReportFormat::Text => {
            let mut text_report = text_report.lock();
            text_report.finish(&report);
            TerminalText::from_coloured_lines(&text_report.take())
        }
        ReportFormat::Json => TerminalText::from_json(&report.to_json()),
        ReportFormat::Junit => TerminalText::from_lines(&report.to_junit()),
    };
    Ok((text, report.is_passed()))
}

/// The signals that interrupt the run.
fn interrupts() -> Result<mpsc::Receiver<()>, CommandError> {
    let mut signals = Signals::install()?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            signals.next().await;
            if sender.send(()).await.is_err() {
                break;
            }
        }
    });
    Ok(receiver)
}

/// Prints the next part of the report to stdout, and what is not part of it to stderr.
fn print_text(report: &mut TextReport, progress: Progress<'_>) {
    match progress {
        Progress::Started(started) => report.start(started),
        Progress::Loaded(loaded) => report.driver(loaded),
        Progress::CaseEnded(entry) => report.case(entry),
        Progress::CaseRunning { .. } | Progress::Interrupted => return print_progress(progress),
    }
    // A closed stdout does not end the run: its objects have to be deleted.
    let text = TerminalText::from_coloured_lines(&report.take());
    let _ = io::stdout().write_all(text.as_str().as_bytes());
}

/// Prints the progress of a run to stderr, a line each.
fn print_progress(progress: Progress<'_>) {
    let line = match progress {
        Progress::Started(report) => format!("seed {}", report.seed),
        Progress::Loaded(report) => match &report.driver {
            Some(driver) => format!("loaded {} {}", driver.name, driver.version),
            None => format!("cannot load {}", report.source),
        },
        Progress::CaseRunning { case, elapsed, call } => {
            let call = call.map_or_else(String::new, |call| format!("; last call: {call}"));
            format!("{} has run for {}s{call}", case.id, elapsed.as_secs())
        }
        Progress::CaseEnded(entry) => {
            let outcome = match &entry.outcome {
                CaseOutcome::Passed => "passed",
                CaseOutcome::Failed { .. } => "FAILED",
                CaseOutcome::Skipped(_) => "skipped",
            };
            format!("{outcome} {} ({:.1}s)", entry.case.id, entry.elapsed.as_secs_f64())
        }
        Progress::Interrupted => {
            "interrupted: the suite deletes what it created; a second signal ends it at once".to_owned()
        }
    };
    let mut text = TerminalText::default();
    text.push_line(line);
    let _ = io::stderr().write_all(text.as_str().as_bytes());
}

fn has_matching_case(pattern: &str) -> bool {
    let options = SuiteOptions { only: vec![pattern.to_owned()], ..SuiteOptions::default() };
    cases().any(|case| options.is_selected(case.id))
}

fn suite_options(
    flags: TestFlags,
    component: &ConfiguredComponent,
) -> Result<SuiteOptions, BackendCommandError> {
    let base = SuiteOptions::default();
    if flags.size < MIN_VOLUME_SIZE {
        let size = flags.size;
        return Err(BackendCommandError::Argument(format!(
            "--size: {size}; expected at least {MIN_VOLUME_SIZE}"
        )));
    }
    let access = if flags.block {
        AccessType::Block
    } else {
        AccessType::Filesystem { fs_type: None, mount_flags: Vec::new(), mount_group: None }
    };
    let nodes = match flags.nodes.as_slice() {
        [] => base.nodes.clone(),
        [first, second] if first.id != second.id => [first.clone(), second.clone()],
        names => {
            let names = names.len();
            return Err(BackendCommandError::Argument(format!(
                "--node: {names} given; expected two that differ, or none"
            )));
        }
    };
    let parameters = unique_pairs("--parameter", flags.parameters)?;
    let other_parameters = unique_pairs("--other-parameter", flags.other_parameters)?;
    if let Some((key, value)) =
        other_parameters.iter().find(|(key, value)| parameters.get(*key) == Some(value))
    {
        return Err(BackendCommandError::Argument(format!(
            "--other-parameter {key}={value:?}: expected another value than that of --parameter"
        )));
    }
    Ok(SuiteOptions {
        config: component.config.clone(),
        secrets: component.secrets.clone(),
        parameters,
        other_parameters,
        mutable_parameters: unique_pairs("--mutable-parameter", flags.mutable_parameters)?,
        snapshot_parameters: unique_pairs("--snapshot-parameter", flags.snapshot_parameters)?,
        capability: VolumeCapability { access_mode: flags.access_mode.into(), access_type: access },
        topology: flags.topology.map(|segments| unique_pairs("--topology", segments.0)).transpose()?,
        nodes,
        size: flags.size,
        seed: flags.seed.unwrap_or_else(new_seed),
        command: repeat_command(std::env::args()),
        only: flags.only,
        deadline: parse_duration("--timeout", &flags.timeout)?,
        retry_timeout: parse_duration("--retry-timeout", &flags.retry_timeout)?,
        ..base
    })
}

/// The command line to repeat a run, without the flags for the selection of cases, the seed and the output.
fn repeat_command(arguments: impl Iterator<Item = String>) -> String {
    const LEFT_OUT: [&str; 4] = ["--only", "--seed", "--output", "-o"];
    let mut arguments_out = vec!["cofferdam".to_owned()];
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        if LEFT_OUT.contains(&argument.as_str()) {
            arguments.next();
        } else if !LEFT_OUT.iter().any(|flag| argument.starts_with(&format!("{flag}="))) {
            arguments_out.push(shell_quote(&argument));
        }
    }
    arguments_out.join(" ")
}

/// Quotes a word for a shell.
fn shell_quote(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

fn parse_duration(flag: &str, text: &str) -> Result<Duration, BackendCommandError> {
    let parsed = text.parse::<GoDuration>();
    Ok(parsed.map_err(|problem| BackendCommandError::Argument(format!("{flag}: {problem}")))?.get())
}

/// A seed from the current time: concurrent runs on the same storage need different volume names.
fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) % SEED_LIMIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repeat_command_keeps_all_but_selection_and_output() {
        let command_line =
            "/bin/cofferdam backend test a.wasm --only x --secret p=$PASS --seed=4 -o json --setting a=it's";
        assert_eq!(
            repeat_command(command_line.split(' ').map(str::to_owned)),
            r"cofferdam backend test a.wasm --secret 'p=$PASS' --setting 'a=it'\''s'"
        );
    }
}
