//! Runs the table over a driver.

use std::{sync::Arc, time::Instant};

use cofferdam_backend::{Backend as _, Engine, Grant, Source, WasmBackend, testing::FaultPlan};
use cofferdam_domain::storage::Ability;

use crate::{
    Case, Need, Options,
    bench::Bench,
    cases::cases,
    check::Stop,
    report::{Driver, Entry, Report, Verdict},
};

/// Loads a component and tries every case of the table on it, one after the other.
///
/// What a driver does wrong stands in the report, also when it cannot be loaded at all.
pub async fn run(engine: &Engine, source: Source, mut options: Options) -> Report {
    // Calls die on purpose, several in a row.
    options.config.limits.breaker_failures = u32::MAX;
    let seed = options.seed;
    let name = match &source {
        Source::File(path) => path.display().to_string(),
        Source::Bytes { name, .. } => name.clone(),
    };
    let faults = FaultPlan::default();
    let begun = Instant::now();
    let loaded = engine.load_with_faults(source.clone(), options.config.clone(), faults.clone()).await;
    let mut report = Report::new(name, seed);
    match loaded {
        Ok(backend) => {
            report.driver = Some(driver(&backend));
            let bench = Bench::new(engine.clone(), source, options, backend, faults);
            for case in cases().filter(|case| bench.options.wants(case.id)) {
                let entry = attempt(&bench, case).await;
                report.entries.push(entry);
            }
            bench.tidy().await;
            report.left = bench.left();
            report.keeps_owners = bench.keeps_owners();
        }
        Err(error) => {
            let verdict = Verdict::Failed {
                expected: "the component loads".to_owned(),
                found: error.to_string(),
            };
            let skip = || Verdict::Skipped("the component was not loaded".to_owned());
            let loads = |case: &Case| case.id == crate::cases::LOADS;
            report.entries = cases()
                .map(|case| Entry::new(case, if loads(case) { verdict.clone() } else { skip() }, begun.elapsed()))
                .collect();
        }
    }
    report
}

fn driver(backend: &WasmBackend) -> Driver {
    let description = backend.description();
    Driver {
        name: description.name.to_string(),
        version: description.version.clone(),
        digest: backend.digest().to_string(),
        abilities: backend.abilities().iter().map(ToString::to_string).collect(),
        features: description.features.clone(),
    }
}

async fn attempt(bench: &Bench, case: &'static Case) -> Entry {
    let begun = Instant::now();
    if let Some(missing) = case.needs.iter().find(|need| !meets(bench, **need)) {
        return Entry::new(case, Verdict::Skipped(why(*missing)), begun.elapsed());
    }
    let verdict = match (case.run)(bench).await {
        Ok(()) => Verdict::Passed,
        Err(Stop::Failed { expected, found }) => Verdict::Failed { expected, found },
        Err(Stop::Skipped(why)) => Verdict::Skipped(why),
    };
    bench.faults.disarm();
    bench.tidy().await;
    Entry::new(case, verdict, begun.elapsed())
}

fn meets(bench: &Bench, need: Need) -> bool {
    let can = |ability| bench.backend.abilities().contains(&ability);
    match need {
        Need::Can(ability) => can(ability),
        Need::Has(feature) => bench.backend.description().has(feature),
        Need::Lacks(feature) => !bench.backend.description().has(feature),
        Need::Looks => can(Ability::Listing) || can(Ability::Inspection),
        Need::State => bench.backend.manifest().grants.contains(&Grant::State),
        Need::MutableParameters => !bench.options.mutable_parameters.is_empty(),
    }
}

fn why(missing: Need) -> String {
    match missing {
        Need::Can(ability) => format!("the driver does not export `{ability}`"),
        Need::Has(feature) => format!("the driver does not name the feature `{feature}`"),
        Need::Lacks(feature) => format!("the driver names the feature `{feature}`"),
        Need::Looks => "the driver exports neither `listing` nor `inspection`".to_owned(),
        Need::State => "the driver does not import `state`".to_owned(),
        Need::MutableParameters => "the run was given no mutable parameters".to_owned(),
    }
}

impl Bench {
    /// A second process with the same driver and storage.
    pub(crate) fn twin(&self) -> Arc<WasmBackend> {
        self.backend.twin()
    }
}
