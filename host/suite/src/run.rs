//! Runs the table over a driver.

use std::{sync::Arc, time::Instant};

use cofferdam_backend::Backend as _;
use cofferdam_domain::storage::Ability;
use cofferdam_wasm::{ComponentSource, Engine, Grant, LoadError, WasmBackend, fault_injection::FaultPlan};

use crate::{
    Case, Need, Options,
    bench::{Bench, ENDLESS},
    cases::cases,
    check::Stop,
    process::Process,
    report::{Driver, Entry, Report, Verdict},
};

/// Most calls that a report shows of a case that failed.
const SHOWN: usize = 8;

/// Loads a component and tries every case of the table on it, one after the other.
///
/// What a driver does wrong stands in the report, also when it cannot be loaded for its own fault.
///
/// # Errors
///
/// When the component was not tried for another reason: its file cannot be read, it lacks a grant or a directory, or the options
/// make no sense.
pub async fn run(
    engine: &Engine,
    source: ComponentSource,
    mut options: Options,
) -> Result<Report, LoadError> {
    // Calls die on purpose, several in a row.
    options.config.limits.breaker_failures = u32::MAX;
    let name = match &source {
        ComponentSource::File(path) => path.display().to_string(),
        ComponentSource::Bytes { name, .. } => name.clone(),
    };
    let mut report = Report::new(name, options.seed, options.command.clone());
    let faults = FaultPlan::default();
    let begun = Instant::now();
    let loaded = engine.load_with_faults(source.clone(), options.config.clone(), faults.clone()).await;
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
        Err(error) if is_the_drivers(&error) => {
            report.entries =
                cases().map(|case| Entry::new(case, unloaded(case, &error), begun.elapsed())).collect();
        }
        Err(error) => return Err(error),
    }
    Ok(report)
}

/// Whether a component cannot be loaded for its own fault.
fn is_the_drivers(error: &LoadError) -> bool {
    matches!(
        error,
        LoadError::Invalid { .. }
            | LoadError::ExceedsInstancePool { .. }
            | LoadError::UnsupportedContract { .. }
            | LoadError::UnknownImport { .. }
            | LoadError::MissingExport { .. }
            | LoadError::TypeMismatch { .. }
            | LoadError::InitialCall { .. }
            | LoadError::InvalidDescription { .. }
    )
}

fn unloaded(case: &Case, error: &LoadError) -> Verdict {
    if case.id == crate::cases::LOADS {
        let (expected, found) = ("the component loads".to_owned(), error.to_string());
        Verdict::Failed { expected, found, calls: Vec::new() }
    } else {
        Verdict::Skipped("the component was not loaded".to_owned())
    }
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
    if bench.gives_up() {
        let why = format!("{ENDLESS} calls before did not come to an end: the storage does not answer");
        return Entry::new(case, Verdict::Skipped(why), begun.elapsed());
    }
    bench.journal.clear();
    let verdict = match (case.run)(bench).await {
        Ok(()) => Verdict::Passed,
        Err(Stop::Failed { expected, found }) => {
            Verdict::Failed { expected, found, calls: bench.journal.last(SHOWN) }
        }
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
        Need::Has(feature) => bench.backend.description().has_feature(feature),
        Need::Lacks(feature) => !bench.backend.description().has_feature(feature),
        Need::Looks => can(Ability::Listing) || can(Ability::Inspection),
        Need::HostCalls => {
            let grants = &bench.backend.interfaces().grants;
            [Grant::State, Grant::Pool, Grant::Http].iter().any(|grant| grants.contains(grant))
        }
        Need::Topology => {
            !bench.backend.description().topology_keys.is_empty() && bench.options.topology.is_some()
        }
        Need::NoTopology => bench.backend.description().topology_keys.is_empty(),
        Need::Http => bench.backend.interfaces().grants.contains(&Grant::Http),
        Need::Secrets => !bench.options.secrets.is_empty(),
        Need::MutableParameters => !bench.options.mutable_parameters.is_empty(),
    }
}

fn why(missing: Need) -> String {
    match missing {
        Need::Can(ability) => format!("the driver does not export `{ability}`"),
        Need::Has(feature) => format!("the driver does not name the feature `{feature}`"),
        Need::Lacks(feature) => format!("the driver names the feature `{feature}`"),
        Need::Looks => "the driver exports neither `listing` nor `inspection`".to_owned(),
        Need::HostCalls => "the driver imports neither `state`, `pool` nor `http`".to_owned(),
        Need::Topology => "the driver names no topology keys, or the run was given no place".to_owned(),
        Need::NoTopology => "the driver names topology keys".to_owned(),
        Need::Http => "the driver does not import `http`".to_owned(),
        Need::Secrets => "the run was given no secrets".to_owned(),
        Need::MutableParameters => "the run was given no mutable parameters".to_owned(),
    }
}

impl Bench {
    /// Another process with the same driver and storage.
    pub(crate) fn twin(&self) -> Arc<Process> {
        self.backend.twin()
    }
}
