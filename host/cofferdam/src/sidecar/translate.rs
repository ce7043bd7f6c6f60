//! Translates the flags of a sidecar to settings.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use super::{
    Sidecar, SidecarCommand, SidecarError, SidecarRun,
    flags::{FIXED_GATES, FlagEffect, LIBRARY_GATES},
    syntax::{GivenFlag, GivenFlags, without_value},
};
use crate::config::{CliValues, FeatureGateError, parse_gate};

/// The value of `--mode` with which node-driver-registrar exits without registering the driver.
const KUBELET_REGISTRATION_PROBE: &str = "kubelet-registration-probe";

/// Log filter of `-v` up to [`MAX_INFO_VERBOSITY`].
const INFO: &str = "info";
/// Log filter of a higher `-v`. Only this program's modules log more: libraries would log requests, which
/// contain Secrets.
const DEBUG: &str = "info,cofferdam=debug";
/// Highest `-v` with the log level info. In the sidecars, messages of level 4 are for debugging.
const MAX_INFO_VERBOSITY: u64 = 3;

impl fmt::Display for FlagEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sets(setting) => write!(f, "sets `{setting}`"),
            Self::Translated(effect) => f.write_str(effect),
            Self::Ignored(instead) => write!(f, "has no effect: {instead}"),
        }
    }
}

/// Translates the flags of a sidecar.
///
/// # Errors
/// [`SidecarError`], one line.
pub(super) fn translate(
    sidecar: Sidecar,
    given: &GivenFlags,
    environment: &HashMap<String, String>,
) -> Result<SidecarCommand, SidecarError> {
    let last = LastValues::new(&given.flags);
    let log_format = last.log_format()?;
    if last.is_true("version") {
        return Ok(SidecarCommand::Version);
    }
    last.check(sidecar)?;
    if sidecar == Sidecar::Registrar && last.get("mode") == Some(KUBELET_REGISTRATION_PROBE) {
        return Ok(SidecarCommand::Exit);
    }
    let mut values = CliValues::default().with("role", [sidecar.role().to_owned()]);
    for given in last.0.values() {
        if let FlagEffect::Sets(setting) = given.flag.effect
            // An empty text is the sidecar's default, which is that of the setting.
            && !(given.value.is_empty() && given.flag.default.is_empty())
        {
            values = values.with_flag(given.flag.name, setting, [given.value.clone()]);
        }
    }
    let mut warnings = ignored_flags(&last);
    // A further argument may be the value of a flag, and a secret.
    if let Some((first, more)) = given.ignored.split_first() {
        let first = without_value(first);
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        warnings.push(format!("{first}{more}: the sidecar ignores these arguments, too"));
    }
    if let Some(filter) = log_filter(&last) {
        values = values.with("log", [filter.to_owned()]);
    }
    if let Some(format) = log_format {
        values = values.with("log-format", [format.to_owned()]);
    }
    let texts = given.flags.iter().filter(|given| given.flag.name == "feature-gates");
    let gates = feature_gates(sidecar, texts.map(|given| given.value.as_str()), &mut warnings)?;
    if !gates.is_empty() {
        values = values.with("feature-gates", gates);
    }
    if let Some(kind) = last.get("leader-election-type").filter(|kind| *kind != "leases") {
        return Err(SidecarError::LeaderElectionType(kind.to_owned()));
    }
    if let Some(port) = last.get("health-port").filter(|port| sidecar == Sidecar::Registrar && *port != "0") {
        values = values.with_flag("health-port", "http-endpoint", [format!(":{port}")]);
    }
    // external-resizer: a timeout on the command line replaces those of the two operations.
    if last.get("timeout").or(last.get("csiTimeout")).is_none() {
        for name in ["resize-timeout", "modify-timeout"] {
            if let Some(timeout) = last.get(name) {
                values = values.with(name, [timeout.to_owned()]);
            }
        }
    }
    if last.is_true("node-deployment") {
        let node = environment.get("NODE_NAME").filter(|node| !node.is_empty());
        let missing = SidecarError::MissingVariable { variable: "NODE_NAME", flag: "node-deployment" };
        values = values
            .with("node-name", [node.ok_or(missing)?.clone()])
            .with("node-deployment", ["true".to_owned()]);
    }
    let warning = (!warnings.is_empty())
        .then(|| format!("{}: flags without effect: {}", sidecar.program(), warnings.join("; ")));
    Ok(SidecarCommand::Run(Box::new(SidecarRun {
        values,
        defaults: sidecar.defaults(),
        warning,
        enables_capacity: last.is_true("enable-capacity"),
        limits_threads: last.is_true("automaxprocs"),
        reads_kubeconfig_variable: sidecar == Sidecar::Provisioner,
    })))
}

/// The last occurrence of each flag.
struct LastValues<'a>(BTreeMap<&'static str, &'a GivenFlag>);

impl<'a> LastValues<'a> {
    fn new(flags: &'a [GivenFlag]) -> Self {
        Self(flags.iter().map(|given| (given.flag.name, given)).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|given| given.value.as_str())
    }

    fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// Reports if the flag has a value other than the sidecar's default.
    fn is_set(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|given| given.value != given.flag.default)
    }

    /// The value of `--logging-format`, which the sidecars check before every other flag.
    fn log_format(&self) -> Result<Option<&'a str>, SidecarError> {
        match self.0.get("logging-format").map(|given| given.value.as_str()) {
            format @ (None | Some("text" | "json")) => Ok(format),
            Some(format) => Err(SidecarError::LoggingFormat(format.to_owned())),
        }
    }

    /// Rejects combinations that the sidecar rejects.
    fn check(&self, sidecar: Sidecar) -> Result<(), SidecarError> {
        for first in ["metrics-address", "health-port"] {
            let second = "http-endpoint";
            if self.is_set(first) && self.is_set(second) {
                return Err(SidecarError::Exclusive { first, second });
            }
        }
        let required = "kubelet-registration-path";
        match sidecar == Sidecar::Registrar && !self.is_set(required) {
            true => Err(SidecarError::Required(required)),
            false => Ok(()),
        }
    }
}

/// The ignored flags with a value other than the sidecar's default, grouped by what happens instead.
fn ignored_flags(last: &LastValues<'_>) -> Vec<String> {
    let mut flags_by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, given) in &last.0 {
        if let FlagEffect::Ignored(instead) = given.flag.effect
            && given.value != given.flag.default
        {
            flags_by_reason.entry(instead).or_default().push(format!("--{name}={}", given.value));
        }
    }
    flags_by_reason.into_iter().map(|(reason, flags)| format!("{}: {reason}", flags.join(" "))).collect()
}

/// The log filter of `-v`; `None` without the flag.
fn log_filter(last: &LastValues<'_>) -> Option<&'static str> {
    let verbosity: u64 = last.get("v")?.parse().ok()?;
    Some(if verbosity <= MAX_INFO_VERBOSITY { INFO } else { DEBUG })
}

/// The values of the setting `feature-gates`. Adds a warning for each gate whose value this program does not
/// have.
///
/// # Errors
/// [`SidecarError`], for a gate that the sidecar does not have, too.
fn feature_gates<'a>(
    sidecar: Sidecar,
    texts: impl Iterator<Item = &'a str>,
    warnings: &mut Vec<String>,
) -> Result<Vec<String>, SidecarError> {
    let known: Vec<&str> = sidecar.feature_gates().iter().map(|gate| gate.as_str()).collect();
    let fixed = || FIXED_GATES.iter().filter(|gate| gate.sidecars.contains(&sidecar));
    let mut values = Vec::new();
    for text in texts.flat_map(|text| text.split(',')).map(str::trim).filter(|text| !text.is_empty()) {
        let (name, value) = parse_gate(text)?;
        if known.contains(&name) {
            values.push(format!("{name}={value}"));
        } else if let Some(gate) = fixed().find(|gate| gate.name == name) {
            if value != gate.value {
                warnings.push(format!("--feature-gates={name}={value}: {}", gate.instead));
            }
        } else if LIBRARY_GATES.contains(&name) {
            warnings.push(format!("--feature-gates={name}={value}: the gate is for API servers"));
        } else {
            let known: Vec<&str> = known.into_iter().chain(fixed().map(|gate| gate.name)).collect();
            let (name, known) = (name.to_owned(), known.join(", "));
            return Err(FeatureGateError::Unknown { name, known }.into());
        }
    }
    Ok(values)
}
