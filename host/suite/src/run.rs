//! Runs the cases on a driver.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use cofferdam_backend::Backend as _;
use cofferdam_domain::storage::Ability;
use cofferdam_wasm::{ComponentSource, Engine, Grant, LoadError, WasmBackend, fault_injection::FaultPlan};

use crate::{
    CaseRequirement, ConformanceCase, SuiteOptions,
    cases::cases,
    check::CaseError,
    context::{MAX_UNFINISHED_CALLS, SuiteContext},
    process::RecordingBackend,
    progress::{Progress, RUNNING_INTERVAL, RunControl},
    report::{CaseOutcome, CaseReport, DriverIdentity, SuiteReport},
};

/// Maximum calls that a report shows for a failed case.
const MAX_CALLS_SHOWN: usize = 8;

/// Runs the suite without output and interrupts, see [`run_with_control`].
///
/// # Errors
///
/// As [`run_with_control`].
pub async fn run(
    engine: &Engine,
    source: ComponentSource,
    options: SuiteOptions,
) -> Result<SuiteReport, LoadError> {
    run_with_control(engine, source, options, RunControl::none()).await
}

/// Loads a component and runs every selected case on it, one after the other.
///
/// Defects of the driver are part of the report, also those because of which the component cannot be loaded.
///
/// # Errors
///
/// If the component cannot be tested for another reason, such as a file that is unreadable or no component, a
/// missing grant or directory, or invalid options.
pub async fn run_with_control(
    engine: &Engine,
    source: ComponentSource,
    mut options: SuiteOptions,
    mut control: RunControl<'_>,
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
    (control.observer)(Progress::Started(&report));
    let loading = engine.load_with_faults(source.clone(), options.config.clone(), faults.clone());
    let result = tokio::select! {
        result = loading => result,
        () = control.interrupted() => {
            (control.observer)(Progress::Interrupted);
            report.is_interrupted = true;
            return Ok(report);
        }
    };
    match result {
        Ok(backend) => {
            report.driver = Some(driver_identity(&backend));
            (control.observer)(Progress::Loaded(&report));
            let context = SuiteContext::new(engine.clone(), source, options, backend, faults);
            run_cases(&context, &mut control, &mut report).await;
            report.leftovers = context.leftovers();
            report.keeps_owners = context.keeps_owners();
        }
        Err(error) if is_driver_fault(&error) => {
            (control.observer)(Progress::Loaded(&report));
            for case in cases() {
                let entry = CaseReport::new(case, load_failure_outcome(case, &error), started.elapsed());
                (control.observer)(Progress::CaseEnded(&entry));
                report.entries.push(entry);
            }
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

/// Runs the selected cases, and deletes the objects of the run.
async fn run_cases(context: &SuiteContext, control: &mut RunControl<'_>, report: &mut SuiteReport) {
    for case in cases().filter(|case| context.options.is_selected(case.id)) {
        let entry = if report.is_interrupted {
            CaseReport::new(case, interrupted_outcome(), Duration::ZERO)
        } else {
            run_until_interrupt(context, control, case).await.unwrap_or_else(|elapsed| {
                report.is_interrupted = true;
                CaseReport::new(case, interrupted_outcome(), elapsed)
            })
        };
        (control.observer)(Progress::CaseEnded(&entry));
        report.entries.push(entry);
    }
    if report.is_interrupted {
        context.faults.disarm();
    }
    tokio::select! {
        () = context.delete_all() => {}
        () = control.interrupted() => report.is_interrupted = true,
    }
}

fn interrupted_outcome() -> CaseOutcome {
    CaseOutcome::Skipped("the run was interrupted".to_owned())
}

/// Runs a case and observes that it runs. An interrupt drops its calls, and returns the duration of the case
/// as the error.
async fn run_until_interrupt(
    context: &SuiteContext,
    control: &mut RunControl<'_>,
    case: &'static ConformanceCase,
) -> Result<CaseReport, Duration> {
    let started = Instant::now();
    let observer = control.observer;
    let mut entry = pin!(run_case(context, case));
    let mut interrupted = pin!(control.interrupted());
    loop {
        tokio::select! {
            entry = &mut entry => return Ok(entry),
            () = &mut interrupted => {
                observer(Progress::Interrupted);
                return Err(started.elapsed());
            }
            () = tokio::time::sleep(RUNNING_INTERVAL) => {
                let call = context.call_recorder.last_call();
                observer(Progress::CaseRunning { case, elapsed: started.elapsed(), call });
            }
        }
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
        CaseRequirement::Secrets => {
            !context.options.secrets.is_empty() || !context.options.config.secrets.is_empty()
        }
        CaseRequirement::OtherParameters => !context.options.other_parameters.is_empty(),
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
        CaseRequirement::OtherParameters => {
            "the run has no second value of a parameter (--other-parameter)".to_owned()
        }
        CaseRequirement::MutableParameters => "the run has no mutable parameters".to_owned(),
    }
}

impl SuiteContext {
    /// Another simulated process with the same driver and storage.
    pub(crate) fn second_process(&self) -> Arc<RecordingBackend> {
        self.backend.second_process()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use cofferdam_domain::storage::{ErrorKind, StorageError};
    use cofferdam_wasm::{CompiledCache, EngineOptions};
    use tokio::{sync::mpsc, time::sleep};

    use super::*;
    use crate::{check::CaseResult, context::VolumeOrigin};

    async fn wait_95_seconds(_: &SuiteContext) -> CaseResult {
        sleep(Duration::from_secs(95)).await;
        Ok(())
    }

    static SLOW: ConformanceCase = ConformanceCase {
        id: "test/slow",
        rule: "A rule.",
        source: "a test",
        requirements: &[],
        run: |context| Box::pin(wait_95_seconds(context)),
    };

    async fn context(options: SuiteOptions) -> SuiteContext {
        let engine = Engine::new(EngineOptions { cache: CompiledCache::Off, ..EngineOptions::default() });
        let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
        let engine = engine.unwrap();
        let backend = engine.load(source.clone(), options.config.clone()).await.unwrap();
        SuiteContext::new(engine, source, options, backend, FaultPlan::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_case_that_runs_for_long_is_shown() {
        let context = context(SuiteOptions::default()).await;
        let shown = Mutex::new(Vec::new());
        let observer = |progress: Progress<'_>| shown.lock().unwrap().push(format!("{progress:?}"));
        let mut control = RunControl { observer: &observer, ..RunControl::none() };
        let entry = run_until_interrupt(&context, &mut control, &SLOW).await.unwrap();
        assert_eq!(entry.outcome, CaseOutcome::Passed);
        let shown = shown.into_inner().unwrap();
        assert_eq!(shown.len(), 3, "{shown:?}");
        assert!(shown.iter().all(|line| line.starts_with("CaseRunning") && line.contains("test/slow")));
    }

    #[tokio::test(start_paused = true)]
    async fn an_interrupt_ends_a_case() {
        let context = context(SuiteOptions::default()).await;
        let (sender, interrupts) = mpsc::channel(1);
        sender.send(()).await.unwrap();
        let mut control = RunControl { observer: &|_| {}, interrupts };
        assert!(run_until_interrupt(&context, &mut control, &SLOW).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_interrupt_ends_the_cleanup() {
        let mut options = SuiteOptions { only: vec!["none".to_owned()], ..SuiteOptions::default() };
        options.config.settings.insert("errors".to_owned(), "create:unavailable:always".to_owned());
        let context = context(options).await;
        let request = context.volume_request("open");
        let error = StorageError::with_unknown_effect(ErrorKind::Unavailable, "interrupted");
        context.record_create(&request, &VolumeOrigin::Empty, &Err(error));
        let (sender, interrupts) = mpsc::channel(1);
        sender.send(()).await.unwrap();
        let mut control = RunControl { observer: &|_| {}, interrupts };
        let mut report = SuiteReport::new("memory".to_owned(), 0, "command".to_owned());
        run_cases(&context, &mut control, &mut report).await;
        assert!(report.is_interrupted);
        assert_eq!(context.leftovers(), [format!("an unknown volume of the name {}", request.name)]);
    }

    async fn create_with_pauses(context: &SuiteContext) -> CaseResult {
        drop(context.create(&context.volume_request("paused")).await);
        Ok(())
    }

    static PAUSED: ConformanceCase =
        ConformanceCase { id: "test/paused", run: |context| Box::pin(create_with_pauses(context)), ..SLOW };

    #[tokio::test(start_paused = true)]
    async fn an_interrupt_between_two_attempts_records_the_create() {
        let mut options = SuiteOptions { retry_timeout: Duration::from_secs(600), ..SuiteOptions::default() };
        options.config.settings.insert("errors".to_owned(), "create:unavailable:always".to_owned());
        let context = context(options).await;
        let (sender, interrupts) = mpsc::channel(1);
        let mut control = RunControl { observer: &|_| {}, interrupts };
        // The case is in a pause for almost all of this time.
        let interrupt = async {
            sleep(Duration::from_secs(5)).await;
            sender.send(()).await.unwrap();
        };
        let (result, ()) = tokio::join!(run_until_interrupt(&context, &mut control, &PAUSED), interrupt);
        assert!(result.is_err());
        assert_eq!(context.leftovers().len(), 1, "{:?}", context.leftovers());
    }
}
