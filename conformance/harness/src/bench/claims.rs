//! The claim load. First, claims are bound to new volumes one after the other. Then other claims are bound to
//! new volumes concurrently, and deleted. Finally, claims are bound to volumes that exist already.

use anyhow::Result;

use super::{
    configurations::{BenchmarkConfiguration, start_control_plane},
    load::ClaimLoad,
    measure::UsageReading,
    recorder::LoadRecorder,
    results::{ConfigurationResults, LoadKind},
    upper_bound::{self, API_ONLY, BIND_DESCRIPTION, ProvisioningMode},
};
use crate::run::SuiteRun;

/// Number of claims of the sequential load.
const SEQUENTIAL_CLAIMS: usize = 50;

/// Measures the claim loads on a configuration.
///
/// # Errors
/// If a process does not run, or a load does not finish in time.
pub(super) async fn measure(
    run: &SuiteRun,
    configuration: &BenchmarkConfiguration,
    claims: usize,
) -> Result<ConfigurationResults> {
    let mut plane = start_control_plane(run).await?;
    let watches = UsageReading::when_idle(plane.client(), &[]).await?.watches();
    let controllers = configuration.start(run, &mut plane).await?;
    let client = plane.client().clone();
    let mut recorder =
        LoadRecorder::new(configuration.name, &plane, controllers.processes(), watches).await?;

    let sequential = ClaimLoad::new(&client, "sequential", Some(controllers.driver_name)).await?;
    recorder.begin_load().await?;
    let (timing, _) = sequential.bind_sequentially(SEQUENTIAL_CLAIMS).await?;
    recorder.end_load(LoadKind::BindSequentially, &timing).await?;

    let load = ClaimLoad::new(&client, "load", Some(controllers.driver_name)).await?;
    recorder.begin_load().await?;
    let (timing, volumes) = load.bind_all(claims).await?;
    recorder.end_load(LoadKind::BindDynamic, &timing).await?;
    let timing = load.delete_all(&volumes).await?;
    recorder.end_load(LoadKind::DeleteClaims, &timing).await?;

    let load = ClaimLoad::new(&client, "static", None).await?;
    load.create_volumes(claims).await?;
    load.wait_for_available(claims).await?;
    recorder.begin_load().await?;
    let (timing, _) = load.bind_all(claims).await?;
    recorder.end_load(LoadKind::BindStatic, &timing).await?;

    let results = ConfigurationResults {
        name: configuration.name.to_owned(),
        description: configuration.description.to_owned(),
        implementation: Some(configuration.implementation),
        controllers: controllers.names(),
        loads: recorder.into_measurements(),
    };
    controllers.stop().await?;
    drop((sequential, load, client));
    plane.stop().await?;
    Ok(results)
}

/// Measures the claim loads without controllers: clients make all necessary writes. The throughput is the
/// upper bound for controllers.
///
/// # Errors
/// If the API server rejects a write.
pub(super) async fn measure_upper_bound(run: &SuiteRun, claims: usize) -> Result<ConfigurationResults> {
    let plane = start_control_plane(run).await?;
    let client = plane.client().clone();
    let watches = UsageReading::when_idle(&client, &[]).await?.watches();
    let mut recorder = LoadRecorder::new(API_ONLY, &plane, std::iter::empty(), watches).await?;

    let sequential = ClaimLoad::new(&client, "sequential", None).await?;
    recorder.begin_load().await?;
    let timing = upper_bound::bind_sequentially(&sequential, SEQUENTIAL_CLAIMS).await?;
    recorder.end_load(LoadKind::BindSequentially, &timing).await?;

    let load = ClaimLoad::new(&client, "load", None).await?;
    recorder.begin_load().await?;
    let timing = upper_bound::bind_all(&load, claims, ProvisioningMode::Dynamic).await?;
    recorder.end_load(LoadKind::BindDynamic, &timing).await?;
    let timing = upper_bound::delete_all(&load, claims).await?;
    recorder.end_load(LoadKind::DeleteClaims, &timing).await?;

    let load = ClaimLoad::new(&client, "static", None).await?;
    load.create_volumes(claims).await?;
    recorder.begin_load().await?;
    let timing = upper_bound::bind_all(&load, claims, ProvisioningMode::Static).await?;
    recorder.end_load(LoadKind::BindStatic, &timing).await?;

    let loads = recorder.into_measurements();
    drop((sequential, load, client));
    plane.stop().await?;
    Ok(ConfigurationResults {
        name: API_ONLY.to_owned(),
        description: BIND_DESCRIPTION.to_owned(),
        implementation: None,
        controllers: Vec::new(),
        loads,
    })
}
