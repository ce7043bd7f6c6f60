//! Runs the cases on a driver.

use std::{sync::Arc, time::Instant};

use cofferdam_backend::Backend as _;
use cofferdam_domain::storage::Ability;
use cofferdam_wasm::{ComponentSource, Engine, Grant, LoadError, WasmBackend, fault_injection::FaultPlan};

use crate::{
    CaseRequirement, ConformanceCase, SuiteOptions,
    cases::cases,
    check::CaseError,
    context::{MAX_UNFINISHED_CALLS, SuiteContext},
    process::RecordingBackend,
    report::{CaseOutcome, CaseReport, DriverIdentity, SuiteReport},
};

/// Maximum calls that a report shows for a failed case.
const MAX_CALLS_SHOWN: usize = 8;

/// Loads a component and runs every selected case on it, one after the other.
///
/// Defects of the driver are part of the report, also those because of which the component cannot be loaded.
///
/// # Errors
///
/// If the component cannot be tested for another reason, such as a file that is unreadable or no component, a
/// missing grant or directory, or invalid options.
pub async fn run(
    engine: &Engine,
    source: ComponentSource,
    mut options: SuiteOptions,
) -> Result<SuiteReport, LoadError> {
    // The suite kills several calls in succession, which would open the circuit breaker.
    options.config.limits.breaker_failures = u32::MAX;
    let name = match &source {
        ComponentSource::File(path) => path.display().to_string(),
        ComponentSource::Bytes { name, .. } => name.clone(),
    };
    let mut report = SuiteReport::new(name, options.seed, options.command.clone());
    let faults = FaultPlan::default();
    let started = Instant::now();
    let result = engine.load_with_faults(source.clone(), options.config.clone(), faults.clone()).await;
    match result {
        Ok(backend) => {
            report.driver = Some(driver_identity(&backend));
            let context = SuiteContext::new(engine.clone(), source, options, backend, faults);
            for case in cases().filter(|case| context.options.is_selected(case.id)) {
                let entry = run_case(&context, case).await;
                report.entries.push(entry);
            }
            context.delete_all().await;
            report.leftovers = context.leftovers();
            report.keeps_owners = context.keeps_owners();
        }
        Err(error) if is_driver_fault(&error) => {
            report.entries = cases()
                .map(|case| CaseReport::new(case, load_failure_outcome(case, &error), started.elapsed()))
                .collect();
        }
        Err(error) => return Err(error),
    }
    Ok(report)
}

/// Returns true if a component cannot be loaded because of a defect of its own.
fn is_driver_fault(error: &LoadError) -> bool {
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

fn load_failure_outcome(case: &ConformanceCase, error: &LoadError) -> CaseOutcome {
    if case.id == crate::cases::LOAD_CASE {
        let (expected, found) = ("the component loads".to_owned(), error.to_string());
        CaseOutcome::Failed { expected, found, calls: Vec::new() }
    } else {
        CaseOutcome::Skipped("the component was not loaded".to_owned())
    }
}

fn driver_identity(backend: &WasmBackend) -> DriverIdentity {
    let description = backend.description();
    DriverIdentity {
        name: description.name.to_string(),
        version: description.version.clone(),
        digest: backend.digest().to_string(),
        abilities: backend.abilities().iter().map(ToString::to_string).collect(),
        features: description.features.clone(),
    }
}

async fn run_case(context: &SuiteContext, case: &'static ConformanceCase) -> CaseReport {
    let started = Instant::now();
    if let Some(unmet) = case.requirements.iter().find(|need| !is_met(context, **need)) {
        return CaseReport::new(case, CaseOutcome::Skipped(skip_reason(*unmet)), started.elapsed());
    }
    if context.has_given_up() {
        let reason = format!(
            "{MAX_UNFINISHED_CALLS} calls before did not come to an end: the storage does not answer"
        );
        return CaseReport::new(case, CaseOutcome::Skipped(reason), started.elapsed());
    }
    context.call_recorder.clear();
    let outcome = match (case.run)(context).await {
        Ok(()) => CaseOutcome::Passed,
        Err(CaseError::Failed { expected, found }) => {
            CaseOutcome::Failed { expected, found, calls: context.call_recorder.last_calls(MAX_CALLS_SHOWN) }
        }
        Err(CaseError::Skipped(reason)) => CaseOutcome::Skipped(reason),
    };
    context.faults.disarm();
    context.delete_all().await;
    CaseReport::new(case, outcome, started.elapsed())
}

fn is_met(context: &SuiteContext, requirement: CaseRequirement) -> bool {
    let has_ability = |ability| context.backend.abilities().contains(&ability);
    match requirement {
        CaseRequirement::Exports(ability) => has_ability(ability),
        CaseRequirement::HasFeature(feature) => context.backend.description().has_feature(feature),
        CaseRequirement::LacksFeature(feature) => !context.backend.description().has_feature(feature),
        CaseRequirement::ListingOrInspection => {
            has_ability(Ability::Listing) || has_ability(Ability::Inspection)
        }
        CaseRequirement::HostCalls => {
            let grants = &context.backend.interfaces().grants;
            [Grant::State, Grant::Pool, Grant::Http].iter().any(|grant| grants.contains(grant))
        }
        CaseRequirement::Topology => {
            !context.backend.description().topology_keys.is_empty() && context.options.topology.is_some()
        }
        CaseRequirement::NoTopology => context.backend.description().topology_keys.is_empty(),
        CaseRequirement::Http => context.backend.interfaces().grants.contains(&Grant::Http),
        CaseRequirement::Secrets => !context.options.secrets.is_empty(),
        CaseRequirement::MutableParameters => !context.options.mutable_parameters.is_empty(),
    }
}

fn skip_reason(unmet: CaseRequirement) -> String {
    match unmet {
        CaseRequirement::Exports(ability) => format!("the driver does not export `{ability}`"),
        CaseRequirement::HasFeature(feature) => format!("the driver does not name the feature `{feature}`"),
        CaseRequirement::LacksFeature(feature) => format!("the driver names the feature `{feature}`"),
        CaseRequirement::ListingOrInspection => {
            "the driver exports neither `listing` nor `inspection`".to_owned()
        }
        CaseRequirement::HostCalls => "the driver imports neither `state`, `pool` nor `http`".to_owned(),
        CaseRequirement::Topology => {
            "the driver has no topology keys, or the run no topology segment".to_owned()
        }
        CaseRequirement::NoTopology => "the driver names topology keys".to_owned(),
        CaseRequirement::Http => "the driver does not import `http`".to_owned(),
        CaseRequirement::Secrets => "the run has no secrets".to_owned(),
        CaseRequirement::MutableParameters => "the run has no mutable parameters".to_owned(),
    }
}

impl SuiteContext {
    /// Another simulated process with the same driver and storage.
    pub(crate) fn second_process(&self) -> Arc<RecordingBackend> {
        self.backend.second_process()
    }
}
