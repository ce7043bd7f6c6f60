//! `cofferdam backend test`: the conformance suite over a component.

use std::{
    collections::HashMap,
    io::{self, IsTerminal as _},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cofferdam_domain::{
    NodeId,
    storage::{AccessType, VolumeCapability},
};
use cofferdam_suite::{Options, cases};

use super::{
    VendorError,
    arguments::once,
    component::Component,
    csi,
    flags::{ReportFormat, TestFlags},
};
use crate::{config::GoDuration, failure::Failure};

/// Seeds are numbers that people type again.
const SEEDS: u64 = 1_000_000;
/// Less than a block has no storage.
const SMALLEST: u64 = 4_096;

/// Tries the rules; the text is the report card, and the boolean whether none is broken.
///
/// # Errors
/// [`Failure`], when the component was not tried.
pub(crate) async fn test(
    flags: TestFlags,
    environment: &HashMap<String, String>,
) -> Result<(String, bool), Failure> {
    if csi::is_socket(&flags.component.file) {
        let problem = "backend test is for components: csi-sanity of csi-test is the suite for CSI drivers";
        return Err(VendorError::Argument(problem.to_owned()).into());
    }
    let component = Component::open(&flags.component, environment)?;
    let output = flags.output;
    let options = options(flags, &component)?;
    if let Some(pattern) = options.only.iter().find(|only| !means_something(only)) {
        return Err(VendorError::Argument(format!(
            "--only {pattern:?}: no case is called so; docs/backend-test.md lists them"
        ))
        .into());
    }
    let report = cofferdam_suite::run(&component.engine, component.source, options).await;
    let report = report.map_err(|source| Failure::Component { name: component.name, source })?;
    let text = match output {
        ReportFormat::Text => report.to_text(io::stdout().is_terminal()),
        ReportFormat::Json => format!("{:#}\n", report.to_json()),
        ReportFormat::Junit => report.to_junit(),
    };
    Ok((text, report.passed()))
}

fn means_something(pattern: &str) -> bool {
    let options = Options { only: vec![pattern.to_owned()], ..Options::default() };
    cases().any(|case| options.wants(case.id))
}

fn options(flags: TestFlags, component: &Component) -> Result<Options, VendorError> {
    let base = Options::default();
    if flags.size < SMALLEST {
        let size = flags.size;
        return Err(VendorError::Argument(format!(
            "--size: {size}; expected at least {SMALLEST}, of which cases ask for parts"
        )));
    }
    let access = if flags.block {
        AccessType::Block
    } else {
        AccessType::Filesystem { fs_type: None, mount_flags: Vec::new(), mount_group: None }
    };
    let nodes = match flags.nodes.as_slice() {
        [] => base.nodes.clone(),
        [first, second] if first != second => [first.as_str(), second.as_str()].map(NodeId::new),
        given => {
            let given = given.len();
            return Err(VendorError::Argument(format!(
                "--node: {given} given; expected two that differ, or none"
            )));
        }
    };
    Ok(Options {
        config: component.config.clone(),
        secrets: component.secrets.clone(),
        parameters: once("--parameter", flags.parameters)?,
        mutable_parameters: once("--mutable-parameter", flags.mutable_parameters)?,
        snapshot_parameters: once("--snapshot-parameter", flags.snapshot_parameters)?,
        capability: VolumeCapability { access_mode: flags.access_mode.into(), access_type: access },
        topology: flags.topology.map(|place| once("--topology", place.0)).transpose()?,
        nodes,
        size: flags.size,
        seed: flags.seed.unwrap_or_else(new_seed),
        command: command(std::env::args()),
        only: flags.only,
        deadline: duration("--timeout", &flags.timeout)?,
        patience: duration("--patience", &flags.patience)?,
        ..base
    })
}

/// A command line without what chooses cases, the seed and the form of the output.
fn command(arguments: impl Iterator<Item = String>) -> String {
    const LEFT_OUT: [&str; 4] = ["--only", "--seed", "--output", "-o"];
    let mut words = vec!["cofferdam".to_owned()];
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        if LEFT_OUT.contains(&argument.as_str()) {
            arguments.next();
        } else if !LEFT_OUT.iter().any(|flag| argument.starts_with(&format!("{flag}="))) {
            words.push(quoted(&argument));
        }
    }
    words.join(" ")
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn duration(flag: &str, text: &str) -> Result<Duration, VendorError> {
    let parsed = text.parse::<GoDuration>();
    Ok(parsed.map_err(|problem| VendorError::Argument(format!("{flag}: {problem}")))?.get())
}

/// Two runs at once over the same storage should not have the same names.
fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) % SEEDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_repeated() {
        let given =
            "/bin/cofferdam backend test a.wasm --only x --secret p=$PASS --seed=4 -o json --setting a=it's";
        assert_eq!(
            command(given.split(' ').map(str::to_owned)),
            r"cofferdam backend test a.wasm --secret 'p=$PASS' --setting 'a=it'\''s'"
        );
    }
}
