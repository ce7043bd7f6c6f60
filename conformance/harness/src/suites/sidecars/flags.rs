//! The command lines of the Go sidecars, and of Cofferdam under their names: flags, defaults, feature gates
//! and invalid values.
//!
//! The environment variable `SIDECARS` is a directory with further sidecars: node-driver-registrar and
//! livenessprobe are not available as Go modules, and are compared only from there.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{process::Command, time::timeout};

use crate::{run::SuiteRun, sidecar};

/// The sidecars that `make peers` builds.
const BUILT: [&str; 5] =
    ["csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller"];
/// The sidecars in the directory `SIDECARS`.
const FURTHER: [&str; 2] = ["csi-node-driver-registrar", "livenessprobe"];
/// Programs that run at the same time.
const CONCURRENT: usize = 4;
/// A program that has not ended by then runs, and so has accepted its command line.
const MAX_PARSE_TIME: Duration = Duration::from_secs(10);

/// Values of every flag: of each type, and of none.
const VALUES: &[&str] =
    &["", "T", "0", "-1", "0x10", "99999999999999999999", "1.0", "1m0s", "-5s", "a=b", "a:1,b:2"];

/// The section "Stricter values" of `docs/sidecar-flags.md`: flags, and those of [`VALUES`] that their
/// sidecars accept and Cofferdam rejects.
const STRICTER: &[(&[&str], &[&str])] = &[
    (
        &[
            "timeout",
            "probe-timeout",
            "resize-timeout",
            "modify-timeout",
            "resync",
            "reconcile-sync",
            "resync-period",
            "retry-interval-start",
            "retry-interval-max",
            "node-deployment-base-delay",
            "node-deployment-max-delay",
            "leader-election-lease-duration",
            "leader-election-renew-deadline",
            "leader-election-retry-period",
        ],
        &["0", "-5s"],
    ),
    (&["worker-threads", "workers"], &["0", "-1"]),
    (&["volume-name-uuid-length", "snapshot-name-uuid-length"], &["0"]),
    (&["max-entries"], &["-1"]),
    (&["automaxprocs"], &[""]),
    (&["log-text-info-buffer-size", "log-json-info-buffer-size"], &["T"]),
];

/// The values that the same section has, each as flag and value. Those of a flag that no sidecar has are left
/// out.
fn stricter_values(flags: &BTreeSet<String>) -> BTreeSet<(String, String)> {
    let rows = STRICTER.iter().flat_map(|(names, values)| names.iter().map(move |name| (*name, *values)));
    let known = rows.filter(|(name, _)| flags.contains(*name));
    known
        .flat_map(|(name, values)| values.iter().map(|value| (name.to_owned(), (*value).to_owned())))
        .collect()
}

/// Feature gates that Cofferdam has. All are on by default, as every stable gate is, which the help of a
/// sidecar does not show.
const GATES: [&str; 4] =
    ["Topology", "VolumeAttributesClass", "MutableCSINodeAllocatableCount", "AnnotateFsResize"];

/// Reports if the same section has the gate, which its sidecar accepts and Cofferdam does not.
fn is_rejected_gate(flag: &str, value: &str) -> bool {
    flag == "feature-gates" && (value.starts_with("AllAlpha=") || value.starts_with("AllBeta="))
}

/// Reports if the same section has the value as one that the sidecar rejects and Cofferdam accepts: flags
/// without effect, whose values are only parsed.
fn is_documented_as_laxer(flag: &str) -> bool {
    flag.starts_with("log-")
}

pub(in crate::suites) async fn run(run: &SuiteRun) -> Result<()> {
    let mut differences = Vec::new();
    let mut compared = Comparison::default();
    for sidecar in sidecars(run)? {
        let found = sidecar.differences(run, &mut compared).await.with_context(|| sidecar.name.to_owned())?;
        differences.extend(found.into_iter().map(|difference| format!("{}: {difference}", sidecar.name)));
    }
    let documented = stricter_values(&compared.flags);
    let stale = documented.difference(&compared.stricter);
    differences.extend(stale.map(|(flag, value)| {
        format!("--{flag}={value}: documented as stricter, but both accept it, or both reject it")
    }));
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}

/// The results of all comparisons together.
#[derive(Default)]
struct Comparison {
    /// Names of the flags.
    flags: BTreeSet<String>,
    /// Documented flags and values that a sidecar accepts and Cofferdam rejects.
    stricter: BTreeSet<(String, String)>,
}

/// A sidecar and the two programs of its name.
struct Sidecar {
    name: &'static str,
    upstream: PathBuf,
    cofferdam: PathBuf,
}

fn sidecars(run: &SuiteRun) -> Result<Vec<Sidecar>> {
    let mut programs = Vec::new();
    for name in BUILT {
        programs.push((name, run.peers().program(name)?));
    }
    if let Some(directory) = env::var_os("SIDECARS").map(PathBuf::from) {
        for name in FURTHER {
            let program = directory.join(name);
            ensure!(program.is_file(), "SIDECARS: expected the program {}", program.display());
            programs.push((name, program));
        }
    }
    programs
        .into_iter()
        .map(|(name, upstream)| {
            Ok(Sidecar { name, upstream, cofferdam: sidecar::cofferdam_program(run, name)? })
        })
        .collect()
}

impl Sidecar {
    /// The differences of flags, defaults, and accepted values.
    async fn differences(&self, run: &SuiteRun, comparison: &mut Comparison) -> Result<Vec<String>> {
        let upstream = UpstreamHelp::parse(&output(&self.upstream, &["--help"]).await?);
        let cofferdam = cofferdam_defaults(&output(&self.cofferdam, &["--help"]).await?);
        let mut differences = Vec::new();
        for (flag, expected) in &upstream.defaults {
            match cofferdam.get(flag) {
                None => differences.push(format!("--{flag}: Cofferdam lacks it")),
                Some(found) if normalize(found) != normalize(expected) => {
                    differences.push(format!("--{flag}: default {expected:?}, in Cofferdam {found:?}"));
                }
                Some(_) => {}
            }
        }
        ensure!(!upstream.defaults.is_empty(), "the help has no flags");
        let off = upstream.gates.iter().filter(|(name, is_on)| GATES.contains(&name.as_str()) && !**is_on);
        differences.extend(off.map(|(gate, _)| format!("feature gate {gate}: off by default")));
        comparison.flags.extend(upstream.defaults.keys().cloned());
        let documented = stricter_values(&comparison.flags);
        let values = upstream.defaults.keys().flat_map(|flag| {
            let values = VALUES.iter().map(|value| (*value).to_owned());
            values.map(move |value| (flag.as_str(), value))
        });
        let gates = upstream
            .gates
            .keys()
            .flat_map(|gate| ["true", "false"].map(|value| ("feature-gates", format!("{gate}={value}"))));
        let given: Vec<_> = values.chain(gates).collect();
        let accepted: Vec<(bool, bool)> = stream::iter(&given)
            .map(|(flag, value)| self.accepts(flag, value))
            .buffered(CONCURRENT)
            .try_collect()
            .await?;
        // A text: whether it is valid shows after the start.
        let is_text = |flag: &str| {
            let mut values = given.iter().zip(&accepted).filter(|((other, _), _)| *other == flag);
            values.all(|(_, (upstream, _))| *upstream)
        };
        let mut compared = 0;
        for ((flag, value), (upstream, cofferdam)) in given.iter().zip(&accepted) {
            if is_text(flag) {
                continue;
            }
            compared += 1;
            let is_documented = match (upstream, cofferdam) {
                (true, false) => {
                    let pair = ((*flag).to_owned(), value.clone());
                    let is_documented = documented.contains(&pair);
                    comparison.stricter.extend(is_documented.then_some(pair));
                    is_documented || is_rejected_gate(flag, value)
                }
                (false, true) => is_documented_as_laxer(flag),
                _ => true,
            };
            if !is_documented {
                let verb = if *upstream { "rejects" } else { "accepts" };
                differences.push(format!("--{flag}={value}: Cofferdam {verb} it, and the sidecar does not"));
            }
        }
        run.add_note(&format!(
            "{}: {} flags, {} feature gates, {compared} values",
            self.name,
            upstream.defaults.len(),
            upstream.gates.len()
        ))?;
        Ok(differences)
    }

    /// Reports if the sidecar and Cofferdam accept the value of a flag.
    async fn accepts(&self, flag: &str, value: &str) -> Result<(bool, bool)> {
        // Both end the program after the command line is parsed.
        if matches!(flag, "version" | "help") {
            return Ok((true, true));
        }
        let given = format!("--{flag}={value}");
        let last = if self.name == "livenessprobe" { "--help" } else { "--version" };
        let upstream = exit_code(&self.upstream, &[&given, last]).await?;
        // A valid command line ends the program too, with another exit code than 2.
        let mut arguments = match self.name {
            "csi-node-driver-registrar" => {
                vec!["--kubelet-registration-path=/s", "--mode=kubelet-registration-probe"]
            }
            // No interface has this address.
            "livenessprobe" => vec!["--metrics-address=192.0.2.1:1"],
            // A directory is no kubeconfig.
            _ => vec!["--kubeconfig=/"],
        };
        arguments.push(&given);
        let cofferdam = exit_code(&self.cofferdam, &arguments).await?;
        let is_accepted = match cofferdam {
            Some(2) => false,
            Some(0 | 1) | None => true,
            Some(code) => bail!("{given}: Cofferdam ended with exit code {code}"),
        };
        Ok((upstream == Some(0), is_accepted))
    }
}

fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("NODE_NAME", "node").stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// The output of a program that ends.
async fn output(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = command(program, arguments).output().await?;
    let (stdout, stderr) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    Ok(stdout + &stderr)
}

/// The exit code; `None` if the program runs.
///
/// # Errors
/// If the program cannot be started, or a signal ended it.
async fn exit_code(program: &Path, arguments: &[&str]) -> Result<Option<i32>> {
    let mut command = command(program, arguments);
    match timeout(MAX_PARSE_TIME, command.output()).await {
        Ok(output) => {
            let status = output.with_context(|| format!("cannot run {}", program.display()))?.status;
            let text = || format!("{} {}: {status}", program.display(), arguments.join(" "));
            Ok(Some(status.code().with_context(text)?))
        }
        Err(_) => Ok(None),
    }
}

/// The flags in the help of a Go program, by the packages `flag` and `pflag`.
#[derive(Debug, Default)]
struct UpstreamHelp {
    /// The default of each flag; empty without one.
    defaults: BTreeMap<String, String>,
    /// Default of each feature gate.
    gates: BTreeMap<String, bool>,
}

impl UpstreamHelp {
    fn parse(help: &str) -> Self {
        let mut flags: Vec<(String, String)> = Vec::new();
        for line in help.lines() {
            match flag_name(line) {
                Some(name) => flags.push((name.to_owned(), line.to_owned())),
                None => {
                    if let Some((_, text)) = flags.last_mut() {
                        text.push('\n');
                        text.push_str(line);
                    }
                }
            }
        }
        // `NAME=true|false (BETA - default=true)`
        let gate_of = |line: &str| {
            let (name, text) = line.split_once("=true|false (")?;
            let (_, default) = text.split_once("default=")?;
            Some((name.rsplit([' ', '\t']).next()?.to_owned(), default.starts_with("true")))
        };
        let gates = help.lines().filter_map(gate_of).collect();
        let default_of = |text: &str| {
            let (_, default) = text.rsplit_once("(default ")?;
            Some(default.trim_end().strip_suffix(')')?.trim_matches('"').to_owned())
        };
        let defaults =
            flags.into_iter().map(|(name, text)| (name, default_of(&text).unwrap_or_default())).collect();
        Self { defaults, gates }
    }
}

/// The name of the flag that a line of a Go program's help begins: `  -name type`, `      --name type` or
/// `  -n, --name type`.
fn flag_name(line: &str) -> Option<&str> {
    let indented = line.strip_prefix("      ").or_else(|| line.strip_prefix("  "))?;
    let flag = indented.strip_prefix('-')?;
    let flag = flag.split_once(", --").filter(|(short, _)| short.len() == 1).map_or(flag, |(_, long)| long);
    flag.strip_prefix('-').unwrap_or(flag).split([' ', '\t']).next()
}

/// The default of each flag in Cofferdam's help, whose lines are `  --name [default: value]`.
fn cofferdam_defaults(help: &str) -> BTreeMap<String, String> {
    let default_of = |line: &str| {
        let (name, default) = line.strip_prefix("  --")?.split_once(" [default: ")?;
        Some((name.to_owned(), default.strip_suffix(']')?.to_owned()))
    };
    help.lines().filter_map(default_of).collect()
}

/// Makes the defaults of the two helps comparable. Go's help does not show `false`, `0` and the empty text,
/// and it shows the zero parts of a duration.
fn normalize(default: &str) -> &str {
    match default {
        "none" | "false" | "0" | "map[]" => "",
        "60s" => "1m",
        _ => default.strip_suffix("m0s").map_or(default, |minutes| &default[..=minutes.len()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helps_of_both_go_packages_are_parsed() {
        let flag = "Usage of x:\n  -feature-gates value\n    \tOptions are:\n    \tA=true|false (BETA - default=true)\n  \
                    -resync duration\n    \tResync interval. (default 10m0s)\n  -version\n    \tShow version.\n";
        let pflag = "      --feature-gates mapStringBool   Options are:\n          \
                     A=true|false (BETA - default=true)\n      --metrics-path /metrics   The path. (default \"/metrics\")\n  \
                     -v, --v Level   number (default 0)\n";
        let parsed = UpstreamHelp::parse(flag);
        assert_eq!(
            format!("{parsed:?}"),
            "UpstreamHelp { defaults: {\"feature-gates\": \"\", \"resync\": \"10m0s\", \"version\": \"\"}, gates: {\"A\": true} }"
        );
        let parsed = UpstreamHelp::parse(pflag);
        assert_eq!(
            format!("{parsed:?}"),
            "UpstreamHelp { defaults: {\"feature-gates\": \"\", \"metrics-path\": \"/metrics\", \"v\": \"0\"}, gates: {\"A\": true} }"
        );
    }

    #[test]
    fn defaults_are_comparable() {
        for (upstream, cofferdam) in
            [("1m0s", "60s"), ("10m0s", "10m"), ("", "false"), ("map[]", "none"), ("0", "0"), ("5s", "5s")]
        {
            assert_eq!(normalize(upstream), normalize(cofferdam));
        }
        assert_ne!(normalize("10s"), normalize("15s"));
    }
}
