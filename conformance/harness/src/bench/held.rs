//! What a controller keeps of a cluster that is full: volumes of several drivers, claimed, attached, and in use by pods, and nobody
//! who wants anything. No kubelet runs.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::{
    attachments,
    load::Load,
    measure::{Reading, memory_of},
    placed::Pods,
    start,
};
use crate::{
    account::Account,
    cofferdam,
    control_plane::{ControlPlane, User},
    driver::Driver,
    process::Process,
    run::Run,
    sidecar,
};

const DRIVERS: usize = 5;
const NODES: usize = 100;
/// The loops of kube-controller-manager that do what our roles do.
const LOOPS: &str = "persistentvolume-binder-controller,persistentvolume-protection-controller,\
                     persistentvolumeclaim-protection-controller,persistentvolume-attach-detach-controller";
/// What each driver has one of.
const SIDECARS: [(&str, &str); 3] = [
    ("csi-provisioner", "--worker-threads=100"),
    ("csi-attacher", "--worker-threads=100"),
    ("csi-resizer", "--workers=100"),
];
const ROLES: [&str; 6] =
    ["provisioner", "attacher", "resizer", "pv-controller", "protection", "attach-detach"];

/// What is resident when nothing happens any more.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Held {
    /// Volumes, and as many claims, attachments and pods.
    pub(super) objects: usize,
    pub(super) drivers: usize,
    pub(super) nodes: usize,
    /// Bytes of our one process.
    pub(super) ours: u64,
    /// Bytes of theirs by program, all processes of it together.
    pub(super) theirs: BTreeMap<String, u64>,
}

/// Fills a cluster, and lets theirs and ours look at it one after the other.
///
/// # Errors
/// When something does not run, or the cluster does not fill.
pub(super) async fn measured(run: &Run, objects: usize) -> Result<Held> {
    let mut plane = start(run).await?;
    let client = plane.client().clone();
    let mut drivers = Vec::new();
    for number in 0..DRIVERS {
        drivers.push(Driver::start(run, &name(number), &["--any-node"]).await?);
    }
    let account = Account::new(run, &plane, &ROLES).await?;
    let mut fillers = ours(run, &account, &drivers).await?;
    attachments::nodes(&client, &(0..DRIVERS).map(name).collect::<Vec<_>>(), NODES).await?;
    for number in 0..DRIVERS {
        let (namespace, driver) = (format!("held-{number}"), name(number));
        let load = Load::new(&client, &namespace, Some(&driver)).await?;
        let (_, volumes) = load.bound(objects / DRIVERS).await?;
        Pods::new(&client, &namespace, &driver, NODES, volumes).await?.placed().await?;
    }
    fillers.stop().await?;

    let theirs = theirs(run, &mut plane, &drivers).await?;
    let mut process = ours(run, &account, &drivers).await?;
    Reading::at_rest(&client, &[]).await?;
    let ours = memory_of(&process)?;
    process.stop().await?;
    for driver in &mut drivers {
        driver.process.stop().await?;
    }
    drop(client);
    plane.stop().await?;
    let objects = objects / DRIVERS * DRIVERS;
    Ok(Held { objects, drivers: DRIVERS, nodes: NODES, ours, theirs })
}

fn name(number: usize) -> String {
    format!("held-{number}.conformance.cofferdam.dev")
}

/// All roles before all drivers.
async fn ours(run: &Run, account: &Account, drivers: &[Driver]) -> Result<Process> {
    let (first, others) = drivers.split_first().context("no driver")?;
    let flag = |(number, driver): (usize, &Driver)| {
        format!("--backend=held-{}=unix:{}", number + 1, driver.socket().display())
    };
    let flags: Vec<String> = others.iter().enumerate().map(flag).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    cofferdam::start_before_with(run, account, first.socket(), &flags).await
}

/// kube-controller-manager and each driver's sidecars: what is resident of them together, by program.
async fn theirs(run: &Run, plane: &mut ControlPlane, drivers: &[Driver]) -> Result<BTreeMap<String, u64>> {
    plane.start_controller_manager(run, LOOPS).await?;
    let manager = plane.controller_manager.take().context("kube-controller-manager does not run")?;
    let mut processes = vec![manager];
    let kubeconfig = plane.kubeconfig(User::Admin)?;
    for driver in drivers {
        for (program, workers) in SIDECARS {
            processes.push(sidecar::start(run, program, &kubeconfig, driver.socket(), &[workers]).await?);
        }
    }
    Reading::at_rest(plane.client(), &[]).await?;
    let mut memory = BTreeMap::new();
    for process in &mut processes {
        *memory.entry(process.name().to_owned()).or_default() += memory_of(process)?;
        process.stop().await?;
    }
    Ok(memory)
}
