//! The report: as text, JSON and JUnit XML.

mod junit;
mod text;

use std::time::Duration;

use serde_json::{Value, json};
pub use text::TextReport;

use crate::ConformanceCase;

/// Results of a run.
#[derive(Clone, Debug)]
pub struct SuiteReport {
    /// The component's path, or its name if it was passed as bytes.
    pub source: String,
    /// Seed of the names of the run.
    pub seed: u64,
    /// The command that repeats the run, without seed and case selection. The report adds the seed.
    pub command: String,
    /// Description of the driver; `None` if it could not be loaded.
    pub driver: Option<DriverIdentity>,
    /// The selected cases, or all if the driver could not be loaded, in the order of
    /// [`cases()`](crate::cases()).
    pub entries: Vec<CaseReport>,
    /// Descriptions of objects that could not be deleted, and of creates whose outcome remained unknown.
    pub leftovers: Vec<String>,
    /// True if an interrupt ended the run before all cases had run and all objects were deleted.
    pub is_interrupted: bool,
    /// True if listing or inspection returns the owner of a volume; `None` if the run did not check.
    pub keeps_owners: Option<bool>,
}

/// Name, version and features from a loaded driver's description, and the digest and the optional interfaces
/// of its component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverIdentity {
    /// The driver's name.
    pub name: String,
    /// The driver's version.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
    /// Optional interfaces that the driver exports.
    pub abilities: Vec<String>,
    /// Features of the driver's description.
    pub features: Vec<String>,
}

/// A case and its outcome.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// The case.
    pub case: &'static ConformanceCase,
    /// The outcome.
    pub outcome: CaseOutcome,
    /// Duration of the case with its cleanup; of the failed load if the driver could not be loaded.
    pub elapsed: Duration,
}

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseOutcome {
    /// The calls of the case found no violation of the rule.
    Passed,
    /// A result differs from the expected one: the driver breaks this rule, or another call of the case
    /// failed, for example because the storage did not respond in time.
    Failed {
        /// Expected result.
        expected: String,
        /// Observed result, truncated if it is long, or the error with which the component failed to load.
        found: String,
        /// The last recorded calls of the case, at most 8, each with its result. Empty if none was recorded,
        /// such as when the component could not be loaded.
        calls: Vec<String>,
    },
    /// The rule was not tested, for this reason.
    Skipped(String),
}

impl CaseReport {
    pub(crate) fn new(case: &'static ConformanceCase, outcome: CaseOutcome, elapsed: Duration) -> Self {
        Self { case, outcome, elapsed }
    }
}

impl SuiteReport {
    pub(crate) fn new(source: String, seed: u64, command: String) -> Self {
        Self {
            source,
            seed,
            command,
            driver: None,
            entries: Vec::new(),
            leftovers: Vec::new(),
            is_interrupted: false,
            keeps_owners: None,
        }
    }

    /// Returns true if the run was not interrupted, no case failed, and at least one passed.
    pub fn is_passed(&self) -> bool {
        let (passed, failed, _) = self.totals();
        !self.is_interrupted && failed == 0 && passed > 0
    }

    /// Numbers of passed, failed and skipped cases, in this order.
    pub fn totals(&self) -> (usize, usize, usize) {
        let count = |is_counted: fn(&CaseOutcome) -> bool| {
            self.entries.iter().filter(|entry| is_counted(&entry.outcome)).count()
        };
        (
            count(|outcome| matches!(outcome, CaseOutcome::Passed)),
            count(|outcome| matches!(outcome, CaseOutcome::Failed { .. })),
            count(|outcome| matches!(outcome, CaseOutcome::Skipped(_))),
        )
    }

    /// The ids of the failed cases.
    pub fn failures(&self) -> Vec<&'static str> {
        let failed = |entry: &&CaseReport| matches!(entry.outcome, CaseOutcome::Failed { .. });
        self.entries.iter().filter(failed).map(|entry| entry.case.id).collect()
    }

    /// The command that runs all cases again with the seed of this run, or only the case with this id.
    pub(crate) fn rerun_command(&self, case: Option<&str>) -> String {
        rerun_command(&self.command, self.seed, case)
    }

    /// The report as text, with ANSI colours if `colour` is true. [`TextReport`] writes the same during a
    /// run.
    pub fn to_text(&self, colour: bool) -> String {
        let mut writer = TextReport::new(colour);
        writer.start(self);
        writer.driver(self);
        for entry in &self.entries {
            writer.case(entry);
        }
        writer.finish(self);
        writer.take()
    }

    /// The report as JUnit XML, with one test suite per [`ConformanceCase::interface`].
    pub fn to_junit(&self) -> String {
        junit::write(self)
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        let (passed, failed, skipped) = self.totals();
        json!({
            "component": self.source,
            "seed": self.seed,
            "rerunCommand": self.rerun_command(None),
            "driver": self.driver.as_ref().map(|driver| json!({
                "name": driver.name,
                "version": driver.version,
                "digest": driver.digest,
                "abilities": driver.abilities,
                "features": driver.features,
            })),
            "passed": passed,
            "failed": failed,
            "skipped": skipped,
            "leakDetection": self.keeps_owners,
            "interrupted": self.is_interrupted,
            "leftovers": self.leftovers,
            "cases": self.entries.iter().map(case_json).collect::<Vec<_>>(),
        })
    }
}

/// The command that runs all cases, or the one with this id, with a seed.
fn rerun_command(command: &str, seed: u64, case: Option<&str>) -> String {
    let only = case.map(|case| format!(" --only {case}")).unwrap_or_default();
    format!("{command}{only} --seed {seed}")
}

fn case_json(entry: &CaseReport) -> Value {
    let ConformanceCase { id, rule, source, .. } = entry.case;
    let milliseconds = u64::try_from(entry.elapsed.as_millis()).unwrap_or(u64::MAX);
    let mut value = json!({ "id": id, "rule": rule, "source": source, "milliseconds": milliseconds });
    if let Some(fields) = value.as_object_mut() {
        let mut set = |key: &str, text: &str| fields.insert(key.to_owned(), Value::from(text));
        match &entry.outcome {
            CaseOutcome::Passed => {
                set("outcome", "passed");
            }
            CaseOutcome::Failed { expected, found, calls } => {
                set("outcome", "failed");
                set("expected", expected);
                set("found", found);
                fields.insert("calls".to_owned(), Value::from(calls.clone()));
            }
            CaseOutcome::Skipped(reason) => {
                set("outcome", "skipped");
                set("reason", reason);
            }
        }
    }
    value
}
