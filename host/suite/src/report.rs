//! The report card: for people, for programs, for build servers.

mod junit;
mod text;

use std::time::Duration;

use serde_json::{Value, json};

use crate::ConformanceCase;

/// What a run found.
#[derive(Clone, Debug)]
pub struct SuiteReport {
    /// The component, as it was given.
    pub source: String,
    /// What the names of the run were made from.
    pub seed: u64,
    /// The command that repeats the run, without the seed and without a choice of cases.
    pub command: String,
    /// Who the driver says it is; absent when it was not loaded.
    pub driver: Option<DriverIdentity>,
    /// Every case of the run, in the order of the table.
    pub entries: Vec<CaseReport>,
    /// What could not be deleted.
    pub leftovers: Vec<String>,
    /// Whether listing or inspection returns who owns a volume; absent when the run has not seen it.
    pub keeps_owners: Option<bool>,
}

/// Who a driver says it is, and what it can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverIdentity {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the component.
    pub digest: String,
    /// The optional interfaces that it exports.
    pub abilities: Vec<String>,
    /// The features that it names.
    pub features: Vec<String>,
}

/// One case with what came of it.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// The case.
    pub case: &'static ConformanceCase,
    /// What came of it.
    pub outcome: CaseOutcome,
    /// How long it took.
    pub elapsed: Duration,
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseOutcome {
    /// The driver keeps the rule.
    Passed,
    /// The driver breaks the rule.
    Failed {
        /// What the rule wants, in one line.
        expected: String,
        /// What came back, in one line.
        found: String,
        /// The last calls before that, each with its answer.
        calls: Vec<String>,
    },
    /// The rule was not tried; the text says why.
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
            keeps_owners: None,
        }
    }

    /// Whether no rule is broken. A run that tried nothing has not passed.
    pub fn is_passed(&self) -> bool {
        let (passed, failed, _) = self.totals();
        failed == 0 && passed > 0
    }

    /// How many cases passed, failed and were skipped.
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

    /// The command that repeats this run, or one case of it.
    pub(crate) fn rerun_command(&self, case: Option<&str>) -> String {
        let only = case.map(|case| format!(" --only {case}")).unwrap_or_default();
        format!("{}{only} --seed {}", self.command, self.seed)
    }

    /// For people, with colours when the terminal has them.
    pub fn to_text(&self, colour: bool) -> String {
        text::write(self, colour)
    }

    /// For build servers: JUnit's XML, one suite for each interface.
    pub fn to_junit(&self) -> String {
        junit::write(self)
    }

    /// For programs.
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
            "leftovers": self.leftovers,
            "cases": self.entries.iter().map(case_json).collect::<Vec<_>>(),
        })
    }
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
