//! Memory of idle controllers in a cluster with many volumes of several drivers, all bound, attached, and
//! used by pods. No kubelet runs.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use super::{
    attachments,
    configurations::start_control_plane,
    load::ClaimLoad,
    measure::{UsageReading, resident_bytes},
    results::ResidentMemory,
    scheduling::ScheduledPods,
};
use crate::{
    account::Account,
    cofferdam,
    control_plane::{ApiUser, ControlPlane},
    driver::CsiDriverProcess,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar,
};

const DRIVERS: usize = 5;
const NODES: usize = 100;
/// The controllers of kube-controller-manager that Cofferdam's roles replace, without
/// `volumeattributesclass-protection-controller`.
const UPSTREAM_CONTROLLERS: &str = "persistentvolume-binder-controller,\
                                    persistentvolume-protection-controller,\
                                    persistentvolumeclaim-protection-controller,\
                                    persistentvolume-attach-detach-controller";
/// Sidecars of each driver, with the flag for their number of workers.
const SIDECARS: [(&str, &str); 3] = [
    ("csi-provisioner", "--worker-threads=100"),
    ("csi-attacher", "--worker-threads=100"),
    ("csi-resizer", "--workers=100"),
];
const ROLES: [&str; 6] =
    ["provisioner", "attacher", "resizer", "pv-controller", "protection", "attach-detach"];

/// Creates claims and pods: `objects` of each, rounded down to a multiple of the number of drivers. Cofferdam
/// creates and attaches their volumes, and stops. Then measures the upstream controllers and Cofferdam, one
/// after the other.
///
/// # Errors
/// If a process does not run, or an object is not bound or attached in time.
pub(super) async fn measure(run: &SuiteRun, objects: usize) -> Result<ResidentMemory> {
    let mut plane = start_control_plane(run).await?;
    let client = plane.client().clone();
    let mut drivers = Vec::new();
    for number in 0..DRIVERS {
        drivers.push(CsiDriverProcess::start(run, &driver_name(number), &["--any-node"]).await?);
    }
    let account = Account::new(run, &plane, &ROLES).await?;
    let mut setup = start_cofferdam(run, &account, &drivers).await?;
    attachments::create_nodes(&client, &(0..DRIVERS).map(driver_name).collect::<Vec<_>>(), NODES).await?;
    for number in 0..DRIVERS {
        let (namespace, driver) = (format!("memory-{number}"), driver_name(number));
        let load = ClaimLoad::new(&client, &namespace, Some(&driver)).await?;
        let (_, volumes) = load.bind_all(objects / DRIVERS).await?;
        ScheduledPods::new(&client, &namespace, &driver, NODES, volumes).await?.schedule_all().await?;
    }
    setup.stop().await?;

    let upstream_bytes = measure_upstream(run, &mut plane, &drivers).await?;
    let mut process = start_cofferdam(run, &account, &drivers).await?;
    UsageReading::when_idle(&client, &[]).await?;
    let cofferdam_bytes = resident_bytes(&process)?;
    process.stop().await?;
    for driver in &mut drivers {
        driver.process.stop().await?;
    }
    drop(client);
    plane.stop().await?;
    let objects = objects / DRIVERS * DRIVERS;
    Ok(ResidentMemory { objects, drivers: DRIVERS, nodes: NODES, cofferdam_bytes, upstream_bytes })
}

fn driver_name(number: usize) -> String {
    format!("memory-{number}.conformance.cofferdam.dev")
}

/// Starts one Cofferdam process with all roles that reconcile a cluster, for all drivers.
async fn start_cofferdam(
    run: &SuiteRun,
    account: &Account,
    drivers: &[CsiDriverProcess],
) -> Result<ManagedProcess> {
    let (first, others) = drivers.split_first().context("no driver")?;
    let flag = |(number, driver): (usize, &CsiDriverProcess)| {
        format!("--backend=memory-{}=unix:{}", number + 1, driver.socket().display())
    };
    let flags: Vec<String> = others.iter().enumerate().map(flag).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    cofferdam::start_with_csi_driver_and_flags(run, account, first.socket(), &flags).await
}

/// Starts kube-controller-manager and the sidecars of each driver. Returns their resident memory when idle,
/// in bytes and summed by program, and stops them.
async fn measure_upstream(
    run: &SuiteRun,
    plane: &mut ControlPlane,
    drivers: &[CsiDriverProcess],
) -> Result<BTreeMap<String, u64>> {
    plane.start_controller_manager(run, UPSTREAM_CONTROLLERS).await?;
    let manager = plane.controller_manager.take().context("kube-controller-manager does not run")?;
    let mut processes = vec![manager];
    let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
    for driver in drivers {
        for (program, workers) in SIDECARS {
            processes.push(sidecar::start(run, program, &kubeconfig, driver.socket(), &[workers]).await?);
        }
    }
    UsageReading::when_idle(plane.client(), &[]).await?;
    let mut memory = BTreeMap::new();
    for process in &mut processes {
        *memory.entry(process.name().to_owned()).or_default() += resident_bytes(process)?;
        process.stop().await?;
    }
    Ok(memory)
}
